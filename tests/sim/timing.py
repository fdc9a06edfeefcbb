"""A simulated stream whose work takes time: how fast a dump is, and how long changes wait, beside a busy log.

The planner with its pacer is the shipped one. Simulated are tables of numbered rows, a log that grows with the clock,
and Spark, whose batches take as long as `Costs` says. Nothing goes wrong here: `world.py` is for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from dblog.capture.effects import Effects
from dblog.capture.segments import Limit, Segment
from dblog.capture.spool import LogFile
from dblog.core.dump import Staged
from dblog.core.offset import Chunk, Followed, Key, Offset
from dblog.core.schema import Column, TableName, TableSchema
from dblog.planning.planner import Planner
from dblog.planning.settings import StreamSettings
from dblog.sources.base import Commits, Survey
from dblog.sources.table_failures import TableFailure

CAPTURED = 200_000
"""Changes that are captured per second, at most."""
BYTES = 100
"""Bytes of log per change."""
START = 1_000


@dataclass(frozen=True)
class Costs:
    """What things take, in seconds. The defaults are about those of `dblog run` into a database, on two cores."""

    batch: float = 0.3
    """A batch, beside its work."""
    change: float = 14e-6
    row: float = 25e-6
    """The delivery of a row of a dump, on one of the cores."""
    select: float = 0.004
    selected_row: float = 3e-6
    """The select of a row, on one of the cores."""
    skipped_row: float = 1e-7
    """A row that the database skips to find the next boundary."""
    table: float = 0.0
    """What the sink does for each table of a batch."""
    query: float = 0.0005
    """A query of the planner."""
    cores: int = 2


CHEAP = Costs(batch=0.055, change=2e-6, row=1.2e-6)
"""About what `readStream` into a sink that discards the rows takes."""


@dataclass
class Batch:
    """A batch that has run."""

    planned: float
    ended: float
    changes: int
    rows: int
    """Rows of dumps."""


@dataclass
class Stream:
    """A stream of tables with so many rows each, beside so many changes per second."""

    sizes: Mapping[str, int]
    changes: float | Callable[[float], int] = 0.0
    """Changes per second; or a function that has their number up to a time."""
    costs: Costs = field(default_factory=Costs)
    trigger: float = 0.0
    max_delay: float | None = None
    dump: bool = True
    clock: float = 0.0
    batches: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.schemas = {t: _schema(t) for t in (TableName("public", name) for name in self.sizes)}
        self.staged_files: dict[str, Staged] = {}
        self.tokens = 0
        settings = StreamSettings(
            dump=self.dump, parallelism=self.costs.cores, heartbeat=3600.0, max_delay=self.max_delay
        )
        effects = Effects(lambda: self.clock, lambda: self.clock, self.spend, self._token)
        source, spool = _Source(self), _Spool(self)
        self.planner = Planner(source, spool, settings, lambda versions: None, None, None, effects)  # type: ignore[arg-type]
        self.capture = _Capture(self)
        self.offset = Offset(START, followed={table: Followed() for table in self.schemas})

    # -- the clock and the log -------------------------------------------------------------------------------

    def spend(self, seconds: float) -> None:
        self.clock += seconds

    def count(self, at: float) -> int:
        """How many changes were committed up to a time."""
        return self.changes(at) if callable(self.changes) else int(at * self.changes)

    @property
    def log_end(self) -> int:
        return START + BYTES * self.count(self.clock)

    def _token(self) -> str:
        self.tokens += 1
        return f"w{self.tokens}"

    # -- Spark -----------------------------------------------------------------------------------------------

    def run(self, *, until: Callable[[], bool] | None = None, most: float = 36_000.0) -> float:
        """Run until the dumps have ended, or a condition holds. Returns the seconds that it took."""
        began = self.clock
        done = until or (lambda: bool(self.batches) and not self.offset.dumping)
        while not done():
            assert self.clock - began < most, "the dump does not end"
            self.step()
        return self.clock - began

    def step(self) -> None:
        """Plan a batch and run it, then wait for the trigger."""
        due = self.clock + self.trigger
        planned = self.clock
        end = self.planner.plan(self.offset, self.capture, Limit(nbytes=128 << 20), None)  # type: ignore[arg-type]
        assert end is not None
        if end == self.offset:
            self.clock = max(due, self.clock + 0.01)
            return
        assert self.offset.position is not None
        assert end.position is not None
        changes = (end.position - self.offset.position) // BYTES
        self.planner.deliveries.delivered(self.offset)
        work, rows = self._select(end.read), sum(self.staged_files[c.id].rows for c in end.emit)
        work += rows * self.costs.row
        tables = len({c.table for c in end.emit})
        self.clock += self.costs.batch + changes * self.costs.change + work / self.costs.cores
        self.clock += tables * self.costs.table
        self.batches.append(Batch(planned, self.clock, changes, rows))
        for chunk in self.offset.emit:
            del self.staged_files[chunk.id]
        self.offset = end
        self.clock = max(due, self.clock)

    def _select(self, chunks: Iterable[Chunk]) -> float:
        """Stage chunks; return how long their selects take together."""
        total = 0.0
        for chunk in chunks:
            extent = chunk.extent
            low, high = int(extent.after[0]) if extent.after else 0, int(extent.upto[0]) if extent.upto else 0
            rows = 0 if extent.empty else high - low
            seconds = rows * self.costs.selected_row + 0.0005
            self.staged_files[chunk.id] = Staged(chunk.id, rows, seconds, self.schemas[chunk.table].version)
            total += seconds + self.costs.select
        return total

    # -- what came of it -------------------------------------------------------------------------------------

    def intervals(self, after: float = 0.0) -> list[float]:
        """The times from one plan to the next."""
        times = [batch.planned for batch in self.batches if batch.planned >= after]
        return np.diff(times).tolist()

    def delays(self, after: float = 0.0) -> np.ndarray:
        """How long each change waited from its commit to the end of its batch."""
        counts = np.cumsum([batch.changes for batch in self.batches])
        commits = np.array([self._committed(n) for n in range(int(counts[-1]))])
        ended = np.repeat([b.ended for b in self.batches], [b.changes for b in self.batches])
        late: np.ndarray = (ended - commits)[commits >= after]
        return late

    def _committed(self, number: int) -> float:
        assert not callable(self.changes)
        return (number + 1) / self.changes


class _Source:
    """As much of a source as planning uses."""

    writes = True
    default_schema = "public"

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def _ask(self) -> None:
        self._stream.spend(self._stream.costs.query)

    def survey(self, followed: Mapping[TableName, Followed]) -> Survey:
        return Survey(dict(followed))

    def failures(self) -> dict[TableName, TableFailure]:
        return {}

    def describe(self, tables: Collection[TableName]) -> dict[TableName, TableSchema]:
        self._ask()
        return {table: self._stream.schemas[table] for table in tables}

    def check_position(self, position: int, coordinate: str | None) -> None: ...

    def comparable(self, coordinate: str | None, other: str | None) -> bool:
        return True

    def latest(self) -> int:
        self._ask()
        return self._stream.log_end

    def write_watermark(self, token: str) -> int:
        self._stream.spend(0.003)
        return self._stream.log_end

    def invisible(self, xids: Any, coordinate: str | None) -> tuple[int, ...]:
        return ()

    def key(self, table: TableName) -> str:
        self._ask()
        return "id bigint"

    def last_key(self, table: TableName) -> Key | None:
        self._ask()
        size = self._stream.sizes[table.name]
        return (str(size),) if size else None

    def small(self, tables: Sequence[TableName], rows: int) -> dict[TableName, tuple[str, Key | None]]:
        """None: the case of a source that looks at each table alone."""
        return {}

    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        at, found = int(after[0]) if after else 0, list[Key]()
        while at < int(upto[0]) and len(found) < count:
            self._ask()
            self._stream.spend(rows * self._stream.costs.skipped_row)
            at = min(at + rows, int(upto[0]))
            found.append((str(at),))
        return found


class _Capture:
    """The log, captured as it grows."""

    lag = 0.0
    log = None

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.redefined = threading.Event()
        self._at = (stream.clock, START)

    @property
    def position(self) -> int:
        now, (then, position) = self._stream.clock, self._at
        self._at = now, min(self._stream.log_end, position + BYTES * int((now - then) * CAPTURED + 1))
        return self._at[1]

    @property
    def reached(self) -> tuple[int, None]:
        return self.position, None

    def coordinate(self, position: int) -> None: ...

    def wait_token(self, token: str, bound: int, log: str | None = None) -> int:
        while self.position < bound:
            self._stream.spend(0.001)
        return bound

    def wait_more(self, beyond: int) -> None: ...

    def wait_rows(self, beyond: int, timeout: float, *, eager: bool = False) -> bool:
        deadline = self._stream.clock + timeout
        while self.position <= beyond:
            if self._stream.clock >= deadline:
                return False
            self._stream.spend(0.002)
        return True

    def between(self, start: int, end: int, followed: Any) -> list[Segment]:
        rows = (end - start) // BYTES
        if not rows:
            return []
        table = next(iter(self._stream.schemas))
        file = LogFile("log", table, self._stream.schemas[table].version, rows, 0)
        positions = np.arange(start + BYTES, end + 1, BYTES)
        numbers = np.arange(1, rows + 1)
        commits = Commits(positions, positions, numbers, numbers * BYTES)
        return [Segment(start, end, (file,), commits, {}, rows * BYTES, self._stream.clock)]


class _Spool:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def staged(self, chunk_id: str) -> Staged | None:
        return self._stream.staged_files.get(chunk_id)

    def noted(self, chunk_id: str) -> dict[str, int]:
        return {"rows": self._stream.staged_files[chunk_id].rows, "dropped": 0}

    def remove_chunks(self, ids: Collection[str]) -> None: ...


def _schema(table: TableName) -> TableSchema:
    return TableSchema(table, (Column("id", "bigint", pa.int64()),), ("id",))
