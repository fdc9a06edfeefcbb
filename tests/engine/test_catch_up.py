"""A stream of PostgreSQL that is far behind: its log is read by calls on copies of the slot, then by the stream.

Here "far" is some kilobytes, so that a small backlog needs many calls.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg2
import pytest
from psycopg2.extras import LogicalReplicationConnection

from dblog.core.schema import TableName
from dblog.errors import ConnectionLost, PositionLost, PreconditionFailed
from dblog.sources.base import Run
from dblog.sources.postgres.copy_session import CallsRefused, CopySession
from dblog.sources.postgres.log import SlotLog
from dblog.sources.postgres.source import Postgres
from dblog.spark.options import read_options
from tests.engine.conftest import MakeQuery, check, on_postgres, wait_for
from tests.engine.query import Query
from tests.engine.writers import create_hot, writers
from tests.families import OnPostgres

pytestmark = [pytest.mark.server, on_postgres]

ROWS = 40


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "log.FAR_BYTES": 64 << 10,
        "catch_up.NEAR_BYTES": 8 << 10,
        "catch_up.LEAST_WINDOW": 64 << 10,
        "catch_up.MOST_WINDOW": 256 << 10,
        "catch_up.RELATION_BYTES": 0,
        "catch_up.LOOK_SECONDS": 0.0,
        "copy_session.PIECE_BYTES": 16 << 10,
    }.items():
        monkeypatch.setattr(f"dblog.sources.postgres.{name}", value)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The windows that were read by calls, from now on."""
    made: list[tuple[int, int]] = []
    real = CopySession.begin

    def begin(self: CopySession, start: int, upto: int) -> None:
        made.append((start, upto))
        real(self, start, upto)

    monkeypatch.setattr(CopySession, "begin", begin)
    return made


def grow(database: OnPostgres, kilobytes: int = 512, table: str = "filler") -> None:
    """Let the server's log grow, in small transactions of a table that the stream may follow."""
    database.execute(f"create table if not exists {table} (id serial primary key, note text)")
    for _ in range(kilobytes // 16):
        database.execute(f"insert into {table} (note) select repeat('x', 1000) from generate_series(1, 14)")


# -- the same as the stream ------------------------------------------------------------------------------------


def source_of(database: OnPostgres, **options: Any) -> Postgres:
    given = {"url": database.url, "tables": "public.*", "slot": f"s_{database.name}", **options}
    source = read_options(given).source
    assert isinstance(source, Postgres)
    return source


def read_all(source: Postgres, position: int, end: int) -> Iterator[Run]:
    log = source.stream(position)
    with contextlib.closing(log):
        while position < end:
            runs = log.read(1.0)
            yield from runs
            position = max(position, log.idle_position, *(run.position or 0 for run in runs))


def flat(runs: Iterator[Run]) -> tuple[list[Any], list[Any]]:
    """All events with their tables, in order, and all commits with their watermarks."""
    events, commits = [], []
    for run in runs:
        for schema, batch in run.changes:
            events += [(r["_lsn"], r["_seq"], str(schema.table), schema.version, repr(r)) for r in batch.to_pylist()]
        positions, xids = run.commits.positions.tolist(), run.commits.xids.tolist()
        commits += [(*each, None) for each in zip(positions, xids, strict=True)]
        if run.token is not None:
            commits[-1] = (*commits[-1][:2], run.token)
    return sorted(events), commits


def test_a_backlog_that_is_read_by_calls_equals_the_stream_event_by_event(
    database: OnPostgres, calls: list[tuple[int, int]]
) -> None:
    create_hot(database, ROWS)
    database.execute(
        "create table odd (a int, b text, c numeric, d timestamptz, e int[], big text, primary key (a, b))",
        "alter table odd alter big set storage external",
        "create table whole (id int primary key, n int, big text); alter table whole replica identity full",
    )
    source = source_of(database, before="true")
    source.prepare(followed=None)
    source.admit(source.names())
    start = source.origin().position
    with writers(database, 4, ROWS, rate=4000):
        database.execute(
            "insert into odd select i, 'k' || i, i / 7.0, now(), array[i, null], "
            f"{database.large} from generate_series(1, 50) i",
            "update odd set c = c + 1",
            "update odd set b = b || 'x', c = 0 where a % 3 = 0; delete from odd where a > 40",
            f"insert into whole select i, 0, {database.large} from generate_series(1, 20) i; update whole set n = 1",
        )
        source.write_watermark("first")
        database.execute("alter table odd add column f text default 'f', drop column e")
        database.execute("insert into odd (a, b, f) select i, 'n', null from generate_series(100, 200) i")
        database.transact(
            "insert into odd (a, b) values (1000, '')",
            "savepoint s",
            "insert into odd (a, b) values (1001, '')",
            "rollback to s",
            "update odd set a = 1002 where a = 1000",
        )
        grow(database, 256)
        database.execute("truncate odd, whole; insert into whole values (1, 1, 'x')")
        source.write_watermark("second")
        grow(database, 128)
        # one transaction that is larger than many windows
        database.execute("insert into whole select i, 2, repeat('y', 500) from generate_series(10, 4000) i")
    grow(database, 128)
    end = source.latest()
    by_stream = flat(read_all(source_of(database, before="true", catchUp="off"), start, end))
    assert not calls
    by_calls = flat(read_all(source, start, end))
    assert by_stream == by_calls
    assert len(calls) > 8
    middle = by_stream[1][len(by_stream[1]) // 2][0]
    rest = [e for e in by_stream[0] if e[0] >= middle], [c for c in by_stream[1] if c[0] > middle]
    assert flat(read_all(source, middle, end)) == rest
    assert {c[2] for c in by_calls[1]} == {None, "first", "second"}
    assert len({e[2:4] for e in by_calls[0]}) == 4
    database.execute(f"select pg_drop_replication_slot('s_{database.name}')")


# -- through the engine ----------------------------------------------------------------------------------------


def confirmed(database: OnPostgres) -> int:
    ((position,),) = database.execute(
        "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots "
        "where database = current_database() and not temporary"
    )
    return int(position)


def behind(database: OnPostgres, query: MakeQuery, **options: Any) -> Query:
    """A stream of an audited table whose dump is over, stopped, with a backlog behind it."""
    create_ledger(database)
    stream = query(tables="public.*", key=("_table", "id"), maxBytesPerTrigger="20k", **options)
    stream.catch_up()
    stream.stop()
    backlog(database)
    return stream


def create_ledger(database: OnPostgres) -> None:
    """An audited table `t`, and a ledger of all its versions that were committed."""
    create_hot(database, ROWS)
    database.execute(
        "create table audit.ledger as select id, version from t",
        "create function audit.note() returns trigger language plpgsql as $$ begin "
        "insert into audit.ledger values (new.id, new.version); return null; end $$",
        "create trigger note after insert or update on t for each row execute function audit.note()",
    )
    grow(database, 16)


def backlog(database: OnPostgres) -> None:
    with writers(database, 4, ROWS, rate=4000):
        grow(database)


def check_ledger(stream: Query, database: OnPostgres) -> None:
    """Every version that was ever committed has come, once, in its order; and the rows are the source's."""
    stream.catch_up()
    stream.history.check_order()
    mine = [e for e in stream.history.events if e["_table"] == "t"]
    written = [(e["id"], e["version"]) for e in mine if e["_op"] != "delete"]
    assert sorted(written) == sorted(database.execute("select id, version from audit.ledger"))
    state = {k: v for k, v in stream.history.state().items() if k[0] == "t"}
    assert state == {("t", row["id"]): row for row in database.rows("t")}


def test_a_stream_that_is_behind_delivers_every_version_once_and_goes_over_to_the_stream(
    database: OnPostgres, query: MakeQuery, calls: list[tuple[int, int]]
) -> None:
    stream = behind(database, query)
    check_ledger(stream, database)
    assert len(calls) > 4
    log = stream.engine._source.health()
    assert (log["read_by"], log["active"]) == ("stream", True)
    made = len(calls)
    database.execute("update t set note = 'after' where id = 1")
    check_ledger(stream, database)
    assert len(calls) == made


def test_nothing_is_lost_or_doubled_when_lives_end_in_the_middle(
    database: OnPostgres, query: MakeQuery, calls: list[tuple[int, int]]
) -> None:
    stream = behind(database, query)
    for number in range(7):
        grow(database, 256)  # however much the life before has delivered
        made = len(calls)
        stream.until(lambda: len(calls) > made)  # noqa: B023 - every life begins far behind
        if number % 3 == 0:
            stream.restart()
        elif number % 3 == 1:
            stream.plan()  # a batch that was planned and not delivered
            stream.restart()
        else:
            database.end_sessions()
            stream.restart()
    check_ledger(stream, database)


def test_sessions_that_the_server_ends_in_the_middle_are_opened_again(
    database: OnPostgres, query: MakeQuery, calls: list[tuple[int, int]]
) -> None:
    stream = behind(database, query)
    for _ in range(3):
        stream.step()
        database.end_sessions()
    check_ledger(stream, database)


def test_the_slot_moves_while_calls_are_made_and_never_beyond_the_checkpoint(
    database: OnPostgres, query: MakeQuery, calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dblog.capture.capture.ACKNOWLEDGE_SECONDS", 0.0)
    stream = behind(database, query, readAheadBytes="200k")
    began = confirmed(database)

    def moved() -> bool:
        assert confirmed(database) <= stream.committed["pos"]
        return stream.done > done + 10 and confirmed(database) > began

    done = stream.done
    stream.until(moved)
    assert stream.engine._source.health()["read_by"] == "catch-up"
    check_ledger(stream, database)
    assert confirmed(database) <= stream.committed["pos"]


def test_a_dump_goes_on_while_the_stream_is_behind_and_writers_write(
    database: OnPostgres, query: MakeQuery, calls: list[tuple[int, int]]
) -> None:
    create_hot(database, ROWS)
    stream = query(tables="public.*", key=("_table", "id"), parallelism=1)
    stream.open_window()
    stream.stop()
    with writers(database, 4, ROWS, rate=500):
        grow(database)
        stream.dump()
    stream.catch_up()
    stream.history.check_order()
    assert len(calls) > 2
    mine = {k: v for k, v in stream.history.state().items() if k[0] == "t"}
    assert mine == {("t", row["id"]): row for row in database.rows("t")}


def test_a_definition_that_changes_inside_the_backlog_is_delivered_in_its_place(
    table: OnPostgres, query: MakeQuery, calls: list[tuple[int, int]]
) -> None:
    stream = query(tables="public.t")
    stream.catch_up()
    stream.stop()
    for number in range(3):
        grow(table, 128)
        table.execute(f"alter table t add column c{number} int default {number}", f"update t set n = {number + 1}")
    grow(table, 128)
    check(stream, table)
    assert len(calls) > 2
    found = {
        (e["n"], *sorted(c for c in e if c.startswith("c"))) for e in stream.history.events if e["_op"] == "update"
    }
    assert found == {(1, "c0"), (2, "c0", "c1"), (3, "c0", "c1", "c2")}


# -- when calls are not the faster way -------------------------------------------------------------------------


def test_an_old_open_transaction_makes_the_stream_the_faster_way(
    database: OnPostgres, query: MakeQuery, calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("log", "catch_up"):
        monkeypatch.setattr(f"dblog.sources.postgres.{module}.REREAD_BYTES", 200 << 10)
    create_ledger(database)
    stream = query(tables="public.*", key=("_table", "id"), maxBytesPerTrigger="20k")
    stream.catch_up()
    stream.stop()
    old = database.connect(autocommit=False)
    old.cursor().execute("update t set note = 'old' where id = 1")
    with writers(database, 4, ROWS - 1, rate=4000):  # those that wait for the row wait for the old transaction
        grow(database)
        old.commit()
        grow(database, 64)
    check_ledger(stream, database)
    assert 1 <= len(calls) <= 8
    assert calls[-1][1] - calls[0][0] < 500 << 10, "most of it came by the stream"


def test_a_stream_that_falls_behind_changes_to_calls_and_back(
    database: OnPostgres, query: MakeQuery, calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dblog.sources.postgres.log.FALLEN_BYTES", 64 << 10)
    monkeypatch.setattr("dblog.sources.postgres.log.LOOK_BYTES", 0)
    monkeypatch.setattr("dblog.sources.postgres.log.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("dblog.sources.postgres.stream.TAKE_BYTES", 1 << 10)
    create_ledger(database)
    stream = query(tables="public.*", key=("_table", "id"), readAheadBytes="10k")
    stream.catch_up()
    assert not calls
    backlog(database)
    check_ledger(stream, database)
    assert calls
    wait_for(lambda: stream.engine._source.health()["read_by"] == "stream")


def test_a_server_that_refuses_calls_is_read_by_the_stream(
    database: OnPostgres,
    query: MakeQuery,
    calls: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("dblog.sources.postgres.copy_session.WORK_MEM", "64kB")
    limited = database.url + "?options=-c%20temp_file_limit%3D0"
    stream = behind(database, query, url=limited)
    check_ledger(stream, database)
    assert calls
    assert "temp_file_limit" in caplog.text
    assert stream.engine._source._learnt.calls_refused  # type: ignore[attr-defined]


def test_one_copy_is_enough(
    database: OnPostgres, query: MakeQuery, calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the server has one free slot only: the second copy cannot be made."""
    monkeypatch.setattr("dblog.sources.postgres.log.copy_names", lambda slot: [f"{slot}_1"] * 2)
    stream = behind(database, query)
    check_ledger(stream, database)
    assert len(calls) > 4


def test_calls_can_be_switched_off(database: OnPostgres, query: MakeQuery, calls: list[tuple[int, int]]) -> None:
    check_ledger(behind(database, query, catchUp="off"), database)
    assert not calls


# -- others ----------------------------------------------------------------------------------------------------


@pytest.fixture
def slot(table: OnPostgres) -> Iterator[tuple[Postgres, int]]:
    """A source with a slot, and the slot's position, from which on it has a backlog."""
    source = source_of(table)
    source.prepare(followed=None)
    source.admit([TableName("public", "t")])
    position = source.origin().position
    for number in range(20):
        table.execute(f"update t set n = {number}")
    grow(table, 256)
    yield source, position
    table.execute(
        "select pg_terminate_backend(active_pid) from pg_replication_slots where active_pid is not null "
        "and database = current_database()"
    )
    wait_for(
        lambda: (
            not table.execute(
                "select 1 from pg_replication_slots where active_pid is not null and database = current_database()"
            )
        )
    )
    table.execute(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()"
    )


def opened(source: Postgres, position: int) -> SlotLog:
    log = source.stream(position)
    wait_for(lambda: log.read(0.1))
    return log


def test_a_slot_whose_copy_is_read_is_refused_to_others(
    slot: tuple[Postgres, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dblog.sources.postgres.slot_copy.RELEASE_SECONDS", 0.2)
    source, position = slot
    with contextlib.closing(opened(source, position)) as log:
        assert log.calling
        for other in (source, replace(source, catch_up=False)):
            with pytest.raises(ConnectionLost, match="reads a copy of slot"):
                other.stream(position)
    opened(source, position).close()


def test_a_reader_who_takes_the_slot_while_its_copy_is_read_is_noticed(
    table: OnPostgres, slot: tuple[Postgres, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dblog.sources.postgres.slot_copy.RELEASE_SECONDS", 0.2)
    source, position = slot
    with contextlib.closing(opened(source, position)) as log:
        log.acknowledge(position)
        session = psycopg2.connect(table.url, connection_factory=LogicalReplicationConnection)
        session.cursor().start_replication_expert(
            f'START_REPLICATION SLOT "{source.slot}" LOGICAL 0/0 '
            f"(proto_version '1', publication_names '{source.slot}')"
        )
        with pytest.raises(ConnectionLost, match="reads slot"):
            log.acknowledge(position)
    with pytest.raises(ConnectionLost, match="reads slot"):
        source.stream(position)
    session.close()
    opened(source, position).close()


def test_a_slot_that_is_dropped_while_its_copy_is_read_is_a_lost_position(
    table: OnPostgres, slot: tuple[Postgres, int]
) -> None:
    source, position = slot
    with contextlib.closing(opened(source, position)) as log:
        table.execute(f"select pg_drop_replication_slot('{source.slot}')")
        with pytest.raises(PositionLost, match="does not exist"):
            log.acknowledge(position)


def test_a_call_that_waits_long_for_its_reader_is_ended(
    table: OnPostgres, slot: tuple[Postgres, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds back vacuum like any open query, and Spark may be stopped for hours."""
    monkeypatch.setattr("dblog.sources.postgres.catch_up.HELD_SECONDS", 0.1)
    monkeypatch.setattr("dblog.sources.postgres.catch_up.MOST_WINDOW", 512 << 20)
    monkeypatch.setattr("dblog.sources.postgres.catch_up.LEAST_WINDOW", 512 << 20)
    source, position = slot
    table.execute("alter table t add column note text")
    for number in range(10):
        table.execute(f"update t set note = repeat('x', 40000), n = {number}")
    open_queries = (
        "select 1 from pg_stat_activity where datname = current_database() and query like 'copy%' and state = 'active'"
    )
    with contextlib.closing(opened(source, position)) as log:
        assert table.execute(open_queries)

        with pytest.raises(ConnectionLost, match="has waited"):
            wait_for(lambda: log.acknowledge(position))
    wait_for(lambda: not table.execute(open_queries))


def test_a_large_transaction_is_not_held_in_memory(
    table: OnPostgres, slot: tuple[Postgres, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dblog.sources.postgres.copy_session.PIECE_BYTES", 4 << 20)
    monkeypatch.setattr("dblog.sources.postgres.catch_up.LEAST_WINDOW", 32 << 20)
    monkeypatch.setattr("dblog.sources.postgres.catch_up.MOST_WINDOW", 512 << 20)
    source, position = slot
    table.execute(
        "insert into t select i, 0 from generate_series(1000, 1100) i",
        "alter table t add column note text",
        "insert into t select i, 0, repeat(md5(i::text), 40) from generate_series(10000, 130000) i",
    )
    grow(table, 64)
    end = source.latest()
    runs = read_all(source, position, end)
    rows = sum(batch.num_rows for _, batch in next(runs).changes)
    begin = peak = resident()
    for run in runs:
        rows += sum(batch.num_rows for _, batch in run.changes)
        peak = max(peak, resident())
    assert rows == 20 * 60 + 101 + 120_001
    assert peak - begin < 100 << 20, "the transaction has 150 MiB"


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_publication_that_is_gone_is_told_as_by_the_stream(table: OnPostgres, slot: tuple[Postgres, int]) -> None:
    """PostgreSQL 18 sends nothing instead; the survey of the tables finds that."""
    source, position = slot
    table.execute(f"drop publication {source.slot}", "update t set n = 1000")
    grow(table, 64)
    runs = read_all(source, position, source.latest())
    if table.server.version.startswith("18"):
        assert len(flat(runs)[0]) == 20 * 60
        return
    with pytest.raises(CallsRefused, match="publication"):
        flat(runs)
    with pytest.raises(PreconditionFailed, match="publication"):
        flat(read_all(source, position, source.latest()))


def test_threads_of_calls_end_with_their_log(table: OnPostgres, slot: tuple[Postgres, int]) -> None:
    source, position = slot
    opened(source, position).close()
    wait_for(lambda: not any(thread.name == "dblog-slot-copy" for thread in threading.enumerate()))
