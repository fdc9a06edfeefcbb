"""Large transactions of PostgreSQL that are received before they commit.

Here "large" is 64 kB, the least that a server allows, and what is received and decoded at once is small too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2.extensions
import pytest

from dblog.sources.base import Run
from dblog.sources.postgres.in_progress import InProgress
from dblog.sources.postgres.source import Postgres
from dblog.sources.postgres.stream import PostgresLog
from dblog.sources.postgres.transaction_file import TransactionFile
from tests.engine.conftest import MakeQuery, check, on_postgres, wait_for
from tests.engine.query import Query
from tests.engine.test_catch_up import flat, read_all, source_of
from tests.engine.writers import create_hot, writers
from tests.families import OnPostgres
from tests.proxy import Proxy

pytestmark = [pytest.mark.server, on_postgres]

TAKE, PORTION = 32 << 10, 64 << 10
"""How much is received, and read back, at once."""
MUCH = "insert into t select i, 0, repeat('x', 300) from generate_series({}, {}) i"
"""Statement for rows that need about 0.6 kB of the server's memory each."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dblog.sources.postgres.stream.IN_PROGRESS_MEMORY", "64kB")
    monkeypatch.setattr("dblog.sources.postgres.stream.TAKE_BYTES", TAKE)
    monkeypatch.setattr("dblog.sources.postgres.transaction_file.PORTION_BYTES", PORTION)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes were put into files, each time, from now on."""
    made: list[int] = []
    real = TransactionFile.append

    def append(self: TransactionFile, messages: Any) -> None:
        made.append(sum(map(len, messages)))
        real(self, messages)

    monkeypatch.setattr(TransactionFile, "append", append)
    return made


@pytest.fixture
def table(database: OnPostgres) -> OnPostgres:
    database.execute(
        "create table t (id int primary key, n int, note text)",
        "insert into t select i, 0, 'first' from generate_series(1, 60) i",
        "create table small (id int primary key, n int)",
    )
    return database


class Session:
    """A session with a transaction in progress."""

    def __init__(self, database: OnPostgres) -> None:
        self._connection = database.connect(autocommit=False)

    def execute(self, *statements: str) -> None:
        with self._connection.cursor() as cursor:
            for sql in statements:
                cursor.execute(sql)

    def much(self, first: int, rows: int = 1000) -> None:
        self.execute(MUCH.format(first, first + rows - 1))

    def commit(self) -> None:
        self._connection.commit()

    def roll_back(self) -> None:
        self._connection.rollback()

    @property
    def connection(self) -> psycopg2.extensions.connection:
        return self._connection


def prepared(database: OnPostgres, **options: Any) -> tuple[Postgres, int]:
    """A source with its slot, and the slot's position."""
    source = source_of(database, **options)
    source.prepare(followed=None)
    source.admit(source.names())
    return source, source.origin().position


def drop_slot(database: OnPostgres) -> None:
    database.execute(f"select pg_drop_replication_slot('s_{database.name}')")


# -- the same as after the commit ------------------------------------------------------------------------------


def test_every_event_has_the_coordinates_that_protocol_1_and_calls_give_it(
    table: OnPostgres, kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    table.execute(
        "create table whole (id int primary key, n int, big text); alter table whole replica identity full",
        "create table mine (id int primary key, a text)",
        "create table parts (id int primary key, note text) partition by range (id)",
        "create table low partition of parts for values from (0) to (1000)",
        "create table high partition of parts for values from (1000) to (maxvalue)",
    )
    source, position = prepared(table, before="true")
    a, b, c = Session(table), Session(table), Session(table)
    a.much(1000)
    table.execute("insert into small values (1, 1)")
    b.execute(f"insert into whole select i, 0, {table.large} from generate_series(1, 60) i", "update whole set n = 1")
    c.much(10_000)
    a.execute("savepoint one")
    a.much(3000)
    a.execute("savepoint two", "update t set n = 2 where id between 3000 and 3100", "release two")
    source.write_watermark("first")
    a.execute("rollback to one", "update t set n = 1, note = note || 'y' where id >= 1000", "savepoint three")
    c.roll_back()
    a.execute(
        "alter table mine add column b int default 7", "insert into mine select i, 'a' from generate_series(1, 2000) i"
    )
    table.execute("update small set n = 2; insert into small values (2, 2)")
    a.execute("release three", "update t set id = -id where id % 7 = 0 and id >= 1000", "truncate mine, parts")
    a.execute("insert into parts select i, repeat('p', 200) from generate_series(1, 1500) i")
    a.execute("update parts set id = id + 5000 where id < 300 and id > 100")
    b.execute("delete from whole where id % 2 = 0", "savepoint s")
    for number in range(20):  # rolled back subtransactions, in a block and between blocks
        b.execute(f"insert into whole select i, {number}, repeat('z', 300) from generate_series(1000, 1100) i")
        b.execute("rollback to s", f"insert into small values ({100 + number}, 0)", "savepoint s")
    b.commit()
    source.write_watermark("second")
    a.much(20_000, 3)
    a.commit()
    table.execute("insert into mine (id, b) values (1, 1)", "delete from small where id = 1")
    table.execute(MUCH.format(30_000, 31_000))
    end = source.latest()

    in_progress = flat(read_all(source, position, end))
    blocks = len(kept)
    assert blocks > 20
    protocol_1 = flat(read_all(source_of(table, before="true", streamInProgress="false", catchUp="off"), position, end))
    assert len(kept) == blocks
    monkeypatch.setattr("dblog.sources.postgres.log.FAR_BYTES", 0)
    monkeypatch.setattr("dblog.sources.postgres.catch_up.NEAR_BYTES", 0)
    calls = flat(read_all(source, position, end))
    assert len(kept) == blocks
    assert in_progress[1] == protocol_1[1] == calls[1]
    assert in_progress[0] == protocol_1[0] == calls[0]
    assert {"first", "second"} <= {commit[2] for commit in in_progress[1]}
    assert len([e for e in in_progress[0] if e[2] == "public.t"]) > 3000
    drop_slot(table)


def test_any_position_in_between_is_a_place_to_go_on(table: OnPostgres, kept: list[int]) -> None:
    """Positions at which another transaction ended while the large ones were in progress."""
    source, position = prepared(table)
    a, b = Session(table), Session(table)
    for number in range(4):
        a.much(1000 + 1000 * number, 300)
        table.execute(f"insert into small values ({number}, 0)")
        b.execute("savepoint s")
        b.much(10_000 + 1000 * number, 300)
        b.execute("rollback to s" if number % 2 else "release s")
    b.commit()
    table.execute("insert into small values (10, 0)")
    a.commit()
    end = source.latest()
    events, commits = flat(read_all(source, position, end))
    assert [len([e for e in events if e[0] < c[0]]) for c in commits] == [1, 2, 3, 4, 604, 605, 1805]
    for number, commit in enumerate(commits[:-1]):
        begun = len(kept)
        assert flat(read_all(source, commit[0], end)) == (
            [e for e in events if e[0] >= commit[0]],
            commits[number + 1 :],
        )
        assert len(kept) > begun or number > 3, "near the end the server has no reason to send anything early"
    drop_slot(table)


# -- one read at a time ----------------------------------------------------------------------------------------


@pytest.fixture
def log(table: OnPostgres) -> Iterator[tuple[Postgres, PostgresLog]]:
    source, position = prepared(table)
    slot_log = source.stream(position)
    with contextlib.closing(slot_log):
        assert isinstance(slot_log._log, PostgresLog)
        yield source, slot_log._log


def received(log: PostgresLog) -> InProgress:
    assert log._in_progress is not None
    return log._in_progress


def read_until(log: PostgresLog, ready: Any) -> list[Run]:
    found: list[Run] = []

    def step() -> bool:
        found.extend(log.read(0.02))
        return bool(ready())

    wait_for(step)
    return found


def test_memory_holds_a_portion_of_a_transaction_and_the_server_writes_none_of_it_to_its_disk(
    table: OnPostgres, log: tuple[Postgres, PostgresLog], kept: list[int]
) -> None:
    source, stream = log
    held: list[int] = []
    made: list[int] = []

    def step() -> list[Run]:
        runs = stream.read(0.02)
        waiting = [m for each in stream._queue if isinstance(each, list) for m in each]
        held.append(sum(map(len, [*waiting, *stream._pending.messages])))
        made.append(sum(batch.nbytes for run in runs for _, batch in run.changes))
        return runs

    large = Session(table)
    large.much(1000, 15_000)
    wait_for(lambda: (step(), received(stream).nbytes > 4 << 20)[1])
    large.much(100_000, 1000)
    large.commit()
    end = source.latest()
    runs: list[Run] = []
    wait_for(lambda: (runs.extend(step()), stream.idle_position >= end)[1])
    assert sum(batch.num_rows for run in runs for _, batch in run.changes) == 16_000
    assert sum(kept) > 4 << 20
    assert max(held) < 2 * TAKE
    assert max(kept) < 2 * TAKE
    assert max(made) < 3 * PORTION
    assert received(stream).nbytes == 0
    counts = f"select stream_txns, spill_txns from pg_stat_replication_slots where slot_name = '{source.slot}'"
    wait_for(lambda: table.execute(counts) == [(1, 0)])


def test_others_and_watermarks_pass_a_transaction_in_progress_and_it_comes_with_its_commit(
    table: OnPostgres, log: tuple[Postgres, PostgresLog]
) -> None:
    source, stream = log
    large = Session(table)
    large.much(1000)
    read_until(stream, lambda: received(stream).nbytes)
    table.execute("insert into small values (1, 1)")
    bound = source.write_watermark("seen")
    runs = read_until(stream, lambda: stream.idle_position >= bound)
    assert [run.token for run in runs if run.token] == ["seen"]
    assert [str(schema.table) for run in runs for schema, _ in run.changes] == ["public.small"]
    large.commit()
    end = source.latest()
    runs = read_until(stream, lambda: stream.idle_position >= end)
    assert sum(batch.num_rows for run in runs for _, batch in run.changes) == 1000
    assert len(received(stream)) == 0


def test_what_is_rolled_back_leaves_no_file(table: OnPostgres, log: tuple[Postgres, PostgresLog]) -> None:
    source, stream = log
    one, two = Session(table), Session(table)
    one.much(1000)
    two.much(5000)
    read_until(stream, lambda: len(received(stream)) == 2)
    files = [each.file._file for each in received(stream)._open.values()]
    one.roll_back()
    two.connection.close()  # without a word
    table.execute("insert into small values (1, 1)")
    end = source.latest()
    runs = read_until(stream, lambda: stream.idle_position >= end and not len(received(stream)))
    assert sum(batch.num_rows for run in runs for _, batch in run.changes) == 1
    assert [file.closed for file in files] == [True, True]


def test_a_log_that_is_closed_leaves_no_file(table: OnPostgres, log: tuple[Postgres, PostgresLog]) -> None:
    _, stream = log
    one, two = Session(table), Session(table)
    one.much(1000)
    two.much(5000)
    read_until(stream, lambda: len(received(stream)) == 2)
    files = [each.file._file for each in received(stream)._open.values()]
    two.commit()
    read_until(stream, lambda: stream._decoding is not None)
    stream.close()
    assert [file.closed for file in files] == [True, True]


# -- through the engine ----------------------------------------------------------------------------------------


def open_files(spool: str) -> list[str]:
    """The files without a name that this process has open in the folder of the spool."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [name for name in found if name.startswith(f"{spool}/") and name.endswith("(deleted)")]


def test_a_dump_begins_and_ends_while_a_large_transaction_is_in_progress(
    table: OnPostgres, query: MakeQuery, kept: list[int]
) -> None:
    stream = query(tables="public.*", key=("_table", "id"), parallelism=1)
    stream.open_window()
    large = Session(table)
    large.execute("update t set n = 1, note = repeat('y', 300) where id > 5")
    large.much(1000, 600)
    wait_for(lambda: kept)
    assert not stream.dumped
    stream.dump()
    assert len(kept) > 0
    assert max(e["id"] for e in stream.history.events) <= 60, "nothing of it was delivered"
    large.commit()
    check_tables(stream, table)


def check_tables(stream: Query, database: OnPostgres) -> None:
    stream.catch_up()
    stream.history.check_order()
    state = stream.history.state()
    rows = {(name, row["id"]): row for name in ("t", "small") for row in database.rows(name)}
    assert state == rows


@pytest.mark.parametrize("how", ["cut", "end", "restart", "crash"])
def test_a_transaction_that_is_cut_off_in_the_middle_begins_again(
    table: OnPostgres, query: MakeQuery, proxy: Proxy, kept: list[int], how: str
) -> None:
    stream = query(tables="public.*", key=("_table", "id"), url=proxy.url(table.name))
    stream.catch_up()
    large = Session(table)
    for number in range(3):
        large.much(1000 * (number + 1))
        large.execute("savepoint s")
        large.much(10_000, 300)
        large.execute("rollback to s")
        before = len(kept)
        table.execute(f"insert into small values ({number}, 0)")
        stream.until(lambda: len(kept) > before + 5)  # noqa: B023
        stream.until(lambda: any(e["_table"] == "small" and e["id"] == number for e in stream.history.events))  # noqa: B023
        assert confirmed(table) <= stream.committed["pos"]
        match how:
            case "cut":
                proxy.cut()
            case "end":
                table.execute(
                    "select pg_terminate_backend(active_pid) from pg_replication_slots "
                    "where active_pid is not null and database = current_database()"
                )
            case "restart":
                stream.restart()
            case "crash":
                table.execute(f"insert into small values ({100 + number}, 0)")
                stream.wait_captured()
                stream.plan()
                stream.restart()
    large.commit()
    check_tables(stream, table)
    wait_for(lambda: not open_files(stream.given["spool"]))
    assert confirmed(table) <= stream.committed["pos"]


def confirmed(database: OnPostgres) -> int:
    ((position,),) = database.execute(
        "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots "
        "where database = current_database() and not temporary"
    )
    return int(position)


def test_a_stream_that_stops_in_the_middle_leaves_no_files(
    table: OnPostgres, query: MakeQuery, kept: list[int]
) -> None:
    stream = query(tables="public.*", key=("_table", "id"))
    stream.catch_up()
    large = Session(table)
    large.much(1000)
    stream.until(lambda: bool(open_files(stream.given["spool"])))
    stream.stop()
    wait_for(lambda: not open_files(stream.given["spool"]))
    assert not [
        p for p in Path(stream.given["spool"]).rglob("*") if p.is_file() and p.suffix not in (".arrow", ".json")
    ]


def test_a_definition_inside_a_large_transaction_is_delivered_in_its_place_or_never(
    table: OnPostgres, query: MakeQuery, kept: list[int]
) -> None:
    stream = query(tables="public.t", key=("id",))
    stream.catch_up()
    undone = Session(table)
    undone.much(1000, 300)
    undone.execute("alter table t add column never int default 1", "update t set n = 5")
    wait_for(lambda: len(kept) > 5)
    undone.roll_back()
    table.execute("update t set n = 6 where id = 1")
    before = len(kept)
    large = Session(table)
    large.much(2000, 300)
    large.execute(
        "savepoint s",
        "alter table t add column neither int default 1",
        "update t set n = 7",
        "rollback to s",
        "alter table t add column ever int default 1",
        "update t set n = 8",
    )
    wait_for(lambda: len(kept) > before + 5)
    table.execute("insert into small values (1, 1)")
    large.commit()
    table.execute("update t set n = 9 where id = 1")
    check(stream, table)
    updates = {(e["n"], "ever" in e) for e in stream.history.events if e["_op"] == "update"}
    assert updates == {(6, False), (8, True), (9, True)}
    assert not any({"never", "neither"} & set(e) for e in stream.history.events)


def test_writers_go_on_around_large_transactions(table: OnPostgres, query: MakeQuery, kept: list[int]) -> None:
    table.execute("drop table t")
    create_hot(table, 40)
    stream = query(tables="public.t", key=("id",), maxBytesPerTrigger="20k")
    with writers(table, 3, 40, rate=1000):
        stream.dump()
        one, two = Session(table), Session(table)
        for number in range(4):
            for at, session in ((1000, one), (5000, two)):
                session.execute(
                    f"insert into t select i, 0, repeat('x', 300) from generate_series({at + 300 * number}, "
                    f"{at + 300 * number + 299}) i",
                    "savepoint s",
                    f"delete from t where id >= {at} and id % 2 = 0",
                )
                session.execute("rollback to s" if number % 2 else "release s")
                stream.step()
        one.commit()
        stream.step()
        two.roll_back()
        stream.step()
    check(stream, table)
    assert len(kept) > 10


def test_the_option_has_the_server_wait_for_the_commit(table: OnPostgres, query: MakeQuery, kept: list[int]) -> None:
    stream = query(tables="public.*", key=("_table", "id"), streamInProgress="false")
    stream.catch_up()
    large = Session(table)
    large.much(1000)
    table.execute("insert into small values (1, 1)")
    stream.catch_up()
    large.commit()
    check_tables(stream, table)
    assert not kept
