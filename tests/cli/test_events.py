"""`dblog events` against real servers: what it prints, and that it leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dblog.core.schema import TableName
from dblog.databases.postgres.connect import connect, parse
from dblog.errors import PreconditionFailed
from dblog.sources.postgres import stream
from dblog.sources.postgres.pgoutput import Decoder
from dblog.sources.postgres.preflight_checks import WATERMARK
from dblog.sources.postgres.slots import passing_publication
from dblog.sources.postgres.stream import PostgresLog
from dblog.spark.options import read_options
from tests.cli.program import PROGRAM, SOURCE, Process, dblog
from tests.conftest import Database, MySQLDatabase

pytestmark = pytest.mark.server


@pytest.fixture
def table(database: Database) -> Database:
    database.execute(
        "create table t (id int primary key, n numeric(30, 2), note text); insert into t values (0, 0, 'old')"
    )
    return database


def following(database: Database, folder: Path, *arguments: object) -> Process:
    """`dblog events`, once it follows."""
    process = Process(folder, "events", "--tables", "public.*", *arguments, DBLOG_URL=database.url)
    process.until(lambda: "following" in process.stderr)
    return process


def lines(process: Process) -> list[dict[str, Any]]:
    return [json.loads(line, parse_float=Decimal) for line in process.stdout.splitlines()]


def left_behind(database: Database) -> list[Any]:
    return database.execute(
        "select slot_name::text from pg_replication_slots where database = current_database() "
        "union all select pubname from pg_publication"
    )


def test_changes_are_printed_in_order_and_nothing_is_left_behind(table: Database, tmp_path: Path) -> None:
    with following(table, tmp_path, "--count", 6) as events:
        table.execute("begin; insert into t values (1, 1.10, 'ä'); update t set n = 12345678901234567890.5; commit")
        table.execute("delete from t where id = 0")
        table.execute("truncate t")
        table.execute("insert into t values (9, null, null)")
        assert events.wait() == 0
    found = lines(events)
    assert [(e["op"], e["table"], e["key"]) for e in found] == [
        ("create", "public.t", {"id": 1}),
        ("update", "public.t", {"id": 0}),
        ("update", "public.t", {"id": 1}),
        ("delete", "public.t", {"id": 0}),
        ("truncate", "public.t", None),
        ("create", "public.t", {"id": 9}),
    ]
    assert found[0]["after"] == {"id": 1, "n": Decimal("1.10"), "note": "ä"}
    assert found[1]["after"]["n"] == Decimal("12345678901234567890.50")
    assert found[3]["before"] == {"id": 0}
    assert "after" not in found[3]
    assert len({e["lsn"] for e in found}) == 4
    assert [e["seq"] for e in found[:3]] == sorted(e["seq"] for e in found[:3])
    assert all(e["txid"] > 0 and e["committed_at"].startswith("20") for e in found)
    assert left_behind(table) == []


def test_the_position_of_a_change_of_mysql_is_a_file_of_its_log_and_a_place_in_it(
    mysql_database: MySQLDatabase, tmp_path: Path
) -> None:
    mysql_database.execute("create table t (id int primary key)")
    process = Process(tmp_path, "events", "--tables", "t", "--count", 1, DBLOG_URL=mysql_database.url)
    with process as events:
        events.until(lambda: "following" in events.stderr)
        before = _log_end(mysql_database)
        mysql_database.execute("insert into t values (1)")
        assert events.wait() == 0
    file, place = json.loads(events.stdout)["lsn"].split(":")
    assert file == before[0].rpartition(".")[2]
    assert int(place) >= before[1], "the transaction begins at the end of the log, or behind another one"


def _log_end(database: MySQLDatabase) -> tuple[str, int]:
    source = read_options({"url": database.url, "table": "t"}).source
    file, place = divmod(source.latest(), 1 << 40)
    return f"binlog.{file:06d}", place


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_nothing_is_left_behind(table: Database, tmp_path: Path, number: int, code: int) -> None:
    with following(table, tmp_path) as events:
        assert left_behind(table)
        events.send(number)
        assert events.wait() == code
    assert left_behind(table) == []
    assert "Traceback" not in events.stderr


def test_what_was_left_behind_by_a_killed_one_goes_with_the_next_and_what_is_in_use_stays(
    table: Database, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with following(table, tmp_path / "a") as alive:
        with following(table, tmp_path / "b") as killed:
            pass
        deadline = time.monotonic() + 10
        while len(left_behind(table)) > 3 or table.execute(
            "select 1 from pg_stat_activity where application_name = 'dblog events' offset 1"
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(table.execute("select 1 from pg_publication")) == 2
        with following(table, killed.out.parent, "--count", 1) as next_one:
            assert len(table.execute("select 1 from pg_publication")) == 2
            table.execute("insert into t values (5)")
            assert next_one.wait() == 0
        alive.until(lambda: alive.stdout.count("\n") == 1)
        alive.send(signal.SIGINT)
        alive.wait()
    assert left_behind(table) == []


def test_a_publication_of_somebodys_is_used_and_stays(table: Database, tmp_path: Path) -> None:
    table.execute("create table u (id int primary key); create publication theirs for table u")
    with following(table, tmp_path, "--publication", "theirs", "--count", 1) as events:
        assert table.execute("select pubname from pg_publication") == [("theirs",)]
        table.execute("insert into t values (1); insert into u values (2)")
        assert events.wait() == 0
    assert [e["table"] for e in lines(events)] == ["public.u"]
    assert left_behind(table) == [("theirs",)]


def test_a_partition_is_told_as_its_table(database: Database, tmp_path: Path) -> None:
    database.execute("""
        create table parted (id int primary key) partition by range (id);
        create table parted_1 partition of parted for values from (0) to (100)
    """)
    with following(database, tmp_path, "--count", 1) as events:
        database.execute("insert into parted values (7)")
        assert events.wait() == 0
    assert [(e["table"], e["key"]) for e in lines(events)] == [("public.parted", {"id": 7})]


def test_a_table_without_a_key_is_refused_before_it_is_published(table: Database) -> None:
    """Published without a replica identity, its owner's updates would fail."""
    table.execute("create table keyless (id int); insert into keyless values (1)")
    result = dblog("events", "--url", table.url, "--tables", "public.*, keyless", code=1)
    assert "table 'public.keyless' has no primary key" in result.stderr
    assert left_behind(table) == []
    source = read_options({"url": table.url, "tables": "public.*"}).source  # a pattern leaves it out
    assert list(map(str, source.tables())) == ["public.t"]


@pytest.mark.parametrize(
    "damage",
    ["alter table t replica identity nothing", "alter table parted_1 replica identity nothing"],
    ids=["table", "partition"],
)
def test_a_table_without_a_replica_identity_is_refused_before_it_is_published(table: Database, damage: str) -> None:
    table.execute("create table parted (id int primary key) partition by range (id)")
    table.execute("create table parted_1 partition of parted for values from (0) to (100)")
    connection = connect(table.url)
    tables = [TableName("public", "t"), TableName("public", "parted")]
    try:
        with passing_publication(connection, tables):
            assert left_behind(table)
        table.execute(damage)
        with (
            pytest.raises(PreconditionFailed, match="has no replica identity"),
            passing_publication(connection, tables),
        ):
            pass
    finally:
        connection.close()
    assert left_behind(table) == []


def test_a_full_replica_identity_will_do_and_gives_the_old_row(table: Database, tmp_path: Path) -> None:
    table.execute("alter table t replica identity full")
    with following(table, tmp_path, "--count", 1) as events:
        table.execute("delete from t")
        assert events.wait() == 0
    assert lines(events)[0]["before"] == {"id": 0, "n": 0, "note": "old"}


def test_an_open_transaction_is_not_waited_for_for_ever(table: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "TEMPORARY_SECONDS", 1)
    writer = table.connect(autocommit=False)
    writer.cursor().execute("insert into t values (77)")
    decoder = Decoder(lambda _: None, watermark=WATERMARK)
    table.execute("create publication p for table t")
    with pytest.raises(PreconditionFailed, match=rf"waits for 1 transaction: pid {writer.info.backend_pid} "):
        PostgresLog(parse(table.url), "dblog_held", "p", 0, decoder, temporary=True)


def test_a_publication_that_is_not_there_is_an_error(table: Database) -> None:
    """PostgreSQL 18 would only warn, and send nothing."""
    result = dblog("events", "--url", table.url, "--tables", "public.t", "--publication", "absent", code=1)
    assert "there is no publication 'absent'" in result.stderr


def test_a_reader_that_goes_away_ends_it_quietly(table: Database, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "events", "--tables", "public.t"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin", "DBLOG_URL": table.url},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert b"following" in process.stderr.readline()
    process.stdout.close()
    table.execute("insert into t values (1)")
    assert process.wait(30) == 1
    assert process.stderr.read() == b""
    process.stderr.close()
    assert left_behind(table) == []
