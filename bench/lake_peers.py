"""The same work into a Delta table by others: Spark alone (JDBC and MERGE), and Debezium's JSON merged by Spark.

Delta's connector exists for PySpark 4.0 to 4.2 only, so Spark runs on another PySpark than ours, in a process of its
own that is started once (`bench.spark_lake`). It has the same cores, and has made each step once before it is measured.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import debezium
from bench.cpu import metered
from bench.database import UPDATES, Stretch
from bench.figures import NO_CPU, Cpu
from bench.postgres import Postgres

MINOR = "4.1"
"""The PySpark of the peers: `scripts/sparks.sh` puts it beside the environment's own."""
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Work:
    """What a side did: rows or changes per second, and processor seconds per million of them."""

    rate: float
    cpu: Cpu


def available() -> bool:
    return _pyspark().is_dir()


def _pyspark() -> Path:
    return Path(sys.prefix) / f"spark-{MINOR}"


class SparkPeer:
    """The other Spark."""

    def __init__(self, database: Postgres, folder: Path) -> None:
        self._database, self._folder, self._made = database, folder, 0
        path = os.pathsep.join([str(_pyspark()), str(ROOT), str(ROOT / "src")])
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_", "DBLOG_"))}
        self._log = (folder / "log").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.spark_lake"],
            env={**environment, "PYTHONPATH": path}, cwd=folder,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip

    def ask(self, what: str, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": what, **order}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._log.seek(0)
            lines = self._log.read().decode(errors="replace").splitlines()
            said = "\n".join(line for line in lines if not line.lstrip().startswith(("at ", "...")))
            raise RuntimeError(f"the other Spark failed to {what}: {said[-3000:]}")
        return dict(json.loads(answer))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def warm(self) -> None:
        """Do every step once, so that Java has compiled the code. The table `warm` is there."""
        copied = self.path()
        self.ask("dump", table="warm", path=copied, form="delta")
        self.ask("refresh", table="warm", path=copied)
        self.ask("dump", table="warm", path=self.path(), form="parquet")

    def path(self) -> str:
        self._made += 1
        return str(self._folder / str(self._made))

    # -- Spark alone -----------------------------------------------------------------------------------------

    def dump(self, table: str, rows: int, form: str = "delta") -> Work:
        path = self.path()
        with metered(own=[self._process.pid], source=[self._database.pid]) as sides:
            seconds = self.ask("dump", table=table, path=path, form=form)["seconds"]
        if form == "delta":
            self._expect(path, rows)
        shutil.rmtree(path)
        return Work(rows / seconds, sides.used.per_million(rows))

    def copy_of(self, table: str) -> str:
        """A Delta table with what the table has now. Not measured."""
        path = self.path()
        self.ask("dump", table=table, path=path, form="delta")
        return path

    def refresh(self, table: str, path: str, changes: int) -> Work:
        """Bring the copy up to date: Spark knows no log, so it reads the table again."""
        with metered(own=[self._process.pid], source=[self._database.pid]) as sides:
            seconds = self.ask("refresh", table=table, path=path)["seconds"]
        self._expect(path, int(self._database.ask(f"select count(*) from {table}")))
        return Work(changes / seconds, sides.used.per_million(changes))

    def _expect(self, path: str, rows: int) -> None:
        found = self.ask("count", path=path)["rows"]
        if found != rows:
            raise RuntimeError(f"the Delta table of the other Spark has {found} rows instead of {rows}")

    # -- Debezium's JSON, merged by Spark --------------------------------------------------------------------

    def debezium_dump(self, table: str, rows: int) -> Work:
        with self._database.debezium_reads_tables(table) as properties, self._merging(rows) as merged:
            merged.engine = debezium.copy(self._database, table, rows, properties, merged.folder).cpu
        return merged.done

    def debezium_catchup(self, stretch: Stretch) -> Work:
        with self._merging(stretch.changes) as merged:
            merged.engine = debezium.drain_log(self._database, stretch, debezium.JSON, merged.folder).cpu
        inserted = self._database.ask("select count(*) from wide where id > %s", stretch.keys[0])
        self._expect(merged.path, inserted + UPDATES)  # the first transaction updates rows of the one before
        return merged.done

    @contextmanager
    def _merging(self, rows: int) -> Iterator[Merged]:
        merged = Merged(Path(self.path()), self.path())
        merged.folder.mkdir()
        self.ask("follow", folder=str(merged.folder), path=merged.path, checkpoint=self.path())
        with metered(own=[self._process.pid]) as sides:
            begin = time.time()
            yield merged
            said = self.ask("finish")
        merged.work = merged_work(begin, said["rows"], said["done"], rows, merged.engine, sides.used)
        shutil.rmtree(merged.folder)


@dataclass
class Merged:
    """A folder that Debezium writes to and Spark reads, and how it went."""

    folder: Path
    path: str
    """The Delta table."""
    engine: Cpu = NO_CPU
    work: Work | None = None

    @property
    def done(self) -> Work:
        assert self.work is not None
        return self.work


def merged_work(begin: float, rows: list[int], done: list[float], least: int, engine: Cpu, spark: Cpu) -> Work:
    """The speed of the whole chain, by when Spark's batches were done. As everywhere the first quarter of the rows is
    left out, in which the engine starts and Java compiles; unless all came in one batch."""
    total = sum(rows)
    if total < least:
        raise RuntimeError(f"{least} rows were to be merged, {total} were")
    warm_rows, warm = 0, begin
    for count, at in zip(rows[:-1], done, strict=False):
        if warm_rows * 4 >= total:
            break
        warm_rows, warm = warm_rows + count, at
    own = spark.per_million(total).own + engine.own
    return Work((total - warm_rows) / max(done[-1] - warm, 1e-9), Cpu(own, engine.source))


@contextmanager
def spark_peer(database: Postgres) -> Iterator[SparkPeer]:
    """The other Spark, warm. The table `warm` must be there."""
    with tempfile.TemporaryDirectory(prefix="dblog-bench-") as folder:
        peer = SparkPeer(database, Path(folder))
        try:
            peer.ask("start", url=database.url)
            peer.warm()
            yield peer
        finally:
            peer.close()
