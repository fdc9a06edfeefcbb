"""Compares what a stream has delivered with the ledger that the writers kept. Knows nothing of the product's code.

The ledger has one entry for each change of a row, with a version number that grows with the commits of a key, and one
for each statement that empties a table. For every key of every table:

    log      the delivered changes are the ledger's, all of them, in its order, with its values
    dump     a dump row has exactly the version that the log has reached at that place: an older one would undo a
             change, a newer one would be undone by the changes that follow, a deleted row would come back
    order    `(_lsn, _seq)` grows from event to event, and from batch to batch
    whole    the changes of a transaction are in one batch and at one position, alone
    state    in the end the row is there if and only if the ledger says so

Where a definition gave a table other rows without a word in the log, the stream may empty the table and dump it again,
at a place of its choice. Of such a table (`loose`) a key may miss changes or be emptied; but its versions are the
ledger's, never go back, and the last state is right.

`check_attempts` compares the attempts of a batch, `check_dump` what a finished dump has covered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Key = tuple[str, ...]
Row = Mapping[str, str | None]

PUTS = ("create", "update")
EMPTY = ("delete", "truncate")
NEVER = "<never delivered>"
"""Stands for the value of a column that was unchanged in every event of its row."""


@dataclass(frozen=True)
class Entry:
    """A change in the ledger. Values are texts."""

    version: int
    tx: int
    table: str
    op: str
    key: Key | None = None
    row: Row | None = None

    def __str__(self) -> str:
        return f"{self.op:8} version {self.version} tx {self.tx}" + (f" {dict(self.row)}" if self.row else "")


@dataclass(frozen=True)
class Event:
    """A delivered event. `at` is (_lsn, _seq)."""

    batch: int
    table: str
    op: str
    at: tuple[int, int]
    key: Key | None = None
    row: Row | None = None
    unchanged: tuple[str, ...] = ()
    dump: str | None = None

    @property
    def version(self) -> int:
        return int((self.row or {}).get("version") or -1)

    def __str__(self) -> str:
        values = f" {dict(self.row)}" if self.row else ""
        dump = f" of dump {self.dump}" if self.dump else ""
        return f"{self.op:8} batch {self.batch} at {self.at}{dump}{values}"


@dataclass(frozen=True)
class Violation:
    """Something that must not be, with the histories of the key that show it."""

    what: str
    table: str
    key: Key | None = None
    ledger: tuple[str, ...] = ()
    delivered: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.table} {'' if self.key is None else ','.join(self.key)}: {self.what}"]
        for title, history in (("ledger", self.ledger), ("delivered", self.delivered)):
            lines += [f"  {title}:", *(f"    {line}" for line in history)] if history else []
        return "\n".join(lines)


def check(
    entries: Iterable[Entry],
    events: Sequence[Event],
    *,
    floor: int = 0,
    ceiling: int | None = None,
    complete: bool = True,
    delivered: bool = False,
    loose: Collection[str] = (),
) -> list[Violation]:
    """What is wrong with the events of a stream.

    They begin after everything up to version `floor` was committed and before anything above `ceiling` was.
    `delivered`: the state as of `floor` has been delivered before. `complete`: the log is delivered to its end, and no
    dump is running."""
    ceiling = floor if ceiling is None else ceiling
    entries = sorted(entries, key=lambda e: e.version)
    ledger, entirely = _by_key(entries), _emptied(entries)
    histories, emptied = _by_key(events), _emptied(events)
    found: list[Violation] = []
    matched: list[Matched] = []
    for place in sorted(ledger.keys() | histories.keys()):
        key = _Key(place, ledger.get(place, entirely[place[0]]), histories.get(place, emptied[place[0]]), delivered)
        if place[0] in loose:
            found += key.check_loosely(floor, complete)
        else:
            found += key.check(floor, ceiling, complete)
            matched += key.matched
    return [*found, *_order(events), *_whole(matched)]


def _by_key(things: Iterable[Any]) -> dict[tuple[str, Key], list[Any]]:
    """The history of each key; what empties a table is in the history of each key of it."""
    tables: dict[str, list[Any]] = defaultdict(list)
    for thing in things:
        tables[thing.table].append(thing)
    result: dict[tuple[str, Key], list[Any]] = {}
    for table, all_of in tables.items():
        keys: dict[Key, list[tuple[int, Any]]] = defaultdict(list)
        emptied = [(n, thing) for n, thing in enumerate(all_of) if thing.key is None]
        for n, thing in enumerate(all_of):
            if thing.key is not None:
                keys[thing.key].append((n, thing))
        for key, history in keys.items():
            result[table, key] = [thing for _, thing in sorted([*history, *emptied], key=lambda pair: pair[0])]
    return result


def _emptied(things: Iterable[Any]) -> dict[str, list[Any]]:
    """What empties each table: the whole history of a key with which nothing else happens."""
    found: dict[str, list[Any]] = defaultdict(list)
    for thing in things:
        if thing.key is None:
            found[thing.table].append(thing)
    return found


Matched = tuple[Event, set[int]]
"""A delivered change, and the transactions of which it may be; mostly that is one. A delete has no version: the first
event of a key may be any of several deletes, where it is not known which changes were committed before the stream
began and the log is not delivered to its end."""


class _Key:
    """The two histories of one key."""

    def __init__(
        self, place: tuple[str, Key], ledger: Sequence[Entry], events: Sequence[Event], delivered: bool
    ) -> None:
        self.table, self.key = place
        self.ledger, self.events = ledger, events
        self._delivered = delivered
        self.matched: list[Matched] = []

    def check(self, floor: int, ceiling: int, complete: bool) -> list[Violation]:
        first = sum(e.version <= floor for e in self.ledger)
        last = sum(e.version <= ceiling for e in self.ledger)
        attempts = [self._walk(begin, complete) for begin in range(first, last + 1)]
        found, longest = max(attempts, key=lambda a: len(a[1]))
        fits = [pairs for wrong, pairs in attempts if not wrong]
        self.matched = [
            (same[0][1], {entry.tx for entry, _ in same}) for same in zip(*(fits or [longest]), strict=True)
        ]
        return [] if fits else found

    def _walk(self, begin: int, complete: bool) -> tuple[list[Violation], list[tuple[Entry, Event]]]:
        """Go through the events with a finger on the ledger: everything before `done` is delivered, or was committed
        before the stream began."""
        done, matched = begin, []
        there = self._delivered and self._live(begin)  # whether the target has a row
        for n, event in enumerate(self.events):
            if event.op == "read":
                problem = self._read(event, done)
                there = True
            elif event.op == "truncate":
                if not self._live(done):  # nothing to take away: neither of the two need say so
                    there = False
                    continue
                following = self._next(done)
                ok = following < len(self.ledger) and self.ledger[following].op == "truncate"
                problem = None if ok else "a truncate that the ledger does not have at this place"
                done, there = following + 1, False
            else:
                following = self._next(done, skip_truncates=not self._live(done))
                problem = self._change(event, following)
                if problem is None:
                    matched.append((self.ledger[following], event))
                done, there = following + 1, event.op != "delete"
            if problem is not None:
                return [self._violation(problem, n, done)], matched
        if not complete:
            return [], matched
        following = self._next(done, skip_truncates=not self._live(done))
        if following < len(self.ledger):
            lost = f"never delivered: {self.ledger[following]}"
            return [self._violation(lost, len(self.events), following)], matched
        lives = bool(self.ledger) and self.ledger[-1].op in PUTS
        if lives != there:
            wrong = "the row is missing" if lives else "the row is delivered and gone from the source"
            return [self._violation(wrong, len(self.events), len(self.ledger))], matched
        return [], matched

    def check_loosely(self, floor: int, complete: bool) -> list[Violation]:
        last = sum(e.version <= floor for e in self.ledger)
        there, highest = self._delivered and self._live(last), -1
        for n, event in enumerate(self.events):
            there = event.op not in EMPTY
            if not there:
                continue
            index = self._index(event.version)
            problem = f"version {event.version} is not in the ledger" if index < 0 else None
            if index >= 0 and event.version < highest:
                problem = f"version {event.version} is delivered behind version {highest}"
            problem = problem or _values(self.ledger[index], event, every=False)
            if problem is not None:
                return [self._violation(problem, n, index)]
            highest = event.version
        lives = self._live(len(self.ledger))
        if complete and lives != there:
            wrong = "the row is missing" if lives else "the row is delivered and gone from the source"
            return [self._violation(wrong, len(self.events), len(self.ledger))]
        return []

    def _live(self, done: int) -> bool:
        return done > 0 and done <= len(self.ledger) and self.ledger[done - 1].op in PUTS

    def _next(self, done: int, *, skip_truncates: bool = False) -> int:
        """The next entry that the log must show."""
        while skip_truncates and done < len(self.ledger) and self.ledger[done].op == "truncate":
            done += 1
        return done

    def _index(self, version: int) -> int:
        return next((n for n, e in enumerate(self.ledger) if e.version == version and e.op in PUTS), -1)

    def _change(self, event: Event, following: int) -> str | None:
        if event.op == "delete":
            if following < len(self.ledger) and self.ledger[following].op == "delete":
                return None
            return "a delete that the ledger does not have at this place"
        index = self._index(event.version)
        if index < 0:
            return f"version {event.version} is not in the ledger"
        if index < following:
            return f"version {event.version} is delivered again, or behind a later one"
        if index > following:
            return f"lost in front of version {event.version}: {self.ledger[following]}"
        if self.ledger[index].op != event.op:
            return f"the ledger has {self.ledger[index].op} where {event.op} is delivered"
        return _values(self.ledger[index], event)

    def _read(self, event: Event, done: int) -> str | None:
        index = self._index(event.version)
        if index < 0:
            return f"a dump row of version {event.version}, which is not in the ledger"
        if index < done - 1:
            wrong = "brings a deleted row back" if self.ledger[done - 1].op in EMPTY else "is stale"
            return f"the dump row {wrong}: the log had reached {self.ledger[done - 1]}"
        if index >= done:
            return "the dump row is ahead of the log"
        return _values(self.ledger[index], event)

    def _violation(self, what: str, event: int, entry: int) -> Violation:
        ledger = [f"{'>' if n == entry else ' '} {e}" for n, e in enumerate(self.ledger)]
        events = [f"{'>' if n == event else ' '} {e}" for n, e in enumerate(self.events)]
        near = (tuple(ledger[max(0, entry - 6) : entry + 4]), tuple(events[max(0, event - 6) : event + 4]))
        return Violation(what, self.table, self.key, *near)


def _values(entry: Entry, event: Event, *, every: bool = True) -> str | None:
    """Whether the event has the values of the entry. A dump may have read the row under a later definition."""
    row, expected = event.row or {}, entry.row or {}
    names = set(row) | set(event.unchanged)
    if every and event.op != "read" and names != set(expected):
        return f"version {entry.version} has the columns {sorted(expected)}, delivered are {sorted(names)}"
    wrong = {c: (expected[c], row[c]) for c in row if c in expected and row[c] != expected[c]}
    return f"version {entry.version} has other values (ledger, delivered): {wrong}" if wrong else None


def _order(events: Sequence[Event]) -> list[Violation]:
    found = []
    last: dict[tuple[str, Key | None], Event] = {}
    highest = (-1, -1)  # the last batch that had a log, and the highest position of its log
    current, lowest = -1, 0
    for event in events:
        before = last.get((event.table, event.key))
        if before is not None and before.at >= event.at and not _again(before, event):
            found.append(Violation("(_lsn, _seq) does not grow", event.table, event.key, (), (str(before), str(event))))
        last[event.table, event.key] = event
        if event.op == "read":
            continue
        if event.batch != current:
            current, lowest = event.batch, highest[1]
        if event.at[0] <= lowest:
            wrong = f"batch {event.batch} goes back to a position of batch {highest[0]} or of one before it"
            found.append(Violation(wrong, event.table, event.key, (), (str(event),)))
        highest = (event.batch, max(highest[1], event.at[0]))
    return found[:5]


def _again(one: Event, other: Event) -> bool:
    """Two dumps that read the same row where nothing is written in between, not even a watermark, may agree on its
    place."""
    return one.op == other.op == "read" and one.at == other.at and one.row == other.row and one.dump != other.dump


def _whole(matched: Sequence[Matched]) -> list[Violation]:
    found = []
    owners: dict[int, set[int]] = {}
    for event, txs in matched:
        others = owners.setdefault(event.at[0], txs)
        if not others & txs:
            wrong = f"tx {_any_of(txs)} and tx {_any_of(others)} have the position {event.at[0]}"
            found.append(Violation(wrong, event.table, event.key))
        owners[event.at[0]] = others & txs or others
    places: dict[int, tuple[int, int]] = {}
    for event, _ in matched:
        if len(owners[event.at[0]]) > 1:
            continue  # nothing at this position says whose it is
        (tx,), place = owners[event.at[0]], (event.batch, event.at[0])
        if places.setdefault(tx, place) != place:
            wrong = f"tx {tx} is delivered at (batch, _lsn) {places[tx]} and {place}"
            found.append(Violation(wrong, event.table, event.key))
    return found[:5]


def _any_of(txs: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(txs)))


def check_attempts(
    first: Sequence[Event], again: Sequence[Event], *, staged_lost: bool = False, moved: bool = False
) -> list[Violation]:
    """A batch that is delivered again is the same batch.

    Where the spool was lost in between (`staged_lost`) it may have fewer dump rows, and lack large values that only
    those had: they are read again later. Where another server took over as well (`moved`), its rows may have other
    positions."""
    if list(first) == list(again):
        return []
    if staged_lost and moved:
        first, again = ([replace(e, at=(0, 0)) for e in sorted(es, key=_identity)] for es in (first, again))
    if staged_lost:
        rows = {(e.table, e.key, e.at) for e in again}
        kept = [e for e in first if e.op != "read" or (e.table, e.key, e.at) in rows]
        if len(kept) == len(again) and all(map(_nearly, kept, again)):
            return []
    pairs = [(str(a), str(b)) for a, b in zip(first, again, strict=False) if a != b][:3]
    what = f"batch {first[0].batch if first else again[0].batch} was delivered a second time with other events"
    what += f": {len(first)} events, then {len(again)}"
    shown = pairs or [("", str(e)) for e in again[len(first) :][:3]] or [(str(e), "") for e in first[len(again) :][:3]]
    table = (first or again)[0].table
    return [Violation(what, table, None, tuple(a for a, _ in shown), tuple(b for _, b in shown))]


def _identity(event: Event) -> tuple[str, str, str, int]:
    return event.table, str(event.key), event.op, event.version


def _nearly(one: Event, other: Event) -> bool:
    """The same event, but for a large value that a staged row gave to it."""
    mine, theirs = one.row or {}, other.row or {}
    same = all(mine[c] == theirs[c] for c in mine.keys() & theirs.keys())
    columns = {*mine, *one.unchanged} == {*theirs, *other.unchanged}
    return same and columns and (one.table, one.op, one.key, one.at) == (other.table, other.op, other.key, other.at)


def check_dump(
    entries: Iterable[Entry],
    events: Iterable[Event],
    dump: str,
    table: str,
    *,
    asked: int,
    ended: int,
    keys: Iterable[Key] | None = None,
) -> list[Violation]:
    """A completed dump has delivered each row that it was asked for and that nobody touched while it ran: everything
    up to version `asked` was committed when it began, and nothing above `ended` when it was over. `events` are those
    that were delivered since it was asked for: a row may also come with another dump that reads the table anyway."""
    rows = {e.key for e in events if e.table == table and e.op == "read"}
    wanted = None if keys is None else set(keys)
    found = []
    histories = _by_key(sorted((e for e in entries if e.table == table), key=lambda e: e.version))
    for (_, key), history in sorted(histories.items()):
        before = [e for e in history if e.version <= asked]
        touched = any(asked < e.version <= ended for e in history)
        lives = bool(before) and before[-1].op in PUTS
        if lives and not touched and key not in rows and (wanted is None or key in wanted):
            what = f"dump {dump} ended (asked at version {asked}, ended at {ended}) without this row"
            found.append(Violation(what, table, key, tuple(map(str, history[-5:]))))
    return found[:5]


def check_state(
    state: Mapping[tuple[str, Key], Row], source: Mapping[tuple[str, Key], Row], *, whole: bool = True
) -> list[Violation]:
    """The events, applied in their order, give the rows of the source. `whole`: with every column."""
    found = []
    for table, key in sorted(state.keys() | source.keys()):
        mine, theirs = state.get((table, key)), source.get((table, key))
        if mine is None or theirs is None or mine.get("version") != theirs.get("version") or (whole and mine != theirs):
            histories = ((str(theirs and dict(theirs)),), (str(mine and dict(mine)),))
            found.append(Violation("the state differs from the source", table, key, *histories))
    return found[:5]


def applied(events: Iterable[Event]) -> dict[tuple[str, Key], dict[str, str | None]]:
    """The rows of a target that does what the events say. A value that is unchanged stays; one that was never
    delivered is missing."""
    state: dict[tuple[str, Key], dict[str, str | None]] = {}
    for event in events:
        if event.key is None:
            state = {place: row for place, row in state.items() if place[0] != event.table}
        elif event.op == "delete":
            state.pop((event.table, event.key), None)
        else:
            old = state.get((event.table, event.key), {})
            kept = {name: old.get(name, NEVER) for name in event.unchanged}
            state[event.table, event.key] = {**(event.row or {}), **kept}
    return state
