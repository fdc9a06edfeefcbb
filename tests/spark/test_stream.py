"""The source inside a real Spark: what only Spark itself can show."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import dblog
from dblog.spark.session import TUNED
from dblog.testing.postgres_server import PostgresServer
from tests.conftest import Database, MySQLDatabase
from tests.history import History
from tests.spark.apps import running

pytestmark = [pytest.mark.server, pytest.mark.spark]


@pytest.fixture
def postgres(servers: dict[str, PostgresServer]) -> PostgresServer:
    """One is enough here."""
    return servers["pg18"].start()


@pytest.fixture
def table(database: Database) -> Database:
    database.execute("create table t (id int primary key, n int, at timestamptz default '2024-05-06 07:08:09.123456Z')")
    database.execute("insert into t select i, 0 from generate_series(1, 500) i")
    return database


def load(spark: SparkSession, folder: Path, database: Database | MySQLDatabase, **options: Any) -> DataFrame:
    given = {"url": database.url, "spool": str(folder / "spool"), "chunkRows": "100", "parallelism": "2"}
    given |= {name: str(value) for name, value in options.items()}
    if "tables" not in given:
        given.setdefault("table", "t")
    return spark.readStream.format("dblog").options(**given).load()


def into(history: History) -> Callable[[DataFrame, int], None]:
    def deliver(batch: DataFrame, number: int) -> None:
        history.deliver(number, [row.asDict(recursive=True) for row in batch.collect()])

    return deliver


def start(rows: DataFrame, folder: Path, function: Callable[[DataFrame, int], None]) -> StreamingQuery:
    return rows.writeStream.option("checkpointLocation", str(folder / "checkpoint")).foreachBatch(function).start()


def until(query: StreamingQuery, ready: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def progress(query: StreamingQuery) -> Any:
    """What the last batch has told of its only source."""
    (only,) = json.loads(query.lastProgress.json)["sources"]
    return only


def test_a_typed_stream_is_found_without_registration_and_gives_the_tables_columns(
    spark: SparkSession, table: Database, tmp_path: Path
) -> None:
    history = History()
    rows = load(spark, tmp_path, table)
    assert rows.dtypes[:3] == [("id", "int"), ("n", "int"), ("at", "timestamp")]
    query = start(rows, tmp_path, into(history))
    try:
        until(query, lambda: len(history.state()) == 500)
        table.execute("update t set n = 1 where id = 5; delete from t where id = 6; insert into t values (501, 1)")
        until(query, lambda: (501,) in history.state())
        until(query, lambda: progress(query)["latestOffset"]["dumped"] == 500)  # told with the batch after the last row
        told = progress(query)
    finally:
        query.stop()
    history.check_order()
    source = dict(table.execute("select id, n from t"))
    assert {key[0]: row["n"] for key, row in history.state().items()} == source
    assert told["endOffset"]["pos"] > told["startOffset"]["pos"]
    assert told["latestOffset"]["captured"] >= told["endOffset"]["pos"]


def test_a_batch_that_is_used_twice_or_in_part_selects_every_chunk_once(
    spark: SparkSession, table: Database, tmp_path: Path
) -> None:
    """Spark runs a batch's tasks for every action on it, and only as many as a limit needs."""
    table.execute(f"alter database \"{table.name}\" set log_statement = 'all'")
    earlier = len(table.server.log.read_text(errors="replace"))
    history = History()

    def deliver(batch: DataFrame, number: int) -> None:
        batch.limit(1).collect()
        into(history)(batch, number)
        assert batch.count() == len(history.batches[number])

    query = start(load(spark, tmp_path, table), tmp_path, deliver)
    try:
        until(query, lambda: len(history.state()) == 500)
    finally:
        query.stop()
    assert history.count("read") == 500
    log = table.server.log.read_text(errors="replace")[earlier:]
    assert len(re.findall(r"copy \(select [^\n]*\"public\"\.\"t\"", log)) == 5


def test_all_that_is_there_now_goes_into_parquet_once(spark: SparkSession, table: Database, tmp_path: Path) -> None:
    target = str(tmp_path / "target")

    def run() -> None:
        writer = load(spark, tmp_path, table).writeStream.format("parquet").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(target)
        assert query.awaitTermination(60), query.status

    run()
    assert spark.read.parquet(target).count() == 500
    table.execute("update t set n = 1 where id <= 3")
    run()
    assert spark.read.parquet(target).filter("_op = 'update'").count() == 3
    assert spark.read.parquet(target).count() == 503
    run()
    assert spark.read.parquet(target).count() == 503


def test_a_drained_stream_has_everything_and_goes_on_in_the_next_query(
    spark: SparkSession, table: Database, tmp_path: Path
) -> None:
    """As with `availableNow`, on every version of PySpark. The dump takes several batches."""
    history = History()

    def run() -> int:
        rows = load(spark, tmp_path, table, drain="true", parallelism=1)
        query = start(rows, tmp_path, into(history))
        query.processAllAvailable()
        assert query.isActive
        table.execute("insert into t select max(id) + 1, 7 from t")  # too late for this one
        query.processAllAvailable()
        query.stop()
        return len(history.events)

    assert run() == 500
    table.execute("update t set n = 1 where id <= 3")
    assert run() == 504
    assert run() == 505
    assert len(history.batches) > 8
    history.check_order()


def test_a_stream_starts_again_after_it_died_while_it_wrote_its_first_offset(
    spark: SparkSession, table: Database, tmp_path: Path
) -> None:
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.6f1c9ad2-4f9c-4d0a-9c3f-0a1b2c3d4e5f.tmp").write_text("v1\n")
    tuned, name = spark.newSession(), "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"
    tuned.conf.set(name, TUNED[name])
    history = History()
    query = start(load(tuned, tmp_path, table), tmp_path, into(history))
    try:
        until(query, lambda: len(history.state()) == 500)
    finally:
        query.stop()


def test_several_queries_share_a_session(spark: SparkSession, table: Database, tmp_path: Path) -> None:
    table.execute("create table u as select id, n from t where id <= 200; alter table u add primary key (id)")
    typed, enveloped = History(), History(("table", "key"))
    queries = [
        start(load(spark, tmp_path / "a", table), tmp_path / "a", into(typed)),
        start(load(spark, tmp_path / "b", table, tables="public.*"), tmp_path / "b", into(enveloped)),
    ]
    try:
        until(queries[0], lambda: typed.count("read") == 500)
        until(queries[1], lambda: sum(e["op"] == "read" for e in enveloped.events) == 700)
        table.execute("update t set n = 1 where id = 5")
        until(queries[0], lambda: typed.count("update") == 1)
        until(queries[1], lambda: sum(e["op"] == "update" for e in enveloped.events) == 1)
    finally:
        for query in queries:
            query.stop()
    assert json.loads(enveloped.events[-1]["after"])["n"] == 1


@pytest.mark.parametrize("mysql_server", ["mariadb"], indirect=True)
def test_mariadb_gives_typed_columns_and_envelopes(
    spark: SparkSession, mysql_database: MySQLDatabase, tmp_path: Path
) -> None:
    mysql_database.execute(
        "create table t (id bigint unsigned primary key, n decimal(65, 30), took time(6), doc json,"
        " size enum('small', 'large'), at datetime(6), seen timestamp(6) null)",
        """insert into t values (18446744073709551615, 12345678901234567890123456789012345.5, '-838:59:58.5',
            '{"a": [1, null]}', 'large', '2024-05-06 07:08:09.123456', '2024-05-06 07:08:09.123456')""",
        "create table u (id int primary key)",
        "insert into u values (1)",
    )
    typed, enveloped = History(), History(("table", "key"))
    rows = load(spark, tmp_path / "a", mysql_database)
    assert dict(rows.dtypes[:7]) == {
        "id": "decimal(20,0)",
        "n": "string",
        "took": "string",
        "doc": "string",
        "size": "string",
        "at": "timestamp_ntz",
        "seen": "timestamp",
    }
    queries = [
        start(rows, tmp_path / "a", into(typed)),
        start(load(spark, tmp_path / "b", mysql_database, tables="*"), tmp_path / "b", into(enveloped)),
    ]
    try:
        until(queries[0], lambda: typed.count("read") == 1)
        until(queries[1], lambda: len(enveloped.events) == 2)
        mysql_database.execute("update t set id = id - 1", "update u set id = 2")
        until(queries[0], lambda: typed.count("create") == 1)
        until(queries[1], lambda: len(enveloped.events) == 6)
    finally:
        for query in queries:
            query.stop()
    typed.check_order()
    first, _, last = typed.events
    values = {
        "n": "12345678901234567890123456789012345.500000000000000000000000000000",
        "took": "-838:59:58.500000",
        "doc": '{"a": [1, null]}',
        "size": "large",
        "at": datetime(2024, 5, 6, 7, 8, 9, 123456),
    }
    keys = (2**64 - 1, 2**64 - 2)
    for event, key in zip((first, last), keys, strict=True):
        assert {name: event[name] for name in ("id", *values)} == {"id": key, **values}
    seen = {"at": "2024-05-06T07:08:09.123456", "seen": "2024-05-06T07:08:09.123456Z"}
    images = [json.loads(event["after"]) for event in enveloped.events if event["table"] == "t" and event["after"]]
    assert images == [{"id": key, **values, **seen} for key in keys]
    assert [(e["table"], e["op"], e["key"]) for e in enveloped.events if e["table"] == "u"] == [
        ("u", "read", '{"id":1}'),
        ("u", "delete", '{"id":1}'),
        ("u", "create", '{"id":2}'),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tabel": "public.t"}, "unknown option 'tabel'"),
        ({"table": "public.absent"}, "table public.absent does not exist"),
        ({"chunkRows": "many"}, "option 'chunkRows' has the value 'many'"),
        ({"columns": "id,nn"}, r"option 'columns' names \['nn'\]"),
        ({"url": "oracle://localhost/x"}, "option 'url' is not the URL of a database that is known here"),
    ],
    ids=["unknown", "table", "number", "columns", "url"],
)
def test_a_wrong_option_is_named_when_the_stream_is_loaded(
    spark: SparkSession, table: Database, tmp_path: Path, options: dict[str, str], said: str
) -> None:
    with pytest.raises((AnalysisException, PySparkException), match=said) as caught:
        load(spark, tmp_path, table, **options)
    assert "hint: " in str(caught.value)


def test_a_read_that_is_no_stream_is_told_so(spark: SparkSession, table: Database) -> None:
    dblog.register(spark)
    with pytest.raises(PySparkException, match=r"streaming source(.|\n)*readStream"):
        spark.read.format("dblog").option("url", table.url).option("table", "public.t").load().collect()


def test_a_change_of_the_table_ends_the_query_with_what_to_do(
    spark: SparkSession, table: Database, tmp_path: Path
) -> None:
    history = History()
    query = start(load(spark, tmp_path, table), tmp_path, into(history))
    until(query, lambda: len(history.state()) == 500)
    table.execute("alter table t add extra int default 7; update t set n = 1 where id = 5")
    deadline = time.monotonic() + 30
    while query.isActive and time.monotonic() < deadline:
        time.sleep(0.1)
    assert re.search(r"column 'extra' \(integer\) was added(.|\n)*restart the query", str(query.exception()))
    query = start(load(spark, tmp_path, table), tmp_path, into(history))
    try:
        until(query, lambda: bool(history.count("update")))
    finally:
        query.stop()
    assert history.of(5)[-1]["extra"] == 7


def test_no_secret_is_written_anywhere(table: Database, tmp_path: Path) -> None:
    """Not to the checkpoint, the spool, the plan or the log of Spark at its most talkative."""
    password = re.search(r":([^:@/]+)@", table.url)[1]  # type: ignore[index]
    options = {"url": table.url, "table": "public.t", "chunkRows": 100}
    with running(tmp_path, options, available_now=True, explain=True, log="INFO", progress=True) as app:
        app.wait()
    assert '"endOffset"' in app.output
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert password not in path.read_text(errors="replace"), path


def test_a_spark_connect_client_streams_too(table: Database, tmp_path: Path) -> None:
    options = {"url": table.url, "table": "public.t", "chunkRows": 100, "drain": "true"}
    with running(tmp_path, options, remote="local[2]", parquet=str(tmp_path / "target")) as app:
        app.wait()
    import pyarrow.parquet as pq

    assert pq.read_table(tmp_path / "target").num_rows == 500
