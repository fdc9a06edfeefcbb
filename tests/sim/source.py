"""A simulated source: the protocols of `sources.base` over the simulated database. And the thread of capture, which
runs whenever the world lets it.

The driver's calls take a breath, in which anything may happen, and lose their connection now and then, before or after
they have done their work. Those of the executors and of capture do not: the world itself decides when these run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from dblog.capture.capture import Capture
from dblog.core.event import Op, change_schema
from dblog.core.offset import Extent, Followed, Key
from dblog.core.schema import TableName, TableSchema
from dblog.errors import ConnectionLost, PreconditionFailed, TableLocked, ValueRefused
from dblog.sources.base import Admitted, Commits, Origin, Run, Survey
from dblog.sources.table_failures import TableFailure, TableFailures
from tests.sim.database import LEFT_OUT, TABLES, Change, Database, Entry, Id, Row, is_bad, text

NO_NUMBERS = np.empty(0, np.int64)
NO_NAMES = np.empty(0, np.object_)
ARROW = {table: change_schema(schema.arrow) for table, schema in TABLES.items()}


class Surroundings(Protocol):
    """What the world is to its source."""

    database: Database
    captured: list[TableName]
    unfit: set[TableName]
    odds: Any

    def breath(self) -> None: ...

    def pause(self) -> None: ...

    def cut(self) -> bool: ...

    def locked(self, odds: float) -> bool: ...

    def reads_log(self) -> bool: ...

    def now(self) -> float: ...

    def note(self, line: str) -> None: ...


class SimSource:
    """The driver's face of the source."""

    default_schema = "public"
    decoding = ""

    def __init__(self, world: Surroundings, *, writes: bool) -> None:
        self.writes = writes
        self._world = world
        self._database = world.database
        self.decoded = TableFailures()

    def begin_life(self) -> None:
        """A new process has not decoded anything yet."""
        self.decoded = TableFailures()

    def _asked(self) -> None:
        """A call goes to the database: anything may happen on its way."""
        self._world.breath()
        if self._world.cut():
            self._world.note("a call of the driver loses its connection")
            raise ConnectionLost("the connection broke")

    def _answered(self) -> None:
        """The database has done what it was asked for; its answer may be lost."""
        if self._world.cut():
            raise ConnectionLost("the connection broke before the answer came")

    # -- the start -------------------------------------------------------------------------------------------

    def prepare(self, **_: Any) -> None:
        self._asked()

    def follow(self, tables: Mapping[TableName, Followed], *, since: int | None = None) -> None:
        self._asked()
        if since is not None:
            self.decoded.begin(tables, since)

    def failures(self) -> Mapping[TableName, TableFailure]:
        return self.decoded.found

    def unfit(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        self._asked()
        return {t: "unfit" for t in tables if t in self._world.unfit}

    def origin(self) -> Origin:
        self._asked()
        position = self._database.end
        self._world.pause()
        return Origin(position, self._database.in_progress())

    def admit(self, tables: Collection[TableName]) -> Admitted:
        self._asked()
        found = [self._database.publish(t) for t in tables]
        self._answered()
        position = max([self._database.end, *(p.position for p in found)])
        return Admitted({t: Followed() for t in tables}, position, self._database.in_progress())

    # -- the tables ------------------------------------------------------------------------------------------

    def tables(self) -> Mapping[TableName, TableSchema]:
        self._asked()
        return {t: TABLES[t] for t in self._world.captured}

    def survey(self, followed: Mapping[TableName, Followed]) -> Survey:
        self._asked()
        unfit = {t: PreconditionFailed(f"table {t} is unfit") for t in followed if t in self._world.unfit}
        out = {t: "unfit" for t in self._world.captured if t in self._world.unfit and t not in followed}
        tables = {t: Followed() for t in self._world.captured if t not in out}
        return Survey(tables, left_out=out, unfit=unfit)

    def describe(self, tables: Collection[TableName]) -> Mapping[TableName, TableSchema]:
        self._asked()
        return {t: TABLES[t] for t in tables}

    def estimate(self, table: TableName) -> int | None:
        self._asked()
        return len(self._database.rows[table])

    def missing(self, table: TableName, keys: Sequence[Key]) -> list[Key]:
        self._asked()
        there = {text(k) for k in self._database.rows[table]}
        return [k for k in keys if k not in there]

    # -- the log ---------------------------------------------------------------------------------------------

    def latest(self) -> int:
        self._asked()
        return self._database.end

    def check_position(self, position: int, coordinate: str | None) -> None:
        self._asked()

    def stream(self, position: int, coordinate: str | None) -> SimStream:
        return SimStream(self._world, position, self.decoded)

    def coordinate(self, coordinate: str | None, commits: Commits, position: int) -> None:
        return None

    def comparable(self, coordinate: str | None, other: str | None) -> bool:
        return True

    def repeat(self, position: int, coordinate: str | None, end: str | None, upto: int) -> None:
        self._asked()

    def write_watermark(self, token: str) -> int:
        self._asked()
        position = self._database.watermark(token)
        self._world.note(f"watermark {position}")
        self._answered()
        return position

    def high_watermark(self) -> int:
        self._asked()
        self._world.note(f"high watermark {self._database.end}")
        return self._database.end

    def invisible(self, xids: np.ndarray, coordinate: str | None) -> tuple[int, ...]:
        self._asked()
        return self._database.invisible(xids.tolist())

    # -- chunks ----------------------------------------------------------------------------------------------

    def key(self, table: TableName) -> str:
        self._asked()
        return "key"

    def last_key(self, table: TableName) -> Key | None:
        self._asked_for(table, self._world.odds.unbounded)
        return self._database.last_key(table)

    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        self._asked_for(table, self._world.odds.unbounded)
        return self._database.cuts(table, after, upto, rows, count)

    def small(self, tables: Sequence[TableName], rows: int) -> dict[TableName, tuple[str, Key | None]]:
        self._asked_for(tables[0], self._world.odds.unbounded)
        known = [t for t in tables if not self._world.locked(self._world.odds.unbounded)]
        return {
            t: ("key", last)
            for t in known
            if (last := self._database.last_key(t)) is None or self._database.cuts(t, None, last, rows, 1) == [last]
        }

    def select(self, table: TableName, extent: Extent, key: str | None) -> Selected:
        self._asked_for(table, self._world.odds.locked)
        selected = Selected(table, self._database.select(table, extent))
        self._world.note(f"driver selects {selected}")
        self._answered()
        return selected

    def _asked_for(self, table: TableName, locked: float) -> None:
        self._asked()
        if self._world.locked(locked):
            self._world.note(f"{table.name} is locked")
            raise TableLocked(f"table {table} is locked")

    # -- people ----------------------------------------------------------------------------------------------

    def identity(self) -> Mapping[str, str]:
        return {}

    def health(self) -> Mapping[str, Any]:
        return {"latest": self._database.end}


class ExecutorSource:
    """The face of the source that a task on an executor uses."""

    def __init__(self, database: Database, note: Callable[[str], None], who: str) -> None:
        self._database = database
        self._note = note
        self._who = who

    def select(self, table: TableName, extent: Extent, key: str | None) -> Selected:
        selected = Selected(table, self._database.select(table, extent))
        self._note(f"{self._who} selects {selected}")
        return selected


class Selected:
    """The rows of one statement, so of one snapshot."""

    def __init__(self, table: TableName, rows: Mapping[Id, Row]) -> None:
        self.schema = TABLES[table]
        self._rows = rows

    def read(self, take: Callable[[pa.RecordBatch], None]) -> None:
        rows, schema = self._rows, self.schema
        check_documents(schema.table, (r.doc for r in rows.values()))
        columns = [*([k[i] for k in rows] for i in range(len(schema.key))), [r.v for r in rows.values()]]
        columns.append([r.doc for r in rows.values()])
        if rows:
            take(_batch(columns, schema.arrow, len(rows)))

    def __str__(self) -> str:
        shown = (f"{'/'.join(text(k))} v{r.v} {r.doc}" for k, r in self._rows.items())
        return f"{self.schema.table.name}: {', '.join(shown) or 'nothing'}"


class SimStream:
    """The log from a position on; a read brings some transactions, or none yet."""

    coordinate = None
    passing = False

    def __init__(self, world: Surroundings, position: int, decoded: TableFailures) -> None:
        self._world = world
        self._database = world.database
        self._decoded = decoded
        self.idle_position = position
        self.heard = world.now()

    def read(self, timeout: float, *, eager: bool = False) -> list[Run]:
        if not self._world.reads_log():
            return []
        if self._world.cut():
            raise ConnectionLost("the connection of the log broke")
        self.heard = self._world.now()
        entries = self._database.read(self.idle_position, self._database.end)
        if not entries:
            return []
        self.idle_position = entries[-1].end
        runs: list[Run] = []
        first = 0
        for at, entry in enumerate(entries, 1):
            if entry.token is not None or at == len(entries):
                runs.append(self._run(entries[first:at]))
                first = at
        return runs

    @property
    def more(self) -> bool:
        return self.idle_position < self._database.end

    def _run(self, entries: Sequence[Entry]) -> Run:
        changes: dict[TableName, list[Change]] = {}
        rows: list[int] = []
        count = 0
        for entry in entries:
            for change in self._database.decoded(entry):
                changes.setdefault(change.table, []).append(change)
                count += 1
            rows.append(count)
        numbers = np.array([[e.end for e in entries], [e.xid for e in entries], rows], np.int64)
        nbytes = numbers[2] * 10
        batches = [(TABLES[table], self._batch(table, found)) for table, found in changes.items()]
        return Run(
            [(schema, batch) for schema, batch in batches if batch is not None],
            Commits(numbers[0], numbers[1], numbers[2], nbytes, NO_NAMES, NO_NUMBERS),
            entries[-1].token,
            count * 10,
            int(self._world.now() * 1e6),
        )

    def _batch(self, table: TableName, changes: Sequence[Change]) -> pa.RecordBatch | None:
        def decode(part: slice) -> pa.RecordBatch:
            check_documents(table, (c.doc for c in changes[part]))
            return change_batch(table, changes[part])

        return self._decoded.decoded(table, np.array([c.lsn for c in changes], np.int64), decode)

    def redefined(self) -> bool:
        return False

    def acknowledge(self, position: int) -> None:
        self._database.acknowledge(position)

    def close(self) -> None:
        pass


class Flag:
    """An event that nobody waits for: here time passes only in breaths."""

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._set


class SimCapture(Capture):
    """The real capture without its thread: it takes a turn whenever the world lets it, and while the driver waits."""

    def __init__(self, world: Any, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._world = world
        self._wanted = self._stopped = self.redefined = Flag()  # type: ignore[assignment]
        self._stream: Any = None

    def start(self) -> None:
        self._world.capture = self

    def stop(self) -> None:
        pass

    def turn(self) -> None:
        """What the thread does between two breaths."""
        try:
            if self._stream is None:
                self._stream = self._open_log()
            if self._open.dirty or self._stream.more or self._leave is not None:
                self._turn(self._stream)
            else:  # as the turn would, at less cost
                self._stream.acknowledge(self._acknowledged)
        except ConnectionLost:
            self._open.abort()
            self._stream = None

    def _wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        deadline = self._world.now() + timeout
        self._waiting += 1
        try:
            while not ready():
                if self._world.now() >= deadline:
                    return False
                self._world.pass_time(timeout / 5)
                self._world.breath()
                self.turn()
        finally:
            self._waiting -= 1
        return True


def check_documents(table: TableName, docs: Iterable[str | None]) -> None:
    for doc in filter(is_bad, docs):
        raise ValueRefused(f"{doc!r} cannot be delivered", table=str(table), column="doc", value=str(doc))


def change_batch(table: TableName, changes: Sequence[Change]) -> pa.RecordBatch:
    left_out = [["doc"] if c.doc == LEFT_OUT else None for c in changes]
    columns: list[list[Any] | None] = [
        [int(c.op) for c in changes],
        [c.lsn for c in changes],
        [c.seq for c in changes],
        None,
        None,
        left_out if any(left_out) else None,
        *([None if c.id is None else c.id[i] for c in changes] for i in range(len(TABLES[table].key))),
        [None if c.op in (Op.delete, Op.truncate) else c.v for c in changes],
        [None if c.doc == LEFT_OUT else c.doc for c in changes],
    ]
    return _batch(columns, ARROW[table], len(changes))


def _batch(columns: Sequence[Sequence[Any] | None], schema: pa.Schema, size: int) -> pa.RecordBatch:
    arrays = [
        _nulls(size, kind) if column is None else pa.array(column, kind)
        for column, kind in zip(columns, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@cache
def _nulls(size: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(size, kind)
