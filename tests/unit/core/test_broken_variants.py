"""The simulated world has teeth: every rule of the algorithm, once left out, is missed within a few hundred histories.

A rule that no history misses would be either superfluous or untested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from dblog.core.dump import INITIAL, REPAIR, Staged
from dblog.core.event import Op
from dblog.core.offset import Chunk, Offset
from tests.unit.core.sim.database import Change, Violation, within
from tests.unit.core.sim.world import File, Odds, World, tell


class NoReconciliation(World):
    """Chunk rows are delivered whatever the log of the window says."""

    def survivors(self, rows: pa.Table, key: Sequence[str], log: Sequence[pa.RecordBatch]) -> pa.BooleanArray:
        return pa.array([True] * rows.num_rows)


class HighWatermarkBeforeTheSelect(World):
    """The driver writes the watermark, then selects what is missing."""

    def end_window(self, start: Offset) -> tuple[dict[str, Staged], int]:
        position = self.high_watermark()
        self.select_missing(start.read)
        return self.staged((*start.read, *start.emit)), position


class FilesListedAfterTheHighWatermark(World):
    """A late task stages its chunk between the watermark and the look at the spool, and is taken for one in time."""

    def end_window(self, start: Offset) -> tuple[dict[str, Staged], int]:
        self.select_missing(start.read)
        position = self.high_watermark()
        return self.staged((*start.read, *start.emit)), position


class LowWatermarkAfterTheSelect(World):
    """The rows of a round were read before the watermark that opens it."""

    def plan(self, start: Offset) -> Offset:
        before = {table: dict(rows) for table, rows in self.database.rows.items()}
        end = super().plan(start)
        for chunk in end.read:
            rows = {k: r for k, r in before[chunk.table].items() if within(chunk.table, k, chunk.extent)}
            self.stage(chunk, File("early", rows))
        return end


class NoVisibilityBarrier(World):
    """A round opens although a select may miss what the log has shown."""

    def invisible(self, xids: Sequence[int]) -> tuple[int, ...]:
        return ()


class SuspectsForgottenAtRestart(World):
    def restarted(self, data: dict[str, object]) -> dict[str, object]:
        return {name: value for name, value in data.items() if name != "suspects"}


class OriginLooksBeforeItsPosition(World):
    """The transactions in progress are listed first, the position of a new stream is taken later."""

    def origin(self) -> Offset:
        suspects = self.database.in_progress()
        for _ in range(8):
            self.breath()
        return Offset(self.database.end, suspects=suspects)


class OnlyTheNewKeyOfAKeyUpdate(World):
    def window_changes(self, changes: list[Change]) -> list[Change]:
        return [c for c in changes if not c.moved]


class TruncateEvictsNothing(World):
    def window_changes(self, changes: list[Change]) -> list[Change]:
        return [c for c in changes if c.op is not Op.truncate]


class LastWriterWins(World):
    """A late task replaces the staged chunk, and whatever file is there is delivered."""

    def stage(self, chunk: Chunk, file: File) -> None:
        self.spool[chunk.id] = file

    def emitted(self, chunk: Chunk) -> dict[tuple[object, ...], object] | None:
        file = self.spool.get(chunk.id)
        return None if file is None else file.rows


class LostChunksStayLost(World):
    """The planner takes every chunk it has pinned for delivered."""

    def staged(self, chunks: Sequence[Chunk]) -> dict[str, Staged]:
        believed = {c.id: Staged(c.stamp, 1, 0.1) for c in chunks if c.stamp is not None}
        return super().staged(chunks) | believed


class NoCompletion(World):
    """A value that the log left out is dropped with the chunk row that has it."""

    def complete(
        self, changes: Sequence[pa.RecordBatch], key: Sequence[str], chunks: Sequence[pa.Table]
    ) -> Sequence[pa.RecordBatch]:
        return changes


class HolesStayHoles(World):
    def holes(self, log: object) -> dict[object, object]:
        return {}


class AcknowledgedBeforeTheCommit(World):
    """A position is acknowledged when its batch is planned: a driver that starts anew finds the log forgotten."""

    planned = 0

    def plan(self, start: Offset) -> Offset:
        end = super().plan(start)
        self.planned = end.position or 0
        return end

    def query(self) -> None:
        self.database.acknowledge(self.planned)
        super().query()


class HeldDumpsAreForgotten(World):
    """A dump that is paused loses its place."""

    def plan(self, start: Offset) -> Offset:
        held = {a.id for a in self.asked if a.paused}
        return super().plan(replace(start, dumps=tuple(c for c in start.dumps if c.dump not in held)))


class RequestsForgottenAtRestart(World):
    """A new driver believes that a request which was taken has been served."""

    def restarted(self, data: dict[str, object]) -> dict[str, object]:
        offset = Offset.from_json(data)
        own = (INITIAL, REPAIR)
        return replace(offset, dumps=tuple(c for c in offset.dumps if c.dump in own)).to_json()


class SharedRequestsReadNothingByThemselves(World):
    """A request that shares a dump's pass does not read what lies before the place where it joined."""

    def plan(self, start: Offset) -> Offset:
        end = super().plan(start)
        known = {c.dump for c in (*start.dumps, *start.read, *end.read)}
        joined = {d for c in end.dumps for d in c.also}
        return replace(end, dumps=tuple(c for c in end.dumps if c.dump in known or c.dump not in joined))


HISTORIES = 600


def _tell_all(variant: type[World], odds: Odds) -> None:
    for seed in range(HISTORIES):
        tell(variant, seed, odds)


VARIANTS: list[tuple[type[World], Odds]] = [
    (NoReconciliation, Odds()),
    (HighWatermarkBeforeTheSelect, Odds(unread=0.5)),
    (FilesListedAfterTheHighWatermark, Odds(unread=0, zombie=0.9, locked=0.9, wake=0.4, readback=12)),
    (LowWatermarkAfterTheSelect, Odds()),
    (NoVisibilityBarrier, Odds(slow=0.6)),
    (SuspectsForgottenAtRestart, Odds(slow=0.6, crash=0.08)),
    (OriginLooksBeforeItsPosition, Odds(slow=1.0, batches=4)),
    (OnlyTheNewKeyOfAKeyUpdate, Odds()),
    (TruncateEvictsNothing, Odds(truncate=0.15)),
    (LastWriterWins, Odds(zombie=0.8, wake=0.2)),
    (LostChunksStayLost, Odds(loss=0.03)),
    (NoCompletion, Odds()),
    (HolesStayHoles, Odds()),
    (AcknowledgedBeforeTheCommit, Odds()),
    (HeldDumpsAreForgotten, Odds(request=0.5)),
    (RequestsForgottenAtRestart, Odds(request=0.5, crash=0.08)),
    (SharedRequestsReadNothingByThemselves, Odds(request=0.6)),
]


@pytest.mark.parametrize(("variant", "odds"), VARIANTS, ids=lambda v: v.__name__ if isinstance(v, type) else "")
def test_a_broken_variant_is_caught(variant: type[World], odds: Odds) -> None:
    with pytest.raises(Violation):
        _tell_all(variant, odds)


@pytest.mark.parametrize("odds", list(dict.fromkeys(o for _, o in VARIANTS)), ids=str)
def test_the_same_odds_do_not_trouble_the_whole_algorithm(odds: Odds) -> None:
    for seed in range(40):
        tell(World, seed, odds)
