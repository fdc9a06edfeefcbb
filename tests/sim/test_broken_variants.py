"""The simulated world has teeth: every rule, once it is broken in the shipped code, is missed within a few hundred
histories.

A rule that no history misses would be either superfluous or untested. Each variant changes the code that runs in
production: it replaces a function, or orders the steps of a method in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dblog.capture import segments
from dblog.capture.capture import Capture
from dblog.core import dump, window
from dblog.core.dump import OWN, Orders, Staged
from dblog.core.event import Op
from dblog.core.offset import Chunk, Cursor, Offset
from dblog.core.schema import TableSchema
from dblog.planning.engine import Engine
from dblog.planning.following import Change, Following
from dblog.planning.orders import Requests
from dblog.planning.planner import Planner
from dblog.sources.base import Origin
from dblog.sources.table_failures import TableFailures
from dblog.work import tasks
from tests.sim.database import Violation, within
from tests.sim.source import Selected, SimSource
from tests.sim.spool import SimSpool
from tests.sim.world import Odds, tell

Patch = pytest.MonkeyPatch
Log = Iterator[pa.RecordBatch]


# -- the window ----------------------------------------------------------------------------------------------


def no_reconciliation(patch: Patch) -> None:
    """Chunk rows are delivered whatever the log of the window says."""
    patch.setattr(tasks, "survivors", lambda rows, key, log: pa.array([True] * rows.num_rows))


def high_watermark_before_the_select(patch: Patch) -> None:
    """The driver writes the watermark, then selects what is missing."""
    _staged_after_the_watermark(patch, before=Planner.staged)


def files_listed_after_the_high_watermark(patch: Patch) -> None:
    """A late task stages its chunk between the watermark and the look at the spool, and is taken for one in time."""
    real = Planner._stage
    noted: dict[str, Staged] = {}

    def stage(self: Planner, start: Offset) -> Mapping[str, Staged]:
        noted.clear()
        noted.update(real(self, start))
        self._late = lambda: noted.update(self.staged((*start.emit, *start.read)))  # type: ignore[attr-defined]
        return noted

    patch.setattr(Planner, "_stage", stage)
    _after_the_watermark(patch)


def _staged_after_the_watermark(patch: Patch, before: Callable[..., Mapping[str, Staged]]) -> None:
    real = Planner._stage
    noted: dict[str, Staged] = {}

    def stage(self: Planner, start: Offset) -> Mapping[str, Staged]:
        noted.clear()
        noted.update(before(self, (*start.emit, *start.read)))
        self._late = lambda: noted.update(real(self, start))  # type: ignore[attr-defined]
        return noted

    patch.setattr(Planner, "_stage", stage)
    _after_the_watermark(patch)


def _after_the_watermark(patch: Patch) -> None:
    real = Planner._watermark

    def watermark(self: Planner, capture: Capture) -> tuple[str, int]:
        found = real(self, capture)
        self._late()  # type: ignore[attr-defined]
        return found

    patch.setattr(Planner, "_watermark", watermark)


def low_watermark_after_the_select(patch: Patch) -> None:
    """The rows of a round were read before the watermark that opens it."""
    real = Planner._end_window

    def end_window(self: Planner, start: Offset, *rest: Any) -> Offset:
        database, spool = self._source._database, self._spool  # type: ignore[attr-defined]
        before = {table: dict(rows) for table, rows in database.rows.items()}
        end = real(self, start, *rest)
        for chunk in end.read:
            rows = {k: r for k, r in before[chunk.table].items() if within(chunk.table, k, chunk.extent)}
            selected = Selected(chunk.table, rows)
            spool.stage(chunk.id, selected.schema, selected.read)
        return end

    patch.setattr(Planner, "_end_window", end_window)


def only_the_new_key_of_a_key_update(patch: Patch) -> None:
    """The delete that a key update begins with evicts no chunk row."""

    def moved(batch: pa.RecordBatch) -> Sequence[bool]:
        rows = list(zip(*(batch.column(c).to_pylist() for c in ("_op", "_lsn", "_seq")), strict=True))
        return [not (op == Op.delete and (Op.create, lsn, seq + 1) in rows) for op, lsn, seq in rows]

    _touching_only(patch, moved)


def truncate_evicts_nothing(patch: Patch) -> None:
    _touching_only(patch, lambda batch: pc.not_equal(batch.column("_op"), int(Op.truncate)).to_pylist())


def _touching_only(patch: Patch, keep: Callable[[pa.RecordBatch], Sequence[bool]]) -> None:
    real = tasks._touching

    def touching(spool: Any, found: tasks.Window, schema: TableSchema) -> Log:
        return (batch.filter(pa.array(keep(batch), pa.bool_())) for batch in real(spool, found, schema))

    patch.setattr(tasks, "_touching", touching)


def no_completion(patch: Patch) -> None:
    """A value that the log left out is dropped with the chunk row that has it."""
    patch.setattr(tasks, "complete", lambda changes, key, chunks, others=(): changes)


def completed_whatever_the_window_says(patch: Patch) -> None:
    """A value is taken from a chunk row although the window has changed it."""
    patch.setattr(window, "_left_out", lambda changes, key, rows: _Everything())


class _Everything(dict[Any, Any]):
    def __missing__(self, key: Any) -> set[str]:
        return {"doc"}


def holes_stay_holes(patch: Patch) -> None:
    """Rows that the log leaves incomplete are not read again."""
    patch.setattr(segments, "note_holes", lambda holes, schema, batch: None)


# -- visibility ----------------------------------------------------------------------------------------------


def no_visibility_barrier(patch: Patch) -> None:
    """A round opens although a select may miss what the log has shown."""
    real = Planner._mark
    patch.setattr(Planner, "_mark", lambda self, *args: replace(real(self, *args), suspects=()))


def suspects_not_in_the_offset(patch: Patch) -> None:
    _without(patch, "suspects")


def suspects_of_the_start_forgotten(patch: Patch) -> None:
    """A new stream does not note the transactions that were in progress when its log began."""
    real = Engine._first
    patch.setattr(Engine, "_first", lambda self: replace(real(self), suspects=()))


def origin_looks_before_its_position(patch: Patch) -> None:
    """The transactions in progress are listed first, the position of a new stream is taken later."""

    def origin(self: SimSource) -> Origin:
        suspects = self._database.in_progress()
        for _ in range(8):
            self._world.breath()
        return Origin(self._database.end, suspects)

    patch.setattr(SimSource, "origin", origin)
    real = Engine._first

    def first(self: Engine) -> Offset:
        """Without the transactions that are in progress when the tables are admitted, which is later."""
        with Patch.context() as later:
            later.setattr(SimSource, "admit", lambda source, tables: replace(admit(source, tables), running=()))
            return real(self)

    admit = SimSource.admit
    patch.setattr(Engine, "_first", first)


def a_table_joins_while_older_transactions_run(patch: Patch) -> None:
    """A table joins although transactions run whose changes of it the log lacks."""
    patch.setattr(Following, "_is_ready", lambda self, join, start, position: position >= join.position)


# -- files and restarts --------------------------------------------------------------------------------------


def last_writer_wins(patch: Patch) -> None:
    """A late task replaces the staged chunk, and whatever file is there is delivered."""

    def publish(self: SimSpool, chunk_id: str, staged: Staged) -> Staged:
        self.markers[chunk_id] = staged
        return staged

    patch.setattr(SimSpool, "publish", publish)
    patch.setattr(window, "pinned", lambda chunk, stamp: replace(chunk, stamp="any"))
    real = SimSpool.read_chunk
    patch.setattr(
        SimSpool, "read_chunk", lambda self, chunk, stamp, *rest: real(self, chunk, self.markers[chunk].stamp)
    )
    staged = Planner.staged
    any_stamp = {"stamp": "any"}
    patch.setattr(
        Planner, "staged", lambda self, chunks: {i: replace(s, **any_stamp) for i, s in staged(self, chunks).items()}
    )


def lost_chunks_stay_lost(patch: Patch) -> None:
    """The planner takes every chunk it has pinned for delivered."""
    real = Planner.staged

    def staged(self: Planner, chunks: Iterable[Chunk]) -> dict[str, Staged]:
        chunks = tuple(chunks)
        return {**real(self, chunks), **{c.id: Staged(c.stamp, 1, 0.1) for c in chunks if c.stamp is not None}}

    patch.setattr(Planner, "_end_window", _believing(Planner._end_window, real, staged, patch))
    patch.setattr(Planner, "_end_anywhere", _believing(Planner._end_anywhere, real, staged, patch))


def _believing(method: Any, real: Any, believed: Any, patch: Patch) -> Any:
    """The method, which believes that all pinned chunks are there; the tasks look for themselves."""

    def call(self: Planner, *args: Any) -> Any:
        patch.setattr(Planner, "staged", believed)
        try:
            return method(self, *args)
        finally:
            patch.setattr(Planner, "staged", real)

    return call


def acknowledged_before_the_commit(patch: Patch) -> None:
    """A position is acknowledged when its batch is planned: a driver that starts anew finds the log forgotten."""
    real = Engine.next

    def planned(self: Engine, *args: Any) -> Offset:
        end = real(self, *args)
        if self._capture is not None:
            self._capture._acknowledged = end.position or 0
        return end

    patch.setattr(Engine, "next", planned)


def log_read_on_from_the_end_of_a_repeated_batch(patch: Patch) -> None:
    """A new life goes on behind the batch that it repeats, although the files of the batch are lost."""
    real = Engine._repeat

    def repeat(self: Engine, start: Offset, end: Offset) -> None:
        follow = self._follow
        self._follow = lambda at: follow(end)  # type: ignore[method-assign]
        real(self, start, end)

    patch.setattr(Engine, "_repeat", repeat)


def a_round_is_charged_in_every_attempt(patch: Patch) -> None:
    """A connection that breaks at the watermark charges and tells the selects of the round once more."""
    watermark, was_read = Planner._watermark, Planner._was_read

    def note(self: Planner, *read: Any) -> None:
        self._read = read  # type: ignore[attr-defined]

    def charged(self: Planner, capture: Capture) -> tuple[str, int]:
        was_read(self, *self._read)  # type: ignore[attr-defined]
        return watermark(self, capture)

    patch.setattr(Planner, "_was_read", note)
    patch.setattr(Planner, "_watermark", charged)


# -- requests ------------------------------------------------------------------------------------------------


def held_dumps_are_forgotten(patch: Patch) -> None:
    """A dump that is paused loses its place."""
    real = Requests.orders

    def orders(self: Requests, start: Offset) -> Orders:
        found = real(self, start)
        return replace(found, cancelled=found.cancelled | found.held)

    patch.setattr(Requests, "orders", orders)


def requests_not_in_the_offset(patch: Patch) -> None:
    """A new driver believes that a request which was taken has been served."""
    real = Offset.from_json

    def read(data: Mapping[str, Any]) -> Offset:
        offset = real(data)
        return replace(offset, dumps=tuple(c for c in offset.dumps if c.dump in OWN))

    patch.setattr(Offset, "from_json", read)


def shared_requests_read_nothing_by_themselves(patch: Patch) -> None:
    """A request that shares a dump's pass does not read what lies before the key where it joined."""
    real = dump._shared

    def shared(cursors: Sequence[Cursor], new: Cursor) -> list[Cursor]:
        return real(cursors, new)[: max(len(cursors), 1)]

    patch.setattr(dump, "_shared", shared)


def requests_taken_and_not_noted(patch: Patch) -> None:
    """A request is taken again in every batch: its dump never ends."""
    _without(patch, "taken")


def _without(patch: Patch, field: str) -> None:
    real = Offset.to_json
    patch.setattr(Offset, "to_json", lambda self: {k: v for k, v in real(self).items() if k != field})


# -- tables that are set aside -------------------------------------------------------------------------------


def set_aside_tables_not_in_the_offset(patch: Patch) -> None:
    """A new driver takes a table that was set aside for a new one."""
    _without(patch, "aside")


def a_table_taken_up_again_is_not_emptied(patch: Patch) -> None:
    """Rows that were deleted while the table was set aside stay in the target."""
    real = Planner._changed

    def changed(self: Planner, end: Offset, change: Change) -> Offset:
        return replace(real(self, end, change), emptied={})

    patch.setattr(Planner, "_changed", changed)


def a_table_taken_up_again_is_not_dumped(patch: Patch) -> None:
    """A table that was set aside is only emptied and followed."""
    real = Following.at

    def at(self: Following, start: Offset, position: int) -> Change:
        found = real(self, start, position)
        return replace(found, replaced=tuple(t for t in found.replaced if t not in start.aside))

    patch.setattr(Following, "at", at)


def old_log_fails_a_table_again(patch: Patch) -> None:
    """What could not be decoded before a table is taken up again sets it aside once more, for ever."""
    patch.setattr(TableFailures, "begin", lambda self, tables, position: None)


HISTORIES = 600
"""Within so many histories a broken variant must be found."""

VARIANTS: list[tuple[Callable[[Patch], None], Odds]] = [
    (no_reconciliation, Odds()),
    (high_watermark_before_the_select, Odds(unread=0.5)),
    (files_listed_after_the_high_watermark, Odds(unread=0, zombie=0.9, locked=0.9, wake=0.05, readback=30)),
    (low_watermark_after_the_select, Odds()),
    (only_the_new_key_of_a_key_update, Odds()),
    (truncate_evicts_nothing, Odds(truncate=0.15)),
    (no_completion, Odds()),
    (completed_whatever_the_window_says, Odds()),
    (holes_stay_holes, Odds()),
    (no_visibility_barrier, Odds(slow=0.6)),
    (suspects_not_in_the_offset, Odds(slow=0.6)),
    (suspects_of_the_start_forgotten, Odds(slow=1.0, batches=4)),
    (origin_looks_before_its_position, Odds(slow=1.0, batches=4)),
    (a_table_joins_while_older_transactions_run, Odds(long=0.5, joins=0.3, batches=12)),
    (last_writer_wins, Odds(zombie=0.8, wake=0.1)),
    (lost_chunks_stay_lost, Odds(loss=0.03)),
    (acknowledged_before_the_commit, Odds(crash=0.03)),
    (log_read_on_from_the_end_of_a_repeated_batch, Odds(loss=0.03, crash=0.03)),
    (a_round_is_charged_in_every_attempt, Odds(cut=0.05)),
    (held_dumps_are_forgotten, Odds(request=0.9, batches=12)),
    (requests_not_in_the_offset, Odds(request=0.5)),
    (shared_requests_read_nothing_by_themselves, Odds(request=0.6)),
    (requests_taken_and_not_noted, Odds(request=0.5)),
    (set_aside_tables_not_in_the_offset, Odds(bad=0.04, unfit=0.05)),
    (a_table_taken_up_again_is_not_emptied, Odds(bad=0.04, unfit=0.05)),
    (a_table_taken_up_again_is_not_dumped, Odds(bad=0.04, unfit=0.05)),
    (old_log_fails_a_table_again, Odds(bad=0.04, unfit=0.05)),
]


@pytest.mark.parametrize(("variant", "odds"), VARIANTS, ids=lambda v: v.__name__ if callable(v) else "")
def test_a_broken_variant_is_caught(variant: Callable[[Patch], None], odds: Odds, monkeypatch: Patch) -> None:
    variant(monkeypatch)
    with pytest.raises(Violation):
        _tell_all(odds)


def _tell_all(odds: Odds) -> None:
    for seed in range(HISTORIES):
        tell(seed, odds)


@pytest.mark.parametrize("odds", list(dict.fromkeys(o for _, o in VARIANTS)), ids=str)
def test_the_same_odds_do_not_trouble_the_whole_algorithm(odds: Odds) -> None:
    for seed in range(40):
        tell(seed, odds)
