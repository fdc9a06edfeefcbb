"""One life of a stream: a random sequence of steps, made from a seed, and what must be true of it.

The seed decides which steps there are, their order, and the random choices inside them. It does not decide how the
writers in the background, the server and the stream interleave: a life that is repeated is the same life only in what
this process does.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg2.errors

from dblog.state import open_store
from dblog.state.pipeline import Pipeline
from dblog.state.requests import State, Wish
from tests.conftest import MYSQL_INSTALLS, SERVERS, SETTINGS, QuickPostgres, mysql_server_of
from tests.families import AnyDatabase, OnMySQL, OnPostgres
from tests.life.checker import Entry, Event, Key, Row, Violation, applied, check, check_dump, check_state
from tests.life.replay import settled
from tests.life.stream import Stopped, Stream
from tests.life.world import LEDGER, Session, Table, World
from tests.life.writers import Dice, Group
from tests.proxy import Proxy

SERVER_NAMES = [*SERVERS, *(name for name, found in MYSQL_INSTALLS.items() if found)]
HEARTBEAT_SECONDS = 1
SETTLE_SECONDS = 150.0
"""How long a stream may take to deliver everything once nobody writes."""
PIPELINE = USER = "life"


class Failure(AssertionError):
    """A life that went wrong: what, the steps up to there, and how to repeat it."""


@dataclass
class Asked:
    """A dump that was asked for. Versions up to `settled` were committed before it was asked for."""

    id: str
    tables: tuple[str, ...]
    settled: int
    since: int
    """How many events had been delivered."""
    keys: tuple[tuple[str, ...], ...] | None = None
    some: bool = False
    """Only the rows under a condition."""
    done: bool = False


@dataclass
class Epoch:
    """The life of one checkpoint. It began behind version `floor` and not behind `ceiling`."""

    stream: Stream
    floor: int
    server: int
    """Of the servers that took over from each other, the one it began with."""
    ceiling: int = 0
    asked: list[Asked] = field(default_factory=list)
    defined: set[str] = field(default_factory=set)
    """Tables that got another definition since the last comparison."""
    loose: set[str] = field(default_factory=set)
    """Tables that got other rows since the last comparison, without a word in the log."""
    state: dict[tuple[str, Key], Row] | None = None
    """What was delivered and right at the last comparison, with the events up to `compared`."""
    compared: int = 0


class Life:
    """What the steps work with: a world, writers, a stream, and a proxy between the stream and its server."""

    def __init__(
        self,
        server: str,
        seed: int,
        say: Callable[[str], None] = print,
        sabotage: str = "",
        *,
        replayed: bool = False,
    ) -> None:
        self.server_name, self.seed, self.say, self.replayed = server, seed, say, replayed
        self.dice = Dice(f"life {seed}")
        self.began = time.monotonic()
        self.steps: list[str] = []
        self.allowed: dict[str, str] = {}
        """Kinds of errors with which the stream may stop now, and the step that is the reason."""
        self.undo: list[Callable[[], None]] = []
        """What the operator does about a precondition that a step broke, once the stream has stopped for it."""
        self.folder = Path(tempfile.mkdtemp(prefix="dblog-life-"))
        self.epochs: list[Epoch] = []
        self.timers: list[threading.Timer] = []
        self.replica: OnMySQL | None = None
        self.servers = 1
        self.names = 0
        """How many names were made up; each column has one that no other ever had."""
        self.stops = 0
        self.database = self._database()
        try:
            self.proxy = Proxy(self.database.server)
            self.world = World(self.database, self._tables())
            self.world.create()
            self._prepare_tables()
            self.other = self.database.sibling()
            self.settings = {
                "watermark": self.dice.choice(["table", "table", "none"]),
                "chunkRows": self.dice.choice([12, 40, 300]),
                "parallelism": self.dice.choice([2, 3, 5]),
                "heartbeatSeconds": HEARTBEAT_SECONDS,
                "patienceSeconds": 60,
                "sabotage": sabotage,
            }
            if self.dice.random() < 0.3:
                self.settings["maxRowsPerTrigger"] = self.dice.choice([20, 200])
            self.session = Session(self.world)
            self.writers = Group(self.world, self.dice.randint(1, 3), seed, self.dice.choice([0.02, 0.05, 0.1]))
            self.new_epoch()
        except BaseException:
            self.close()
            raise

    # -- the world ------------------------------------------------------------------------------------------

    def _database(self) -> AnyDatabase:
        name = f"life_{uuid.uuid4().hex[:8]}"
        if self.server_name in SERVERS:
            settings = {**SETTINGS, "wal_sender_timeout": "20s"}
            if self.server_name == "pg18" and self.seed % 2:
                # every change is sent before the commit of its transaction
                settings["debug_logical_replication_streaming"] = "immediate"
            server = QuickPostgres("wheel" if self.server_name == "pg18" else "debian", settings=settings)
            database: AnyDatabase = OnPostgres(server.start(), name)
        else:
            server = mysql_server_of(self.server_name, **self.server_settings(1)).start()
            database = OnMySQL(server, name)
            database.server_execute(
                f"create user {USER}@'%' identified by '{USER}'", f"grant all on *.* to {USER}@'%' with grant option"
            )
        database.create()
        return database

    def server_settings(self, number: int) -> dict[str, str]:
        """Of a server of MySQL or MariaDB that may have a replica, or be one."""
        settings = {"innodb_flush_log_at_trx_commit": "2", "server_id": str(number)}
        return (
            settings
            if self.server_name == "mysql"
            else {**settings, "log_slave_updates": "ON", "slave_parallel_threads": "4"}
        )

    @property
    def url(self) -> str:
        """Where the stream connects to: by way of the proxy, as a user that all servers of a cluster have."""
        login = () if self.on_postgres else (USER, USER)
        return self.proxy.through(self.database.server.url(self.database.name, *login))

    def move_to(self, database: OnMySQL) -> None:
        """Another server has the address from now on."""
        self.database = self.world.database = database
        self.world.server += 1
        self.stream.recording.moved = True
        self.proxy._server, self.proxy._target = database.server, ("127.0.0.1", database.server.port)
        self.proxy.cut()

    def _tables(self) -> list[Table]:
        tables = [
            Table("a", {"n": "int", "note": "text"}, keys=25),
            Table("b", {"n": "int", "big": "large"}, key=("k", "id"), keys=30),
            Table("c", {"n": "int", "note": "text", "big": "large"}, keys=1200),
            Table("f", {"n": "int", "big": "large"}, keys=20),
        ]
        extra = " partition by range (id)"
        if not self.on_postgres:
            extra += " (partition p1 values less than (20), partition p2 values less than maxvalue)"
        return [*tables, Table("p", {"n": "int", "note": "text"}, keys=40, extra=extra)]

    def _prepare_tables(self) -> None:
        if self.on_postgres:
            self.database.execute(
                f'alter database "{self.database.name}" set synchronous_commit = local',
                "alter table f replica identity full",
                "create table p1 partition of p for values from (minvalue) to (20)",
                "create table p2 partition of p for values from (20) to (maxvalue)",
            )

    @property
    def on_postgres(self) -> bool:
        return self.server_name in SERVERS

    @property
    def schema(self) -> str:
        return self.database.schema

    # -- the stream -----------------------------------------------------------------------------------------

    @property
    def epoch(self) -> Epoch:
        return self.epochs[-1]

    @property
    def stream(self) -> Stream:
        return self.epoch.stream

    def new_epoch(self) -> None:
        """Begin with a new checkpoint, a new spool, a new state store and, on PostgreSQL, a new slot."""
        number = len(self.epochs)
        self.allowed.clear()
        if number:
            self.stream.kill()
        if self.on_postgres:
            self._drop_slot()
        spool = self.folder / f"spool{number}"
        stream = Stream(
            url=self.url,
            tables=f"{self.schema}.*, !{self.schema}.{LEDGER}, !{self.schema}.spare*",
            slot=PIPELINE,
            pipeline=PIPELINE,
            spool=spool,
            state=f"{spool}.state",
            replayed=self.replayed,
            **self.settings,
        )
        self.epochs.append(Epoch(stream, self.world.settled, self.world.server))
        while not stream.offsets:
            stream.plan()
        self.epoch.ceiling = self.world.reached

    def _drop_slot(self) -> None:
        found = f"from pg_replication_slots where slot_name = '{PIPELINE}'"
        deadline = time.monotonic() + 30
        while self.database.execute(f"select 1 {found}"):
            assert time.monotonic() < deadline, "the slot does not become free"
            self.database.execute(f"select pg_terminate_backend(active_pid) {found} and active")
            with suppress(psycopg2.errors.ObjectInUse):
                self.database.execute(f"select pg_drop_replication_slot(slot_name) {found} and not active")

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(open_store(self.stream.given["state"]), PIPELINE)

    def later(self, seconds: float, *actions: Callable[[], object]) -> threading.Timer:
        """Do something while the stream works."""
        timer = threading.Timer(seconds, lambda: [action() for action in actions])
        timer.start()
        self.timers.append(timer)
        return timer

    def wait(self) -> None:
        """Wait for everything that was to be done later."""
        while self.timers:
            self.timers.pop().join()

    def hurry(self) -> None:
        """Forget what was to be done later."""
        while self.timers:
            self.timers.pop().cancel()

    # -- the truth ------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Deliver everything that is committed by now, and finish all dumps."""
        fence = self.world.fence()
        deadline = time.monotonic() + SETTLE_SECONDS
        # the log does not show all that becomes of tables: the stream looks at them within its heartbeat
        looks = time.monotonic() + (1.1 * HEARTBEAT_SECONDS if self.epoch.loose else 0)
        while True:
            looked = time.monotonic() > looks
            moved = self.stream.step()
            if looked and not moved and self.stream.seen >= fence and self.stream.dumped:
                self.stream.call("exchange")
                if not self.stream.call("joining") and not self.stream.step() and self.stream.dumped:
                    self.allowed.clear()
                    return
            if time.monotonic() > deadline:
                behind = "" if self.stream.seen >= fence else f"; the fence {fence} has not come"
                raise Failure(f"not caught up in {SETTLE_SECONDS:.0f} s{behind}; at {self.stream.offsets[-1:]}")

    def settle(self, *, whole: bool = False) -> None:
        """Nobody writes; everything is delivered and compared."""
        with self.writers.paused():
            for asked in self.epoch.asked:
                if not asked.done:
                    self.pipeline.wish(asked.id, Wish.run) if self._state(asked) is State.paused else None
            self.catch_up()
            self.compare(whole=whole)

    def compare(self, *, whole: bool) -> None:
        """Compare what was delivered since the last comparison with the ledger, and the state with the source."""
        epoch, recording = self.epoch, self.stream.recording
        delivered = recording.events
        events = [event for event in delivered if event.table in self.world.tables]
        ledger, found = self._compared(complete=True)
        reached, source = self.world.reached, self.world.state()
        delivered_rows = applied(events)
        found += check_state(delivered_rows, source, whole=whole)
        for asked in epoch.asked:
            if not asked.done:
                found += self._check_asked(asked, ledger, delivered[asked.since :], reached)
        self.say(
            f"         settled: {reached} versions, {len(events)} events in {len(recording.batches)} batches "
            f"({recording.repeated} repeated), {len(source)} rows"
            + (f", loose {sorted(epoch.loose)}" if epoch.loose else "")
        )
        if found:
            raise Failure("\n".join(map(str, found[:4])))
        if recording.history is not None:
            keys = {name: table.key for name, table in self.world.tables.items()}
            recording.history.append(settled(keys, source, delivered_rows))
        epoch.state, epoch.floor, epoch.compared = dict(source), reached, len(delivered)
        if not self.undo:  # what is mended may give a table other rows once more
            epoch.loose.clear()
        epoch.defined.clear()
        self.mend()

    def _compared(self, *, complete: bool) -> tuple[list[Entry], list[Violation]]:
        """The ledger since the last comparison, and what is wrong with the events since then."""
        epoch, recording, first = self.epoch, self.stream.recording, self.epoch.state is None
        ledger = self.world.ledger(0 if first else epoch.floor)
        ledger += [
            Entry(int(row["version"] or 0), 0, table, "create", key, row)
            for (table, key), row in (epoch.state or {}).items()
        ]
        ledger = [entry for entry in ledger if entry.table in self.world.tables]
        since = [event for event in recording.events[epoch.compared :] if event.table in self.world.tables]
        bounds = {"floor": epoch.floor, "ceiling": epoch.ceiling if first else epoch.floor}
        found = check(ledger, since, **bounds, loose=epoch.loose, delivered=not first, complete=complete)
        return ledger, [*recording.violations, *found]

    def _state(self, asked: Asked) -> State:
        return self.pipeline.dump(asked.id).state

    def _check_asked(self, asked: Asked, ledger: list[Entry], events: list[Event], ended: int) -> list[Violation]:
        dump = self.pipeline.dump(asked.id)
        asked.done = True
        if dump.state is State.cancelled:
            return []
        if dump.state is State.failed and self.epoch.defined.intersection(asked.tables):
            return []  # the table, or a column of the condition, is not what it was
        if dump.state is not State.completed:
            return [Violation(f"dump {asked.id} is {dump.state}: {dump.progress.reason}", ",".join(asked.tables))]
        if asked.some:
            return []
        return [
            violation
            for table in asked.tables
            if table not in self.epoch.loose
            for violation in check_dump(
                ledger, events, asked.id, table, asked=asked.settled, ended=ended, keys=asked.keys
            )
        ]

    def mend(self) -> None:
        """Do what an operator does about preconditions that steps have broken."""
        while self.undo:
            self.undo.pop()()

    # -- errors ---------------------------------------------------------------------------------------------

    def stopped(self, error: Stopped) -> None:
        """The stream has stopped. If that is allowed, go on as an operator would: do what the hint says."""
        if error.kind not in self.allowed:
            raise Failure(f"the stream stopped: {error}")
        self.say(f"         stopped, as {self.allowed[error.kind]} allows: {error}")
        self.stops += 1
        with self.writers.paused():
            if (
                self.epoch.server == self.world.server
            ):  # else some of what it has delivered is not in the ledger any more
                _, found = self._compared(complete=False)
                if found:
                    raise Failure("before the stream stopped:\n" + "\n".join(map(str, found[:4])))
            self.mend()
            if error.kind != "SchemaChanged":  # for which a restart is enough
                self.new_epoch()

    # -- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        for name in ("writers", "stream", "proxy"):
            try:
                match name:
                    case "writers":
                        self.writers.end()
                    case "stream":
                        for epoch in self.epochs:
                            epoch.stream.kill()
                    case _:
                        self.proxy.close()
            except AttributeError:
                pass
        self.database.server.stop()
        if self.replica is not None:
            self.replica.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
