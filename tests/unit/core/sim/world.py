"""A simulated world around the real algorithm: writers, a spool, Spark, crashes, late tasks.

`World` is one history. Everything random comes from its seed, so a seed is a history. At every step where something
else might happen in reality the world takes a *breath*: writers go on, late tasks wake up, a file may vanish, the
driver may die.

The methods of `World` up to `survivors` are what the engine does around `core`; the broken variants override them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import pyarrow as pa

from dblog.core import dump, window
from dblog.core.dump import Orders, Pace, Staged
from dblog.core.event import DUMP_SEQ, Op, change_schema
from dblog.core.offset import Chunk, Cursor, Key, Offset, Taken
from dblog.core.schema import TableName
from tests.unit.core.sim.database import LEFT_OUT, TABLES, Change, Database, Entry, Id, Row, Violation, text
from tests.unit.core.sim.store import Event, Store


@dataclass(frozen=True)
class Odds:
    """How often things happen."""

    crash: float = 0.02
    loss: float = 0.01
    zombie: float = 0.3
    """A select is left hanging and another attempt is made."""
    wake: float = 0.15
    """At each breath, that some hanging select goes on."""
    unread: float = 0.2
    """A batch whose selects never run."""
    slow: float = 0.3
    """A commit that becomes visible only later."""
    truncate: float = 0.02
    locked: float = 0.1
    """The driver cannot select a missing chunk, because someone holds the table."""
    request: float = 0.2
    """At each plan, that somebody asks for a dump, pauses one or goes on with it, or cancels it."""
    readback: int = 2
    """Breaths until a watermark comes back through the log."""
    batches: int = 7
    """Batches before the writers stop."""


@dataclass
class Asked:
    """A dump that somebody asked for."""

    id: str
    table: TableName
    keys: list[Id]
    """Only these; none for the whole table."""
    paused: bool = False
    cancelled: bool = False
    owed: set[Id] | None = None
    """The rows that were there when it was taken."""
    batch: int = -1
    """The batch that took it: what is owed comes later."""


@dataclass(frozen=True)
class File:
    stamp: str
    rows: dict[Id, Row]


class Crash(Exception):
    """The driver dies."""


Task = Generator[None, None, None]


class World:
    def __init__(self, seed: int, odds: Odds | None = None) -> None:
        self.rng = rng = Random(seed)
        self.odds = odds or Odds()
        self.database = Database(rng, slow=self.odds.slow, truncate=self.odds.truncate)
        self.store = Store(self.database, transactional=rng.random() < 0.5)
        self.spool: dict[str, File] = {}
        self.offsets: list[str] = []
        """Spark's offset log: the JSON of each batch's end."""
        self.committed = 0
        """Spark's commit log: how many batches are done."""
        self.pace = Pace(chunks=rng.choice((1, 2, 3)), rows=rng.choice((1, 2, 3)))
        self.wanted = list(TABLES) if rng.random() < 0.7 else list(TABLES)[:1]
        self.trace: list[str] | None = None
        """What happened, when someone wants to know."""
        self.zombies: list[Task] = []
        self.asked: list[Asked] = []
        self.closing = False

    # the driver: what the engine does around core.window.plan

    def plan(self, start: Offset) -> Offset:
        if start.position is None:
            return self.origin()
        orders = self.orders(start)
        active = any(not set(c.dumps) <= orders.held for c in (*start.dumps, *orders.new))
        pending = active or not set(orders.wanted) <= set(start.tables)
        if start.read or (pending and not self.invisible(start.suspects)):
            staged, position = self.end_window(start)
            token = f"{self.rng.getrandbits(64):016x}"
        else:
            staged, orders, token = self.staged(start.emit), replace(orders, wanted=()), None
            ends = [e.end for e in self.database.read(start.position, self.database.end)]
            position = self.rng.choice([start.position, *ends][-4:])
        self.breath()
        log = self.database.read(start.position, position)
        suspects = self.invisible((*start.suspects, *(e.xid for e in log)))
        self.breath()
        mark = window.Mark(position, token, suspects, self.holes(log))
        return window.plan(start, mark, staged=staged, orders=orders, pace=self.pace, boundaries=self)

    def orders(self, start: Offset) -> Orders:
        """People ask for dumps, pause and cancel them; the requests that the offset has not taken yet are taken."""
        if not self.closing and self.chance(self.odds.request):
            table = self.rng.choice(list(TABLES))
            match self.rng.choice(("ask", "ask", "pause", "resume", "cancel")):
                case "ask":
                    rows = sorted(self.database.rows[table])
                    keys = self.rng.sample(rows, min(len(rows), 2)) if self.chance(0.5) else []
                    self.asked.append(Asked(f"r{len(self.asked)}", table, keys))
                case what if self.asked:
                    asked = self.rng.choice(self.asked)
                    asked.paused = what == "pause"
                    asked.cancelled |= what == "cancel"
        first = start.taken.number + 1 if start.taken else 0
        new = self.asked[first:]
        for asked in new:
            asked.owed = set(self.database.rows[asked.table]) & set(asked.keys or self.database.rows[asked.table])
        return Orders(
            wanted=tuple(self.wanted),
            new=tuple(self.cursor(a) for a in new),
            taken=Taken("store", len(self.asked) - 1) if new else None,
            held=frozenset(a.id for a in self.asked if a.paused and not self.closing),
            cancelled=frozenset(a.id for a in self.asked if a.cancelled),
        )

    def cursor(self, asked: Asked) -> Cursor:
        if asked.keys:
            return dump.of_keys(asked.id, asked.table, [text(k) for k in asked.keys], self.key(asked.table), self.pace)
        return Cursor(asked.id, asked.table, self.pace.first_rows)

    def origin(self) -> Offset:
        position = self.database.end
        self.breath()
        return Offset(position, suspects=self.database.in_progress())

    def end_window(self, start: Offset) -> tuple[dict[str, Staged], int]:
        """1. every chunk is staged, 2. the files that count are known, 3. the high watermark is written."""
        self.select_missing(start.read)
        staged = self.staged((*start.read, *start.emit))
        self.breath()
        return staged, self.high_watermark()

    def high_watermark(self) -> int:
        """Written, and read back from the log, which takes a while."""
        position = self.database.watermark()
        self.note(f"watermark {position}")
        for _ in range(self.odds.readback):
            self.breath()
        return position

    def select_missing(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            if not self.closing and self.chance(self.odds.locked):
                continue
            for _ in self.select_task(chunk, "driver"):
                self.breath()

    def staged(self, chunks: Sequence[Chunk]) -> dict[str, Staged]:
        return {
            c.id: Staged(self.spool[c.id].stamp, len(self.spool[c.id].rows), 0.1) for c in chunks if c.id in self.spool
        }

    def invisible(self, xids: Sequence[int]) -> tuple[int, ...]:
        return self.database.invisible(xids)

    def holes(self, log: Sequence[Entry]) -> Mapping[TableName, Sequence[Key] | None]:
        found: dict[TableName, list[Key]] = {}
        for change in (c for entry in log for c in entry.changes if c.op is Op.create and c.doc == LEFT_OUT):
            found.setdefault(change.table, []).append(text(change.id))
        return {table: None if len(keys) > dump.REPAIR_LIMIT else keys for table, keys in found.items()}

    def key(self, table: TableName) -> str:
        self.breath()
        return "key"

    def last_key(self, table: TableName) -> Key | None:
        self.breath()
        return self.database.last_key(table)

    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        self.breath()
        return self.database.cuts(table, after, upto, rows, count)

    def commit(self, offset: Offset) -> None:
        """Spark is done with the batch that ended at this offset."""
        for chunk in offset.emit:
            self.spool.pop(chunk.id, None)
        if offset.position is not None:
            self.database.acknowledge(offset.position)

    def restarted(self, data: dict[str, object]) -> dict[str, object]:
        """The last offset, as a new driver reads it."""
        return data

    # the tasks of a batch

    def select_task(self, chunk: Chunk, who: str) -> Task:
        """Select and stage a chunk; it may hang at every step."""
        if chunk.id in self.spool:
            return
        yield
        rows = self.database.select(chunk.table, chunk.extent)
        if self.trace is not None:
            self.note(f"{who} selects {_shown(chunk)}: {_rows(rows)}")
        yield
        self.stage(chunk, File(f"{self.rng.getrandbits(32):08x}", rows))

    def stage(self, chunk: Chunk, file: File) -> None:
        if chunk.id not in self.spool:
            self.spool[chunk.id] = file

    def emitted(self, chunk: Chunk) -> dict[Id, Row] | None:
        file = self.spool.get(chunk.id)
        return file.rows if file is not None and file.stamp == chunk.stamp else None

    def log_task(self, start: Offset, end: Offset) -> list[Event]:
        events: list[Event] = []
        for table in TABLES:
            changes = self.changes(start, end, table)
            chunks = [r for c in end.emit if c.table == table and (r := self.emitted(c)) is not None]
            docs = [c.doc for c in changes]
            if chunks and LEFT_OUT in docs:
                done = self.complete(
                    [_change_batch(table, changes)], TABLES[table].key, [_chunk_table(table, rows) for rows in chunks]
                )
                docs = [LEFT_OUT if r["_unchanged"] else r["doc"] for batch in done for r in batch.to_pylist()]
            events += [Event(table, c.op, c.lsn, c.seq, c.id, c.v, doc) for c, doc in zip(changes, docs, strict=True)]
        return events

    def emit_task(self, start: Offset, end: Offset, chunk: Chunk) -> list[Event]:
        rows = self.emitted(chunk)
        changes = self.window_changes(self.changes(start, end, chunk.table))
        if not rows:
            return []
        table = chunk.table
        keep = self.survivors(
            _chunk_table(table, rows), TABLES[table].key, [_change_batch(table, changes)] if changes else []
        )
        assert end.position is not None
        lsn = end.position - 1
        return [
            Event(table, Op.read, lsn, DUMP_SEQ, key, row.v, row.doc)
            for (key, row), kept in zip(rows.items(), keep.to_pylist(), strict=True)
            if kept
        ]

    def changes(self, start: Offset, end: Offset, table: TableName) -> list[Change]:
        if start.position is None:
            return []
        assert end.position is not None
        log = self.database.read(start.position, end.position)
        return [c for entry in log for c in entry.changes if c.table == table]

    def window_changes(self, changes: list[Change]) -> list[Change]:
        """The changes that a chunk is held against."""
        return changes

    def complete(
        self, changes: Sequence[pa.RecordBatch], key: Sequence[str], chunks: Sequence[pa.Table]
    ) -> Sequence[pa.RecordBatch]:
        return window.complete(changes, key, chunks)

    def survivors(self, rows: pa.Table, key: Sequence[str], log: Sequence[pa.RecordBatch]) -> pa.BooleanArray:
        return window.survivors(rows, key, log)

    # Spark

    def run(self) -> None:
        """The whole history; raises Violation."""
        while not self.closing:
            try:
                self.query()
            except Crash:
                self.note("crash")
        self.store.compare()
        for asked in self.asked:
            self.check_delivered(asked)

    def check_delivered(self, asked: Asked) -> None:
        """Every row that was there when the request was taken, and still is, has been delivered since."""
        if asked.cancelled:
            return
        for key in sorted((asked.owed or set()) & set(self.database.rows[asked.table])):
            if self.store.delivered[asked.table, key] <= asked.batch:
                raise Violation(f"request {asked.id} has not delivered {asked.table}{key}")

    def query(self) -> None:
        """One life of the query: replay what was planned and not committed, then batch after batch."""
        if len(self.offsets) > self.committed:
            self.batch(self.offset(self.committed - 1), self.offset(self.committed, restarted=True))
        fresh = True
        while True:
            if not self.closing and self.committed >= self.odds.batches:
                self.database.settle()
                self.closing, self.wanted = True, list(TABLES)
            if self.committed > self.odds.batches + 60:
                raise Violation("the dump does not end")
            start = self.offset(self.committed - 1, restarted=fresh)
            fresh = False
            end = self.plan(start)
            self.breath()
            if end == start:
                if self.closing and start.position == self.database.end and not start.dumping:
                    return
                self.database.step(begin=not self.closing)
                continue
            self.offsets.append(json.dumps(end.to_json()))
            for asked in self.asked[: end.taken.number + 1 if end.taken else 0]:
                asked.batch = asked.batch if asked.batch >= 0 else self.committed
            if self.trace is not None:
                self.note(f"batch {self.committed} up to {end.position}: {_offset(end)}")
            self.breath()
            self.commit(start)
            self.breath()
            self.batch(start, self.offset(self.committed))

    def offset(self, batch: int, *, restarted: bool = False) -> Offset:
        if batch < 0:
            return Offset()
        data = json.loads(self.offsets[batch])
        return Offset.from_json(self.restarted(data) if restarted else data)

    def batch(self, start: Offset, end: Offset) -> None:
        parts = self.tasks(start, end)
        self.rng.shuffle(parts)
        events = [event for part in parts for event in part]
        if self.trace is not None:
            self.note("deliver " + "; ".join(str(e) for e in events))
        try:
            self.breath()
        except Crash:
            self.store.apply(self.committed, events, upto=self.rng.randint(0, len(events)))
            raise
        self.store.apply(self.committed, events)
        self.breath()
        self.committed += 1
        self.breath()

    def tasks(self, start: Offset, end: Offset) -> list[list[Event]]:
        """Run the tasks of a batch in any interleaving, some of them more than once."""
        selects = [] if self.chance(self.odds.unread) else list(end.read)
        running: list[Task | Chunk | None] = [*(self.select_task(c, "task") for c in selects), *end.emit, None]
        parts: dict[str | None, list[Event]] = {}
        try:
            while running:
                self.breath()
                at = self.rng.randrange(len(running))
                task = running[at]
                if task is None or isinstance(task, Chunk):
                    parts[task and task.id] = (
                        self.log_task(start, end) if task is None else self.emit_task(start, end, task)
                    )
                    if not self.chance(0.1):
                        del running[at]
                elif next(task, self) is self:
                    del running[at]
                elif self.chance(self.odds.zombie):
                    self.zombies.append(task)
                    del running[at]
                    if selects and self.chance(0.8):
                        running.append(self.select_task(self.rng.choice(selects), "second attempt"))
        finally:
            self.zombies += [t for t in running if isinstance(t, Generator)]
        return list(parts.values())

    # everything else that goes on

    def breath(self) -> None:
        if self.chance(0.6):
            done = self.database.step(begin=not self.closing)
            if done and self.trace is not None:
                self.note(f"{done[0]} up to {self.database.end}: {done[1]}")
        if self.zombies and self.chance(self.odds.wake):
            at = max(0, len(self.zombies) - self.rng.choice((1, 1, 2, 4)))
            if next(self.zombies[at], self) is self:
                del self.zombies[at]
        if self.spool and self.chance(self.odds.loss):
            lost = self.rng.choice(list(self.spool))
            del self.spool[lost]
            self.note(f"file {lost} is lost")
        if not self.closing and self.chance(self.odds.crash):
            raise Crash

    def chance(self, odds: float) -> bool:
        return self.rng.random() < odds

    def note(self, line: str) -> None:
        if self.trace is not None:
            self.trace.append(line)


def tell(world: type[World], seed: int, odds: Odds | None = None) -> World:
    """Play a history to its end; a violation says how to play it again and what happened."""
    history = world(seed, odds)
    try:
        history.run()
    except Violation as violation:
        story = "\n  ".join(told(world, seed, odds)[-60:])
        raise Violation(f"{violation}\nhistory: tell({world.__name__}, {seed}, {odds})\n  {story}") from None
    return history


def told(world: type[World], seed: int, odds: Odds | None = None) -> list[str]:
    """The story of a history, played once more."""
    history = world(seed, odds)
    history.trace = []
    with contextlib.suppress(Violation):
        history.run()
    return history.trace


def _change_batch(table: TableName, changes: Sequence[Change]) -> pa.RecordBatch:
    schema = TABLES[table]
    size = len(changes)
    gone = [c.op in (Op.delete, Op.truncate) for c in changes]
    key_columns = [[None if c.id is None else c.id[i] for c in changes] for i in range(len(schema.key))]
    columns = [
        [int(c.op) for c in changes],
        [c.lsn for c in changes],
        [c.seq for c in changes],
        [None] * size,
        [None] * size,
        [["doc"] if c.doc == LEFT_OUT else None for c in changes],
        *key_columns,
        [None if g else c.v for c, g in zip(changes, gone, strict=True)],
        [None if c.doc == LEFT_OUT else c.doc for c in changes],
    ]
    target = change_schema(schema.arrow)
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, target, strict=True)], schema=target)


def _chunk_table(table: TableName, rows: Mapping[Id, Row]) -> pa.Table:
    schema = TABLES[table]
    columns = [*([k[i] for k in rows] for i in range(len(schema.key))), [r.v for r in rows.values()]]
    columns.append([r.doc for r in rows.values()])
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema.arrow, strict=True)], schema=schema.arrow)


def _shown(chunk: Chunk) -> str:
    extent = chunk.extent
    part = " ".join("/".join(k) for k in extent.keys) if extent.keys else f"({extent.after}, {extent.upto}]"
    return f"{chunk.dump} {chunk.table.name} {part} as {chunk.id}"


def _rows(rows: Mapping[Id, Row]) -> str:
    return ", ".join(f"{'/'.join(text(k))} v{r.v} {r.doc}" for k, r in rows.items()) or "nothing"


def _offset(offset: Offset) -> str:
    emit, read = "; ".join(_shown(c) for c in offset.emit), "; ".join(_shown(c) for c in offset.read)
    return f"emit [{emit}] read [{read}] suspects {offset.suspects}"
