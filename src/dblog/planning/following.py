"""Which tables a stream follows while tables are created, renamed, replaced or dropped.

At intervals, and when the log shows another definition, the source reports the present tables (`survey`).

    a new table        joins: it is published, then followed and dumped from an offset on
    a replaced table   joins too: the batch of that offset ends by emptying it
    a dropped table    is emptied
    a renamed table    is followed further under its old name, or is unfit
    an unfit table     is set aside, or stops the stream (`planning.set_aside`)
    a table set aside  joins again when somebody asks for it: the log is opened anew, then it is as if it were replaced

A table joins at an offset after its admission to the log, when all transactions that were running at the admission have
ended: the log may lack their earlier changes, so the dump must see them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dblog.capture.capture import Capture
from dblog.capture.effects import REAL, Effects
from dblog.core.names import shortened
from dblog.core.offset import Followed, Offset
from dblog.core.schema import TableName
from dblog.errors import PreconditionFailed, SourceError, TableLocked
from dblog.sources.base import Source, Survey

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""The least time between two surveys, in seconds."""

AWAY_SECONDS = 2.0
"""How long a followed table may be away before the stream stops, in seconds: it may be renamed and renamed back."""

LATER_SECONDS = 20.0
"""How long the end of a stream that writes no watermarks waits for a position after the present one, in seconds. After
a change, PostgreSQL writes to its log within 15 seconds even if nobody else does."""

LOCKED_SECONDS = 5.0
"""How long no table is admitted after one was found locked, in seconds."""


STAYS = "it was dropped while the stream was stopped: its delivered rows stay until a table has its name again"
"""Why a dropped table is not emptied yet. A truncate needs the table's schema, and this life does not know it."""


Failure = tuple[TableName, tuple[int, float]]
"""A table that is set aside, and which failure of it (`SetAside.id`)."""


@dataclass(frozen=True)
class Change:
    """What changes at an offset in the followed tables."""

    followed: Mapping[TableName, Followed]
    emptied: tuple[TableName, ...] = ()
    replaced: tuple[TableName, ...] = ()
    """The emptied tables that must be dumped."""
    forgotten: frozenset[TableName] = frozenset()
    """Tables that were dropped, or do not match the patterns any more. A later table of the same name is new."""


@dataclass
class _Join:
    """A table that will be followed from a later offset on."""

    known: Followed
    position: int
    running: tuple[int, ...]
    """Transactions that must end first."""
    since: float
    """When this life began to wait for that offset, by the monotonic clock."""


@dataclass
class _Seen:
    """What the last survey has found for the next offset."""

    renewed: Mapping[TableName, Followed] = field(default_factory=dict)
    gone: frozenset[TableName] = frozenset()
    unwanted: frozenset[TableName] = frozenset()


class Following:
    """Surveys the tables of a stream, and decides what changes at its next offset.

    `renamed`: follow renamed tables further. `new`: let tables join that are created later. `seconds`: the time between
    two surveys. `tell` is called with each event. `knows` returns whether this life knows a table's schema."""

    def __init__(
        self,
        source: Source,
        *,
        renamed: bool,
        new: bool,
        seconds: float,
        tell: Callable[..., None],
        knows: Callable[[TableName], object],
        effects: Effects = REAL,
    ) -> None:
        self._source = source
        self._effects = effects
        self._goes_on = renamed
        self._takes_new = new
        self._seconds = seconds
        self._tell = tell
        self._knows = knows
        self._looked: float | None = None
        self._locked_until = 0.0
        self._earlier: Mapping[TableName, Followed] | None = None
        self._joining: dict[TableName, _Join] = {}
        self._log: str | None = None
        self._seen = _Seen()
        self._away: dict[TableName, float] = {}
        self.looks = 0
        """The number of surveys in this life."""
        self.left_out: dict[TableName, str] = {}
        """Tables that match the patterns but are not followed, and why."""
        self.unfit: dict[TableName, SourceError] = {}
        """Followed tables that cannot be followed any more, as the last survey has found."""
        self.refused: dict[Failure, str] = {}
        """Tables that are set aside, are to be taken up again, and still cannot be followed; and why."""
        self._openings: dict[Failure, int] = {}
        """By table that is to be taken up again: how often the log had been opened before."""

    def followed(self, start: Offset) -> Mapping[TableName, Followed]:
        """The tables that are followed after the offset. An offset of an earlier version does not have them: then they
        are those of the first survey in this life."""
        return start.followed if start.followed is not None else self._earlier or {}

    # -- surveys ---------------------------------------------------------------------------------------------

    def look(self, start: Offset, capture: Capture, wanted: Set[Failure] = frozenset()) -> None:
        """Survey the tables, if it is time. `wanted` are tables that are set aside and are to be taken up again."""
        now, known = self._effects.monotonic(), self.followed(start)
        if self._log is not None and not self._source.comparable(self._log, capture.log):
            self._joining = {}  # another server may not have published them
        self._log = capture.log
        self._joining = {t: join for t, join in self._joining.items() if known.get(t) != join.known}
        opened = self._reopened(capture, wanted)
        again = frozenset(table for table, _ in opened)
        if self._looked is not None and all(t in self._joining or (t, i) in self.refused for t, i in opened):
            hurry = capture.redefined.is_set() or (bool(self._away) and not self._goes_on)
            if now - self._looked <= (min(AGAIN_SECONDS, self._seconds) if hurry else self._seconds):
                return
        survey = self._survey(start, capture)
        known, first = self.followed(start), self._looked is None
        self._looked = self._effects.monotonic()
        self.looks += 1
        self.unfit = dict(survey.unfit)
        self._see_names(start, survey)
        waits = {t for t in survey.gone if not self._knows(t)}
        self._seen = _Seen(
            {t: f for t, f in survey.tables.items() if t in known and t not in survey.replaced and known[t] != f},
            # a table that has taken the name of another followed table is followed under that name
            (survey.gone - waits) | {t for t, now in survey.away.items() if now in known},
            frozenset(t for t in known if t not in survey.tables and t not in survey.away and t not in survey.gone),
        )
        self.refused = {
            (t, i): survey.left_out.get(t, "it does not exist") for t, i in opened if t not in survey.tables
        }
        out = start.aside.keys() - again
        self._admit(known, _without(survey, out), waits, again & survey.tables.keys(), first=first)

    def _reopened(self, capture: Capture, wanted: Set[Failure]) -> list[Failure]:
        """Those of the tables for which the log was opened anew. Only then the source describes them anew: a definition
        that it refused may have been corrected."""
        self.refused = {failure: why for failure, why in self.refused.items() if failure in wanted}
        self._openings = {failure: number for failure, number in self._openings.items() if failure in wanted}
        if new := wanted - self._openings.keys():
            self._openings |= dict.fromkeys(new, capture.openings)
            capture.reconnect("tables are taken up again: " + ", ".join(sorted(str(table) for table, _ in new)))
        return [failure for failure, number in self._openings.items() if capture.openings > number]

    def _survey(self, start: Offset, capture: Capture) -> Survey:
        """Survey the tables now. If that fails, `capture.redefined` stays set, so that the next survey does not wait
        for its interval."""
        hurry = capture.redefined.is_set()
        capture.redefined.clear()
        try:
            # a server whose log was reset still sends heartbeats, but no changes
            self._source.check_position(*capture.reached)
            survey = self._source.survey(self.followed(start))
            if start.followed is None and self._earlier is None:
                self._take_over(start, survey)
                survey = self._source.survey(self.followed(start))
        except SourceError:
            if hurry:
                capture.redefined.set()
            raise
        return survey

    def _take_over(self, start: Offset, survey: Survey) -> None:
        """Handle an offset of an earlier version, without followed tables: follow those that were dumped."""
        before = set(start.tables) or set(survey.tables)
        self._earlier = {t: f for t, f in survey.tables.items() if t in before}

    def _see_names(self, start: Offset, survey: Survey) -> None:
        """Follow renamed tables further; otherwise they are unfit."""
        self._away = {t: since for t, since in self._away.items() if t in survey.away}
        for table, now in survey.away.items():
            if table not in self._away:
                self._away[table] = self._effects.monotonic()
                self._tell("table_renamed", table=str(table), name=str(now))
            dumping = table in {c.table for c in start.dumps} | {c.table for c in start.read}
            if self._goes_on and not dumping:
                continue
            if self._effects.monotonic() - self._away[table] >= AWAY_SECONDS:
                why = " and its dump has not ended" if self._goes_on else ""
                self.unfit[table] = PreconditionFailed(
                    f"table {table} was renamed to {now}{why}",
                    hint=f"rename it back and start the stream again: it then continues; or set the option renamed to "
                    f"follow, which delivers the changes of {now} as those of {table} (after its dump has ended); "
                    "or follow the new name with a new slot and a new checkpoint",
                )

    def _admit(
        self,
        known: Mapping[TableName, Followed],
        survey: Survey,
        waits: Set[TableName],
        again: Set[TableName],
        *,
        first: bool,
    ) -> None:
        """Let new and replaced tables join, and those that are taken up again. Report dropped tables that cannot be
        emptied yet."""
        away = {known[t].identity for t in survey.away}
        new = [t for t, f in survey.tables.items() if t not in known and (not f.identity or f.identity not in away)]
        left_out = {
            **survey.left_out,
            **{t: STAYS for t in (self._seen.gone | waits) & known.keys() if not self._knows(t)},
        }
        left_out |= {t: why for t, why in self.left_out.items() if why == STAYS and t not in survey.tables}
        if not self._takes_new and not first:
            later = [t for t in new if t not in self._joining and t not in again]
            left_out |= dict.fromkeys(later, "it was created while the stream runs, and newTables is tell: start again")
            new = [t for t in new if t in self._joining or t in again]
        told = {t: why for t, why in left_out.items() if self.left_out.get(t) != why}
        for table, why in told.items():
            self._tell("table_left_out", table=str(table), reason=why)
        if told:
            log.warning("not followed (%d): %s; dblog status says why", len(told), shortened(list(map(str, told))))
        self.left_out = left_out
        wanted = {**dict.fromkeys(new, "it is new"), **survey.replaced}
        wanted |= {t: "it was set aside and is taken up again" for t in wanted if t in again}
        self._joining = {t: join for t, join in self._joining.items() if t in wanted and join.known == survey.tables[t]}
        join = {t: why for t, why in wanted.items() if t not in self._joining}
        if not (join or self._seen.gone & known.keys()) or self._effects.monotonic() < self._locked_until:
            return
        try:
            # what failed before a table joins does not concern it
            failed = again | (self._source.failures().keys() - known.keys())
            if anew := {t: survey.tables[t] for t in join if t in failed}:
                self._source.follow(anew, since=self._source.latest())
            admission = self._source.admit(tuple(join))
        except TableLocked:
            self._locked_until = self._effects.monotonic() + LOCKED_SECONDS
            return
        for table, found in admission.tables.items():
            joins = _Join(found, admission.position, admission.running, self._effects.monotonic())
            self._joining = {**self._joining, table: joins}
            self._tell("table_joins", table=str(table), reason=join[table])

    @property
    def away(self) -> frozenset[TableName]:
        """Followed tables that had another name at the last survey."""
        return frozenset(self._away)

    def look_for_names(self, start: Offset) -> None:
        """Survey at once which tables are away, because a table could not be read."""
        self._see_names(start, self._source.survey(self.followed(start)))

    # -- the next offset -------------------------------------------------------------------------------------

    def pending(self, start: Offset) -> bool:
        """Whether some later offset will change what is followed. A table that is emptied first needs a later position.
        If the stream writes no watermarks that may never come, so it is waited for only for a while."""
        emptied = set() if self._source.writes else {*self.followed(start), *start.aside}
        now = self._effects.monotonic()
        waits = {t for t, join in self._joining.items() if t not in emptied or now - join.since < LATER_SECONDS}
        waits |= {table for table, _ in self._openings.keys() - self.refused.keys()} - emptied
        return bool(waits) or bool(self._seen.gone & self.followed(start).keys())

    def due(self, start: Offset, position: int) -> bool:
        """Whether an offset at this position would change what is followed."""
        gone = self._seen.gone & self.followed(start).keys()
        return bool(gone) or any(self._is_ready(join, start, position) for join in self._joining.values())

    def at(self, start: Offset, position: int) -> Change:
        """What changes at the offset after `start` that ends at the position."""
        before = self.followed(start)
        if not (self._seen.renewed or self._seen.unwanted or self._seen.gone or self._joining):
            return Change(before)
        followed = {t: self._seen.renewed.get(t, f) for t, f in before.items() if t not in self._seen.unwanted}
        # the order of a truncate is after everything that was delivered before
        moves = start.position is None or position > start.position
        gone = [t for t in followed if t in self._seen.gone and moves]
        for table in gone:
            del followed[table]
        replaced = []
        for table, join in self._joining.items():
            anew = table in before or table in start.aside
            if (moves or not anew) and self._is_ready(join, start, position):
                replaced += [table] if anew else []
                followed[table] = join.known
        forgotten = frozenset(t for t in before if t not in followed)
        return Change(followed, (*gone, *replaced), tuple(replaced), forgotten)

    def _is_ready(self, join: _Join, start: Offset, position: int) -> bool:
        if position < join.position:
            return False
        if join.running:
            join.running = tuple(self._source.invisible(np.array(join.running, np.int64), start.coordinate))
        return not join.running

    def status(self) -> dict[str, Any]:
        return {
            "left_out": {str(t): why for t, why in self.left_out.items()},
            "joining": [str(t) for t in self._joining],
        }


def _without(survey: Survey, aside: Set[TableName]) -> Survey:
    """The survey without tables that are set aside: they are neither new nor left out."""
    tables = {t: f for t, f in survey.tables.items() if t not in aside}
    return replace(survey, tables=tables, left_out={t: why for t, why in survey.left_out.items() if t not in aside})
