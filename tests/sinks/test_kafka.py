"""Topics of a real broker."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from dblog.core.schema import TableName, TableSchema
from dblog.core.settings import read_settings
from dblog.errors import ConfigError, SinkError, SinkUnreachable
from dblog.sinks.base import Batch, SinkContext, TableBatch
from dblog.sinks.formats import event_columns
from dblog.sinks.kafka import KafkaSink
from dblog.sinks.packages import RELEASES
from dblog.testing.kafka_broker import KafkaBroker, find_kafka
from tests.sinks.batches import T, change, frame, read
from tests.sinks.envelopes import EnvelopeTarget
from tests.sinks.suite import AwaySuite, SinkSuite
from tests.sinks.target import Target
from tests.spark.home import CONNECTORS
from tests.spark.test_jars import fetch

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(find_kafka() is None or not CONNECTORS.exists(), reason="no Kafka: scripts/kafka.sh .venv"),
]
PATIENCE = {"request.timeout.ms": "6000", "max.block.ms": "10000", "delivery.timeout.ms": "20000"}
SHORT = {"request.timeout.ms": "1000", "max.block.ms": "1500", "delivery.timeout.ms": "2500"}
PARTITIONS = 3
U = TableSchema(TableName("public", "u"), T.columns, T.key)


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(settings={"log.cleaner.backoff.ms": "200", "log.initial.task.delay.ms": "500"}) as running:
        yield running


class Record(NamedTuple):
    partition: int
    key: str | None
    value: dict[str, Any] | None


def texts_of(spark: SparkSession, broker: KafkaBroker, topic: str) -> list[tuple[int, str | None, str | None]]:
    """Partition, key and value of what a topic has, each partition in its order; nothing if there is no such topic."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.servers)
    found = source.option("subscribePattern", re.escape(topic)).load()
    rows = found.selectExpr("partition", "offset", "string(key) as key", "string(value) as value").collect()
    return [(row.partition, row.key, row.value) for row in sorted(rows, key=lambda row: (row.partition, row.offset))]


class Topics(EnvelopeTarget):
    sink = "kafka"
    exactly_once = False

    def __init__(self, broker: KafkaBroker, spark: SparkSession) -> None:
        self.broker = broker
        self.spark = spark
        self.prefix = uuid.uuid4().hex[:8]

    def settings(self) -> dict[str, Any]:
        topic = f"{self.prefix}.{{schema}}.{{table}}"
        return {"servers": self.broker.servers, "topic": topic, "package": "none", "options": PATIENCE}

    def texts(self, table: TableName) -> list[str]:
        found = texts_of(self.spark, self.broker, f"{self.prefix}.{table}")
        return [value for _, _, value in found if value is not None]

    @contextmanager
    def away(self) -> Iterator[None]:
        self.broker.kill()
        yield
        self.broker.start()


class TestKafka(SinkSuite, AwaySuite):
    @pytest.fixture
    def target(self, broker: KafkaBroker, spark: SparkSession) -> Target:
        return Topics(broker, spark)


# What no database is needed for


class Followed:
    """A sink, and what it has written: to a topic of its own, or as `topic` says, {own} being its name."""

    def __init__(self, spark: SparkSession, broker: KafkaBroker, folder: Path, **given: Any) -> None:
        self.spark = spark
        self.broker = broker
        self.topic = uuid.uuid4().hex[:8]
        given = {"servers": broker.servers, "topic": "{own}", "package": "none", "options": PATIENCE, **given}
        given["topic"] = given["topic"].replace("{own}", self.topic)
        self.sink = KafkaSink(read_settings("sink", given, KafkaSink.settings), SinkContext("shop", folder))
        self.sink.check()
        for name, value in self.sink.spark_settings.items():
            spark.conf.set(name, value)
        self.sink.open(spark)

    def write(self, *tables: TableBatch) -> None:
        self.sink.write(Batch(1, 1000, tables))

    def read(self, topic: str = "") -> list[Record]:
        found = texts_of(self.spark, self.broker, topic or self.topic)
        return [Record(p, key, None if value is None else json.loads(value)) for p, key, value in found]


Open = Callable[..., Followed]


@pytest.fixture
def opened(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> Open:
    broker.start()  # a test may have ended it
    return lambda **given: Followed(spark, broker, tmp_path, **given)


def table(
    schema: TableSchema,
    changes: DataFrame | None = None,
    rows: DataFrame | None = None,
    truncated: tuple[int, int] | None = None,
) -> TableBatch:
    return TableBatch(schema.table, schema, changes, rows, truncated, False)


def by_partition(records: list[Record]) -> dict[int, list[Record]]:
    return {n: [r for r in records if r.partition == n] for n in range(PARTITIONS)}


def places(records: list[Record]) -> list[tuple[int, int]]:
    return [(r.value["lsn"], r.value["seq"]) for r in records if r.value is not None]


def test_the_changes_of_a_topic_are_in_order(spark: SparkSession, opened: Open) -> None:
    size = 4000
    rows = [change("update", lsn, lsn % 7) for lsn in range(size)]
    kafka = opened(topic="{own}-{table}")
    kafka.write(table(T, frame(spark, rows, partitions=4)))
    found = kafka.read(f"{kafka.topic}-t")
    assert len(found) == size
    for records in by_partition(found).values():
        assert places(records) == sorted(places(records))
    keys = {r.key: r.partition for r in found}
    assert {(r.key, r.partition) for r in found} == set(keys.items())
    assert set(keys) == {f'{{"id":{n}}}' for n in range(7)}


def test_tables_that_share_a_topic_are_in_commit_order(spark: SparkSession, opened: Open) -> None:
    size = 1000
    mine = [change("update", lsn, 1, seq=seq) for lsn in range(size) for seq in (0, 2)]
    theirs = [change("update", lsn, 1, seq=1) for lsn in range(size)]
    kafka = opened(partitions=1)
    kafka.write(table(T, frame(spark, mine, partitions=3)), table(U, frame(spark, theirs, U, partitions=2)))
    found = kafka.read()
    assert places(found) == [(lsn, seq) for lsn in range(size) for seq in (0, 1, 2)]
    assert {json.dumps(json.loads(r.key or "")) for r in found} == {
        json.dumps({"schema": "public", "table": name, "key": {"id": 1}}) for name in ("t", "u")
    }


def test_each_topic_has_a_task_of_its_own(spark: SparkSession, opened: Open) -> None:
    kafka = opened(topic="{own}-{table}")
    rows = [change("update", lsn, 1) for lsn in range(10)]
    spark.sparkContext.setJobGroup(kafka.topic, "")
    kafka.write(table(T, frame(spark, rows, partitions=3)), table(U, frame(spark, rows, U, partitions=2)))
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(kafka.topic)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    assert [stage.numTasks for stage in stages if stage] == [2]


def test_rows_of_a_dump_are_written_beside_the_changes(spark: SparkSession, opened: Open) -> None:
    kafka = opened()
    dump = frame(spark, [read(99, key) for key in range(10, 60)], partitions=2)
    kafka.write(table(T, frame(spark, [change("create", 5, 1, "a")]), dump), table(U, None, dump))
    ops = [(r.value["table"], r.value["op"]) for r in kafka.read() if r.value]
    assert {op: ops.count(op) for op in ops} == {("t", "create"): 1, ("t", "read"): 50, ("u", "read"): 50}


def test_a_delete_is_followed_by_a_tombstone(spark: SparkSession, opened: Open) -> None:
    rows = [change("create", 1, 1, "a"), change("delete", 2, 1), change("create", 3, 1, "b"), change("delete", 4, 1)]
    for tombstones, wanted in (
        (True, ["create", "delete", None, "create", "delete", None]),
        (False, ["create", "delete", "create", "delete"]),
    ):
        kafka = opened(tombstones=tombstones)
        kafka.write(table(T, frame(spark, rows)))
        found = kafka.read()
        assert [r.value and r.value["op"] for r in found] == wanted
        assert len({(r.key, r.partition) for r in found}) == 1


def test_a_truncate_stands_in_every_partition(spark: SparkSession, opened: Open) -> None:
    def rows(op: str, lsn: int) -> list[dict[str, Any]]:
        return [change(op, lsn, key, seq=key) for key in range(30)]

    changes = [*rows("create", 1), change("truncate", 2), *rows("create", 3)]
    kafka = opened(topic="{own}-{schema}-{table}")
    kafka.write(table(T, frame(spark, changes), truncated=(2, 0)))
    for records in by_partition(kafka.read(f"{kafka.topic}-public-t")).values():
        half = len(records) // 2
        assert half > 1
        assert [r.value["op"] for r in records if r.value] == ["create"] * half + ["truncate"] + ["create"] * half
        assert records[half].key == "{}"


def test_the_truncate_of_a_table_that_shares_its_topic_names_it(spark: SparkSession, opened: Open) -> None:
    kafka = opened()
    kafka.write(table(U, frame(spark, [change("truncate", 2)], U), truncated=(2, 0)))
    assert [json.loads(r.key or "") for r in kafka.read()] == [{"schema": "public", "table": "u", "key": {}}] * 3


def test_a_compacted_topic_has_the_last_event_of_each_row(spark: SparkSession, opened: Open) -> None:
    compact = {
        "cleanup.policy": "compact",
        "segment.ms": "200",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
        "min.compaction.lag.ms": "0",
    }
    kafka = opened(partitions=1, topic_options=compact)
    changes = [
        *(change("update", 2, 1, f"n{n}", seq=n) for n in range(20)),
        change("create", 3, 2, "short life"),
        change("delete", 4, 2),
        change("truncate", 5),
        change("create", 6, 3, "new"),
    ]
    kafka.write(table(T, frame(spark, changes), truncated=(5, 0)))
    wanted = [("update", {"id": 1}, "n19"), ("truncate", {}, None), ("create", {"id": 3}, "new")]
    deadline = time.monotonic() + 90
    number = 7
    while True:
        found = [r for r in kafka.read() if json.loads(r.key or "")["key"] != {"id": 0}]
        left = [
            (
                r.value and r.value["op"],
                json.loads(r.key or "")["key"],
                ((r.value or {}).get("after") or {}).get("note"),
            )
            for r in found
        ]
        if left == wanted:
            return
        assert time.monotonic() < deadline, left
        number += 1  # the part of the log that is written to is not compacted: it must go on
        kafka.write(table(T, frame(spark, [change("update", number, 0)])))


def test_debeziums_words(spark: SparkSession, opened: Open) -> None:
    kafka = opened(format="debezium")
    rows = [change("create", 1, 1, "a"), change("update", 2, 1, "b"), change("delete", 3, 1)]
    kafka.write(table(T, frame(spark, rows), frame(spark, [read(9, 2, "r")])))
    found = [r for r in kafka.read() if '"id":1' in (r.key or "")]
    assert [r.value and (r.value["op"], r.value["after"]) for r in found] == [
        ("c", {"id": 1, "note": "a"}),
        ("u", {"id": 1, "note": "b"}),
        ("d", None),
        None,
    ]
    assert [r.value["source"]["lsn"] for r in found if r.value] == [1, 2, 3]


def bare(rows: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    """A formatter that has no keys."""
    return event_columns(pa.nulls(rows.num_rows, pa.string()), pa.array(['"x"'] * rows.num_rows))


def test_a_formatter_of_ones_own_makes_the_keys(spark: SparkSession, opened: Open) -> None:
    kafka = opened(format="tests.sinks.test_kafka:bare")
    kafka.write(table(T, frame(spark, [change("create", 1, 1), change("truncate", 2)]), truncated=(2, 0)))
    emptied = '{"schema":"public","table":"t","key":{}}'
    assert sorted(r.key or "" for r in kafka.read()) == ["", emptied, emptied, emptied]


# -- brokers that come and go ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [PATIENCE, SHORT], ids=["waited for", "given up"])
def test_a_broker_may_die_in_the_middle_of_a_batch(
    spark: SparkSession, opened: Open, broker: KafkaBroker, options: dict[str, str]
) -> None:
    """Soon there again, the producer goes on; else the batch is given again. Nothing is lost, and without what is there
    twice everything is in order."""
    size = 60_000
    kafka = opened(options=options)
    kafka.write(table(T, frame(spark, [change("create", 0, 0)])))
    schema = frame(spark, []).schema
    rows = spark.range(1, size, 1, 2).selectExpr(
        "int(id % 50) as id", "repeat('x', 200) as note", "'update' as _op", "id as _lsn", "0 as _seq", "id as _txid",
        "timestamp '2024-01-01' as _committed_at", "string(null) as _dump", "string(null) as _schema",
        "array('') as _unchanged", "string(null) as _raw_values",
    ).selectExpr(*(f"cast({f.name} as {f.dataType.simpleString()}) as {f.name}" for f in schema))  # fmt: skip
    said: list[str] = []

    def crash() -> None:
        deadline = time.monotonic() + 60
        log = broker.data / f"{kafka.topic}-0"
        while sum(f.stat().st_size for f in log.glob("*.log")) < 100_000 and time.monotonic() < deadline:
            time.sleep(0.005)
        broker.kill()
        said.append("killed")
        time.sleep(0.0 if options is PATIENCE else 6.0)
        broker.start()
        said.append("started")

    crashing = threading.Thread(target=crash)
    crashing.start()
    deadline = time.monotonic() + 120
    while True:
        try:
            kafka.write(table(T, rows))
            break
        except SinkUnreachable as error:
            said.append(error.message)
            assert time.monotonic() < deadline, said
            time.sleep(0.5)
    crashing.join()
    assert said[0] == "killed", "the batch was written before the broker could be killed"
    if options is SHORT:
        assert any("reached" in text for text in said)
    found = kafka.read()
    first = list(dict.fromkeys((r.value["key"]["id"], r.value["lsn"]) for r in found if r.value))
    assert len(first) == size
    for key in range(50):
        mine = [lsn for owner, lsn in first if owner == key]
        assert mine == sorted(mine)


def test_a_broker_that_is_away_is_told_at_once(spark: SparkSession, opened: Open, broker: KafkaBroker) -> None:
    kafka = opened()
    broker.kill()
    begin = time.monotonic()
    with pytest.raises(SinkUnreachable, match="Connection refused"):
        kafka.write(table(T, frame(spark, [change("create", 1, 1)])))
    assert time.monotonic() - begin < 10
    broker.start()
    kafka.write(table(T, frame(spark, [change("create", 1, 1)])))
    assert len(kafka.read()) == 1


def test_a_broker_that_does_not_answer_is_away(spark: SparkSession, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        given = {"servers": f"127.0.0.1:{deaf.getsockname()[1]}", "package": "none", "options": SHORT}
        sink = KafkaSink(read_settings("sink", given, KafkaSink.settings), SinkContext("shop", tmp_path))
        sink.check()
        sink.open(spark)
        with pytest.raises(SinkUnreachable, match="cannot be reached"):
            sink.write(Batch(1, 1, (table(T, frame(spark, [change("create", 1, 1)])),)))


ORPHANED = """
import os, signal
from dblog.testing.kafka_broker import KafkaBroker
broker = KafkaBroker().start()
print(broker.port, broker.data.parent, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_broker_does_not_outlive_its_owner() -> None:
    done = subprocess.run([sys.executable, "-c", ORPHANED], check=False, capture_output=True, text=True, timeout=120)
    port, home = done.stdout.split()
    deadline = time.monotonic() + 20
    while Path(home).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(home).exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)), 5)


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"servers": "localhost"}, "servers"),
        ({"servers": "127.0.0.1:1, [::1"}, "servers"),
        ({"topic": "{schema}.{tables}"}, "topic"),
        ({"topic": "{schema"}, "topic"),
        ({"topic": "my topic"}, "topic"),
        ({"format": "nowhere:at_all"}, "nowhere"),
        ({"options": {"acks": "0"}}, "acks"),
        ({"options": {"transactional.id": "x", "enable.idempotence": "false"}}, "enable.idempotence"),
    ],
)
def test_wrong_settings_are_refused_before_anything_begins(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    values = read_settings("sink", {"servers": "127.0.0.1:1", **given}, KafkaSink.settings)
    with pytest.raises(ConfigError, match=said):
        KafkaSink(values, SinkContext("shop", tmp_path)).check()


def test_any_of_the_servers_will_do(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.start()
    given = {"servers": f"127.0.0.1:1, {broker.servers}"}
    KafkaSink(read_settings("sink", given, KafkaSink.settings), SinkContext("shop", tmp_path)).check()


def test_an_event_that_is_too_large_ends_the_pipeline(spark: SparkSession, opened: Open) -> None:
    kafka = opened(options={**PATIENCE, "max.request.size": "20000"})
    with pytest.raises(SinkError, match="RecordTooLargeException") as wrong:
        kafka.write(table(T, frame(spark, [change("create", 1, 1, "x" * 30_000)])))
    assert not isinstance(wrong.value, SinkUnreachable)
    assert "max.request.size" in str(wrong.value)


def test_two_tables_do_not_get_into_one_topic_by_accident(spark: SparkSession, opened: Open) -> None:
    kafka = opened(topic="{table}")
    other = TableSchema(TableName("private", "t"), T.columns, T.key)
    rows = frame(spark, [change("create", 1, 1)])
    with pytest.raises(SinkError, match=r"'public\.t' and 'private\.t'") as wrong:
        kafka.write(table(T, rows), table(other, rows))
    assert "{schema}" in str(wrong.value)


def test_odd_names_have_a_topic(spark: SparkSession, opened: Open) -> None:
    kafka = opened(topic="{schema}.{table}")
    name = f"Größe {kafka.topic}"
    odd = TableSchema(TableName("", name), T.columns, T.key)
    kafka.write(table(odd, frame(spark, [change("create", 1, 1)])))
    assert [r.value and r.value["table"] for r in kafka.read(f"Gr__e_{kafka.topic}")] == [name]


def test_a_secret_is_not_shown(spark: SparkSession, opened: Open) -> None:
    secret = uuid.uuid4().hex
    kafka = opened(options={**PATIENCE, "ssl.keystore.key": secret})
    kafka.write(table(T, frame(spark, [change("create", 1, 1)])))
    plans: Any = spark._jsparkSession.sharedState().statusStore().executionsList()
    shown = "".join(plans.apply(n).physicalPlanDescription() for n in range(plans.size()))
    assert "SaveIntoDataSourceCommand" in shown
    assert secret not in shown
    bad = opened(options={**PATIENCE, "compression.type": secret})
    with pytest.raises(SinkError) as wrong:
        bad.write(table(T, frame(spark, [change("create", 1, 1)])))
    assert "compression.type" in str(wrong.value)
    assert secret not in str(wrong.value)


LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SECURED = {
    "listener.security.protocol.map": "BROKER:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.broker.plain.sasl.jaas.config": (
        f'{LOGIN} username="broker" password="own" user_broker="own" user_shop="right";'
    ),
}


def test_a_cluster_may_want_a_password(spark: SparkSession, tmp_path: Path) -> None:
    def options(password: str) -> dict[str, str]:
        login = f'{LOGIN} username="shop" password="{password}";'
        return {
            **PATIENCE,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": login,
        }

    given = table(T, frame(spark, [change("create", 1, 1, "a")]))
    with KafkaBroker(settings=SECURED) as secured:
        wrong = Followed(spark, secured, tmp_path, options=options("wr0ng"))
        with pytest.raises(SinkError, match="SaslAuthentication") as refused:
            wrong.write(given)
        assert "password" in str(refused.value.hint)
        assert "wr0ng" not in str(refused.value)
        kafka = Followed(spark, secured, tmp_path, options=options("right"))
        kafka.write(given)
        source = spark.read.format("kafka").option("subscribe", kafka.topic)
        for name, value in {**options("right"), "bootstrap.servers": secured.servers}.items():
            source = source.option(f"kafka.{name}", value)
        assert [json.loads(row.value)["after"]["id"] for row in source.load().collect()] == [1]


# -- the connector ------------------------------------------------------------------------------------------------


def test_the_tests_use_the_connector_that_users_get() -> None:
    (package,) = set(RELEASES["kafka"].values())
    _, name, version = package.split(":")
    assert (CONNECTORS / f"{name}-{version}.jar").exists()


FETCHED = """
import sys, dblog
from pathlib import Path
from dblog.sinks.base import SinkContext
from dblog.sinks.kafka import KafkaSink
from dblog.core.settings import read_settings
sink = KafkaSink(read_settings("sink", {"servers": sys.argv[1]}, KafkaSink.settings), SinkContext("shop", Path()))
sink.check()
settings = {name.replace(".", "__"): value for name, value in sink.spark_settings.items()}
spark = dblog.session(master="local[1]", spark__ui__enabled="false", spark__jars__ivy=sys.argv[2], **settings)
sink.open(spark)
spark.range(3).selectExpr("string(id) as value", "'fetched' as topic").write.format("kafka").option(
    "kafka.bootstrap.servers", sys.argv[1]).save()
"""


def fetchable(folder: Path) -> bool:
    """Whether a jar that is known to exist can be fetched now, without a cache."""
    lists = (Path(__file__).parents[2] / "scripts" / "kafka.sh").read_text()
    (line,) = re.findall(r"^# spark (\w+ \S+commons-pool2\S+)$", lists, re.MULTILINE)
    (folder / "fresh").mkdir()
    return fetch(folder / "fresh", {}, line).returncode == 0


@pytest.mark.slow
def test_spark_fetches_the_connector(spark: SparkSession, opened: Open, broker: KafkaBroker, tmp_path: Path) -> None:
    own = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    command = [sys.executable, "-c", FETCHED, broker.servers, str(tmp_path / "ivy")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=own, cwd=tmp_path, timeout=500)
    if done.returncode and not fetchable(tmp_path):
        pytest.skip("nothing can be fetched here")
    assert done.returncode == 0, done.stderr[-3000:]
    assert not list((tmp_path / "ivy" / "jars").glob("*hadoop*"))
    assert len(opened().read("fetched")) == 3
