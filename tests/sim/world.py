"""A simulated world around the shipped engine: a database and its writers, a spool, Spark, people, crashes, late tasks.

`World` is one history. Everything random comes from its seed, and time passes only when the world says so: a seed is a
history. At every step where something else might happen in reality the world takes a *breath*: writers go on, the log
is read, late tasks wake up, a file may be lost, the driver may die.

The engine, its planner, its capture (without the thread) and the tasks are the shipped ones. Simulated are the source
(`source.py`), the files of the spool (`spool.py`), the state store (`people.py`) and what Spark does, which is here.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

from dblog.capture.effects import Effects
from dblog.capture.segments import Limit
from dblog.core.event import EMPTIED_SEQ, Op
from dblog.core.offset import Chunk, Offset
from dblog.core.schema import TableName, TableSchema
from dblog.errors import SpoolError
from dblog.planning.engine import Engine
from dblog.planning.settings import StreamSettings
from dblog.work import tasks
from tests.sim.database import LEFT_OUT, TABLES, Database, Violation
from tests.sim.people import People
from tests.sim.source import ExecutorSource, SimCapture, SimSource
from tests.sim.spool import LateSpool, SimSpool
from tests.sim.store import UNKNOWN, Event, Store


@dataclass(frozen=True)
class Odds:
    """How often things happen."""

    crash: float = 0.008
    loss: float = 0.004
    """At each breath, that a file of the spool is lost."""
    cut: float = 0.01
    """A call of the driver or the log loses its connection."""
    zombie: float = 0.3
    """A select is left hanging and another attempt is made."""
    wake: float = 0.15
    """At each breath, that some hanging select goes on."""
    unread: float = 0.2
    """A batch whose selects never run."""
    slow: float = 0.1
    """A commit that becomes visible only later."""
    truncate: float = 0.02
    long: float = 0.05
    """A transaction stays open for a while, if no other does."""
    locked: float = 0.1
    """The driver cannot select a missing chunk, because someone holds the table."""
    unbounded: float = 0.01
    """The driver cannot read the bounds of chunks, because someone holds the table."""
    joins: float = 0.1
    """At each plan, that the stream's patterns name a table which they did not name before."""
    request: float = 0.2
    """At each plan, that somebody asks for a dump, pauses one or goes on with it, or cancels it."""
    bad: float = 0.0
    """A document that cannot be delivered: its table is set aside."""
    unfit: float = 0.0
    """At each plan, that a table cannot be followed for a while."""
    retry: float = 0.3
    """At each plan, that somebody wants a table that is set aside to be taken up again."""
    readback: int = 2
    """About how many breaths the log is behind."""
    batches: int = 7
    """Batches before the writers stop."""


class Crash(BaseException):
    """The driver dies. No `except Exception` of the driver may stop that."""


Task = Generator[None, None, None]
STARTED = 1000.0
"""What the clock shows at the beginning."""
MOST_IDLE = 500
"""A history that plans nothing this often in a row does not end."""


class World:
    def __init__(self, seed: int, odds: Odds | None = None) -> None:
        self.rng = rng = Random(seed)
        self.odds = odds or Odds()
        self.clock = STARTED
        self.trace: list[str] | None = None
        """What happened, when someone wants to know."""
        self.database = Database(
            rng, slow=self.odds.slow, truncate=self.odds.truncate, long=self.odds.long, bad=self.odds.bad
        )
        self.store = Store(self.database, transactional=rng.random() < 0.5)
        self.spool = SimSpool(self.token, self.pause)
        self.source = SimSource(self, writes=rng.random() < 0.8)
        self.people = People(self)
        self.offsets: list[str] = []
        """Spark's offset log: the JSON of each batch's end."""
        self.read_offsets: list[Offset] = []
        """The same, as read from it."""
        self.committed = 0
        """Spark's commit log: how many batches are done."""
        self.captured = list(TABLES) if rng.random() < 0.6 else list(TABLES)[:1]
        """The tables that the stream's patterns name."""
        self.settings = StreamSettings(
            chunk_rows=rng.choice((1, 2, 3, 1, 2, 3, None)),
            parallelism=rng.choice((1, 2, 3)),
            read_ahead=rng.choice((20, 1 << 20)),
            heartbeat=rng.choice((0.5, 2.0)),
            set_aside=self.odds.bad > 0 or self.odds.unfit > 0,
        )
        self.unfit: set[TableName] = set()
        """Tables that cannot be followed now."""
        self.drains = rng.random() < 0.3
        """Whether the stream is asked in the end to deliver what is there and stop, as by `Trigger.AvailableNow`."""
        if self.drains:
            self.captured = list(TABLES)
        self.limit = Limit(rows=rng.choice((None, None, 1, 3)))
        self.effects = Effects(self.now, self.now, self.sleep, self.token)
        for _ in range(rng.randrange(12)):  # the writers are there before the stream
            self.database.step()
        self.capture: SimCapture | None = None
        self.zombies: list[Task] = []
        self.closing = False

    # -- Spark -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The whole history; raises Violation."""
        while True:
            try:
                self.query()
                break
            except (Crash, SpoolError) as error:
                self.note(f"crash {error}")
        self.store.compare()
        self.people.compare()

    def query(self) -> None:
        """One life of the query: repeat what was planned and not committed, then batch after batch."""
        self.capture = None
        engine = self.engine()
        if len(self.offsets) > self.committed:
            self.batch(engine, self.offset(self.committed - 1), self.offset(self.committed))
        idle = 0
        while True:
            if not self.closing and self.committed >= self.odds.batches:
                self.close()
            if self.closing and self.drains:
                engine.drain()
            if len(self.captured) < len(TABLES) and self.chance(self.odds.joins):
                self.captured = list(TABLES)
                self.note("the stream is to follow all tables")
            if self.odds.unfit and not self.closing and self.chance(self.odds.unfit):
                self.unfit ^= {self.rng.choice(list(TABLES))}
                self.note(f"unfit tables: {sorted(self.unfit)}")
            if self.committed > self.odds.batches + 80 or idle > MOST_IDLE:
                raise Violation("the dump does not end")
            start = self.offset(self.committed - 1)
            end = engine.next(start, self.limit)
            self.breath()
            if end == start:
                if self.closing and (self.drains or self.finished(start)):
                    return
                self.database.step(begin=not self.closing)
                if start.aside and self.closing:
                    self.database.tick()
                idle += 1
                continue
            idle = 0
            self.planned(end)
            self.breath()
            if self.committed:
                engine.commit(start)
            self.breath()
            self.batch(engine, start, self.offset(self.committed))

    def planned(self, end: Offset) -> None:
        """Spark writes down where the next batch ends."""
        self.offsets.append(json.dumps(end.to_json()))
        self.read_offsets.append(Offset.from_json(json.loads(self.offsets[-1])))
        self.people.planned(self.committed, end)
        if self.trace is not None:
            self.note(f"batch {self.committed} up to {end.position}: {_shown(end)}")

    def engine(self) -> Engine:
        self.people.begin_life()
        self.source.begin_life()
        return Engine(
            self.source,  # type: ignore[arg-type]
            self.spool,  # type: ignore[arg-type]
            self.settings,
            open_store=lambda: None,  # type: ignore[arg-type,return-value]
            effects=self.effects,
            make_capture=lambda *args, **options: SimCapture(self, *args, **options),
            make_sync=lambda *args, **options: self.people,  # type: ignore[arg-type,return-value]
        )

    def offset(self, batch: int) -> Offset:
        return Offset() if batch < 0 else self.read_offsets[batch]

    def close(self) -> None:
        """The writers stop. Nothing goes wrong any more, except that files are lost: seldom, so that a history ends."""
        self.database.settle()
        if self.settings.set_aside:
            self.database.mend()
            self.drains &= self.source.writes  # otherwise a table may wait for a later position, which never comes
        self.unfit = set()
        self.closing, self.captured = True, list(TABLES)
        self.people.close()

    def finished(self, at: Offset) -> bool:
        """Whether nothing is left to deliver after the offset. A chunk that was lost before its rows were delivered is
        missed by the plan of the next batch, so the last batch delivers none."""
        assert at.position is not None
        left = any(entry.changes for entry in self.database.read(at.position, self.database.end))
        return not (
            left or at.emit or at.dumping or at.aside or set(at.followed or ()) < set(TABLES) or self.people.waiting(at)
        )

    def batch(self, engine: Engine, start: Offset, end: Offset) -> None:
        parts = self.tasks(engine.batch(start, end))
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

    def tasks(self, work: list[tasks.Log | tasks.Emit | tasks.Select]) -> list[list[Event]]:
        """Run the tasks of a batch in any interleaving, some of them more than once."""
        selects = [w.chunk for w in work if isinstance(w, tasks.Select)]
        if self.chance(self.odds.unread):
            selects = []
        running: list[Task | tasks.Log | tasks.Emit] = [self.select(c, "task") for c in selects]
        running += [w for w in work if not isinstance(w, tasks.Select)]
        parts: dict[object, list[Event]] = {}
        try:
            while running:
                self.breath()
                at = self.rng.randrange(len(running))
                task = running[at]
                if isinstance(task, Generator):
                    if next(task, self) is self:
                        del running[at]
                    elif self.chance(self.odds.zombie):
                        self.zombies.append(task)
                        del running[at]
                        if selects and self.chance(0.8):
                            running.append(self.select(self.rng.choice(selects), "second attempt"))
                    continue
                parts[task.chunk.id if isinstance(task, tasks.Emit) else None] = self.delivered(task)
                if not self.chance(0.1):
                    del running[at]
        finally:
            self.zombies += [t for t in running if isinstance(t, Generator)]
        return list(parts.values())

    def select(self, chunk: Chunk, who: str) -> Task:
        """The shipped `stage`, as a task that may hang after its look at the spool and before it publishes."""
        found = self.spool.staged(chunk.id)
        yield
        spool = LateSpool(self.spool, found)
        name = f"{who} for {chunk.dump} {chunk.id[:4]}"
        tasks.stage(ExecutorSource(self.database, self.note, name), spool, chunk)  # type: ignore[arg-type]
        yield
        spool.publish()

    def delivered(self, task: tasks.Log | tasks.Emit) -> list[Event]:
        spool: Any = self.spool
        if isinstance(task, tasks.Log):
            batches = (found for stride in tasks.log_changes(spool, task) for found in stride)
        else:
            batches = tasks.emitted_rows(spool, task, before=False)
        return [event for schema, batch in batches for event in self.events(schema, batch)]

    def events(self, schema: TableSchema, batch: pa.RecordBatch) -> Iterator[Event]:
        ops, lsns, seqs, unchanged, *keys, versions, docs = (
            batch.column(at).to_pylist() for at in (0, 1, 2, *range(5, batch.num_columns))
        )
        ids = list(zip(*keys, strict=True))
        for at, op in enumerate(map(Op, ops)):
            lsn, seq = lsns[at], seqs[at]
            gone = op is Op.delete or op is Op.truncate
            version = self.database.made.get((lsn, seq), UNKNOWN) if gone else versions[at]
            if version == UNKNOWN and not (op is Op.truncate and seq == EMPTIED_SEQ):
                raise Violation(f"{op.name} of {schema.table.name} at {lsn}/{seq}: the log does not have it")
            doc = LEFT_OUT if unchanged[at] else docs[at]
            yield Event(schema.table, op, lsn, seq, None if op is Op.truncate else ids[at], version, doc)

    # -- time, and everything else that goes on --------------------------------------------------------------

    def breath(self) -> None:
        rng = self.rng
        self.clock += 0.01
        if rng.random() < 0.6:
            done = self.database.step(begin=not self.closing)
            if done and self.trace is not None:
                self.note(f"{done[0]} up to {self.database.end}: {done[1]}")
        if self.capture is not None and rng.random() < 0.3:
            self.capture.turn()
        if self.zombies and rng.random() < self.odds.wake:
            at = max(0, len(self.zombies) - rng.choice((1, 1, 2, 4)))
            zombie = self.zombies[at]
            if next(zombie, self) is self or (rng.random() < 0.5 and next(zombie, self) is self):
                del self.zombies[at]
        if rng.random() < (self.odds.loss / 10 if self.closing else self.odds.loss) and (files := self.spool.files()):
            lost = rng.choice(files)
            self.spool.lose(lost)
            self.note(f"file {lost} is lost")
        if not self.closing and rng.random() < self.odds.crash:
            raise Crash

    def pause(self) -> None:
        """Something takes a while."""
        for _ in range(self.rng.choice((0, 0, 1, 3))):
            self.breath()

    def now(self) -> float:
        return self.clock

    def pass_time(self, seconds: float) -> None:
        self.clock += seconds

    def sleep(self, seconds: float) -> None:
        self.pass_time(seconds)
        self.pause()

    def token(self) -> str:
        return f"{self.rng.getrandbits(128):032x}"

    def cut(self) -> bool:
        return not self.closing and self.rng.random() < self.odds.cut

    def locked(self, odds: float) -> bool:
        return not self.closing and self.rng.random() < odds

    def reads_log(self) -> bool:
        return self.rng.random() * (self.odds.readback + 1) < 1

    def chance(self, odds: float) -> bool:
        return self.rng.random() < odds

    def note(self, line: str) -> None:
        if self.trace is not None:
            self.trace.append(line)


def tell(seed: int, odds: Odds | None = None) -> World:
    """Play a history to its end; a failure says how to play it again and what happened."""
    history = World(seed, odds)
    try:
        history.run()
    except Exception as error:
        story = "\n  ".join(told(seed, odds)[-60:])
        raise Violation(f"{_named(error)}\nreplay: {replay(seed, odds)}\n  {story}") from error
    return history


def replay(seed: int, odds: Odds | None) -> str:
    """The command that plays a history again and prints its story."""
    usual = Odds()
    given = {name: value for name, value in vars(odds or usual).items() if value != getattr(usual, name)}
    return " ".join(["python -m tests.sim", f"--seed {seed}", *(f"--odds {n}={v}" for n, v in given.items())])


def told(seed: int, odds: Odds | None = None) -> list[str]:
    """The story of a history, played once more."""
    history = World(seed, odds)
    history.trace = []
    try:
        history.run()
    except Exception as error:
        history.note(f"violation: {_named(error)}")
    return history.trace


def _named(error: Exception) -> str:
    return str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"


def _chunk(chunk: Chunk) -> str:
    extent = chunk.extent
    part = " ".join("/".join(k) for k in extent.keys) if extent.keys else f"({extent.after}, {extent.upto}]"
    return f"{chunk.dump} {chunk.table.name} {part} as {chunk.id[:4]}{chunk.id[32:]}"


def _shown(offset: Offset) -> str:
    emit, read = "; ".join(_chunk(c) for c in offset.emit), "; ".join(_chunk(c) for c in offset.read)
    aside = {t.name: (a.position, a.message) for t, a in offset.aside.items()}
    emptied = [t.name for t in offset.emptied]
    return f"emit [{emit}] read [{read}] suspects {offset.suspects} aside {aside} emptied {emptied}"
