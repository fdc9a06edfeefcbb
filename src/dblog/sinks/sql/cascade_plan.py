"""In which steps the cascades of a batch are applied to a target.

Every row of the target has the order of its last change in the log, and a cascade acts only on rows that are not newer
than itself. So all changes of a batch can be applied first, as one net effect, and the cascades after them: a row that
the log changes after a cascade is already as the log says. This is not enough where the rows of a table decide what
else changes: a table that is a parent too, or whose key a cascade changes. A later change hides what a row of it was at
the cascade. Then the batch is cut into *stretches* of the log, each with changes and the cascades after them. A change
must be in a later stretch than a cascade before it

* that may have changed referenced or key columns in the change's table;
* that may have deleted rows of the table, if the change creates a row or empties the table. An updated or deleted row
  was there until then, so the cascade has not deleted it, and has gone no further through it.

Within a stretch, the cascades of a foreign key are one *step*, if the order of the steps does not matter: if all of
them are deletions of parents. Otherwise steps follow the order of the log, and values of a step do not follow each
other: 1 to 2 and 2 to 3 are two steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.cascades import DELETED, ForeignKey, Reach, Rules, new_name, old_name, reach
from dblog.core.schema import TableName, TableSchema
from dblog.sinks.sql.staged import Order

_CREATES = ("create", "truncate")


@dataclass
class Step:
    """Events of one foreign key that are applied at once."""

    number: int
    key: ForeignKey
    deleted: bool
    """Whether the parents were deleted. Otherwise their referenced columns changed."""
    rules: Rules


@dataclass
class Stretch:
    """A part of the batch's log: its changes come first, then its cascades."""

    begin: Order | None
    """The order of its first change or event; None for the first stretch."""
    steps: list[Step] = field(default_factory=list)


@dataclass
class Plan:
    """How the cascades of a batch are applied."""

    stretches: list[Stretch]
    cut: frozenset[TableName]
    """The tables whose changes are applied stretch by stretch, if there are several."""
    events: dict[ForeignKey, pa.Table]
    """The events of each foreign key, with the number of their step in `_step`."""

    @property
    def steps(self) -> int:
        return sum(len(stretch.steps) for stretch in self.stretches)


def plan(
    cascades: Iterable[tuple[Rules, pa.Table]], changes: Mapping[TableName, Iterable[pa.Table]], first: int = 0
) -> Plan:
    """The plan for the events of a batch. `changes` has `_op`, `_lsn` and `_seq` of the changes of tables; only those
    of tables that may have to be cut are read."""
    found = [(rules, events) for rules, events in cascades if events.num_rows]
    reaches = {(n, g): reach(rules, deleted=g) for n, (rules, _) in enumerate(found) for g in (True, False)}
    deciding = {table for rules, _ in found for table in rules.through}
    deciding |= {table for found_reach in reaches.values() for table in found_reach.moved}
    items = _items(found, {t: changes[t] for t in sorted(deciding) if t in changes}, reaches)
    bounds = _cuts(items)
    stretches = [Stretch(begin) for begin in (None, *bounds)]
    numbers = _Numbers(first)
    places = {id(events): _places(events) for _, events in found}
    for stretch, end in zip(stretches, (*bounds, None), strict=True):
        mine = [(rules, events, _within(places[id(events)], stretch.begin, end)) for rules, events in found]
        for component in _components([part for part in mine if part[2].size]):
            stretch.steps += numbers.steps(component, places)
    out: dict[ForeignKey, list[pa.Table]] = {}
    for rules, events in found:
        out.setdefault(rules.first, []).append(numbers.marked(events))
    tables = {key: pa.concat_tables(parts) for key, parts in out.items()}
    return Plan(stretches, frozenset(deciding), tables)


_Found = tuple[Rules, pa.Table]
_Part = tuple[Rules, pa.Table, np.ndarray]


def _places(events: pa.Table) -> list[Order]:
    return list(zip(events["_lsn"].to_pylist(), events["_seq"].to_pylist(), strict=True))


def _within(places: Sequence[Order], begin: Order | None, end: Order | None) -> np.ndarray:
    """The events of a stretch, by index. They are in the order of the log."""
    first = 0 if begin is None else bisect_left(places, begin)
    return np.arange(first, len(places) if end is None else bisect_left(places, end))


def _items(
    found: Sequence[_Found], changes: Mapping[TableName, Iterable[pa.Table]], reaches: Mapping[tuple[int, bool], Reach]
) -> Iterator[tuple[Order, int, Any, Any]]:
    """Changes (0, table, operation) and events (1, reach, nothing) in the order of the log."""
    items: list[tuple[Order, int, Any, Any]] = []
    for table, parts in changes.items():
        for part in parts:
            ops = part["_op"].to_pylist()
            items += [(at, 0, table, op) for at, op in zip(_places(part), ops, strict=True)]
    if not items:
        return iter(())
    for number, (_, events) in enumerate(found):
        gone = events[DELETED].to_pylist()
        items += [(at, 1, reaches[number, g], None) for at, g in zip(_places(events), gone, strict=True)]
    items.sort(key=lambda item: item[:2])
    return iter(items)


def _cuts(items: Iterable[tuple[Order, int, Any, Any]]) -> list[Order]:
    """Where stretches begin, without the first one."""
    cuts: list[Order] = []
    removed: set[TableName] = set()
    moved: set[TableName] = set()
    for at, kind, one, other in items:
        if kind == 1:
            removed |= one.removed
            moved |= one.moved
        elif one in moved or (one in removed and other in _CREATES):
            cuts.append(at)
            removed, moved = set(), set()
    return cuts


def _components(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """The events in groups that have no table in common: these do not depend on each other's order."""
    groups: list[tuple[set[TableName], list[_Part]]] = []
    for part in parts:
        tables, mine = set(part[0].tables), [part]
        apart = []
        for others, theirs in groups:
            if others & tables:
                tables |= others
                mine = [*theirs, *mine]
            else:
                apart.append((others, theirs))
        groups = [*apart, (tables, mine)]
    return (mine for _, mine in groups)


class _Numbers:
    """Gives steps their numbers, and remembers which event is in which step."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._of: dict[int, np.ndarray] = {}

    def steps(self, parts: Sequence[_Part], places: Mapping[int, Sequence[Order]]) -> Iterator[Step]:
        gone = [np.asarray(events[DELETED].combine_chunks())[rows] for _, events, rows in parts]
        if all(values.all() for values in gone):
            for rules, events, rows in sorted(parts, key=lambda part: (part[0].first.child, part[0].first.name)):
                yield self._step(rules, True, events, rows)
            return
        ordered = sorted(
            (places[id(events)][row], rules.first.name, number, row)
            for number, (rules, events, rows) in enumerate(parts)
            for row in rows.tolist()
        )
        values = [_values(rules, events) for rules, events, _ in parts]
        held: list[int] = []
        last: tuple[int, bool] | None = None
        olds: set[Any] = set()
        news: set[Any] = set()
        for _, _, number, row in ordered:
            deleted, old, new = values[number][row]
            follows = not deleted and (old in news or old in olds or new in olds)
            if held and last is not None and (last != (number, deleted) or follows):
                rules, events, _ = parts[last[0]]
                yield self._step(rules, last[1], events, np.array(held))
                held, olds, news = [], set(), set()
            last = number, deleted
            held.append(row)
            olds.add(old)
            news.add(new)
        if held and last is not None:
            rules, events, _ = parts[last[0]]
            yield self._step(rules, last[1], events, np.array(held))

    def _step(self, rules: Rules, deleted: bool, events: pa.Table, rows: np.ndarray) -> Step:
        numbers = self._of.setdefault(id(events), np.full(events.num_rows, -1, np.int64))
        numbers[rows] = self._next
        self._next += 1
        return Step(self._next - 1, rules.first, deleted, rules)

    def marked(self, events: pa.Table) -> pa.Table:
        """The events with the numbers of their steps."""
        return events.append_column("_step", pa.array(self._of[id(events)], pa.int32()))


def _values(rules: Rules, events: pa.Table) -> list[tuple[bool, tuple[Any, ...], tuple[Any, ...]]]:
    width = range(len(rules.first.columns))
    olds, news = (zip(*(events[name(n)].to_pylist() for n in width), strict=True) for name in (old_name, new_name))
    return list(zip(events[DELETED].to_pylist(), olds, news, strict=True))


def part_of(batches: Iterable[pa.RecordBatch], begin: Order | None, end: Order | None) -> Iterator[pa.RecordBatch]:
    """The changes of a stretch."""
    for batch in batches:
        mine = pa.array(np.ones(batch.num_rows, np.bool_))
        for bound, after in ((begin, True), (end, False)):
            if bound is not None:
                reached = _at_or_after(batch, bound)
                mine = pc.and_(mine, reached if after else pc.invert(reached))
        found = batch.filter(mine)
        if found.num_rows:
            yield found


def _at_or_after(batch: pa.RecordBatch, bound: Order) -> pa.Array:
    lsn, seq = batch.column("_lsn"), batch.column("_seq")
    same = pc.and_(pc.equal(lsn, bound[0]), pc.greater_equal(seq, bound[1]))
    return pc.or_(pc.greater(lsn, bound[0]), same)


def last_truncate(batches: Iterable[pa.RecordBatch]) -> Order | None:
    """The order of the last truncate among changes."""
    found: Order | None = None
    for batch in batches:
        for row in pc.indices_nonzero(pc.equal(batch.column("_op"), "truncate")).to_pylist():
            found = batch.column("_lsn")[row].as_py(), batch.column("_seq")[row].as_py()
    return found


def moves_key(key: ForeignKey, schema: TableSchema) -> bool:
    """Whether a foreign key has columns of its child's key."""
    return bool(set(key.columns) & set(schema.key))
