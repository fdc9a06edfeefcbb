"""A pipeline in a process of its own, which kills itself in the middle of a batch: `app.py <json>`.

It waits for a line on its standard input when Spark is there. `die` is "after" to die when the batch is written but
Spark does not know it yet, or the seconds after which to die while a batch is written; batches before `batches` live.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dblog
from dblog.pipelines.delivery import Delivery
from dblog.sinks.base import Batch, Sink
from tests.sinks.pipeline import Watched, Written
from tests.sinks.target import Target
from tests.spark.apps import environment

ROOT = Path(__file__).parents[2]


class Life:
    """One life of such a process."""

    def __init__(self, folder: Path, target: Target, options: dict[str, str], *, die: str | float, batches: int = 0):
        sink = folder / f"sink-{time.monotonic_ns()}"
        sink.write_bytes(pickle.dumps((target.sink, target.settings())))
        given = {"folder": str(folder), "sink": str(sink), "options": options, "die": die, "batches": batches}
        self._said = sink.with_suffix(".said")
        with self._said.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(given)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**environment(), "SPARK_LOCAL_DIRS": str(folder / "local")},
                start_new_session=True,
            )

    def live(self, seconds: float = 120.0) -> None:
        """Until it has killed itself."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()
        assert self._process.wait(seconds) == -signal.SIGKILL, self._said.read_text()[-5000:]

    def end(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


def main(given: dict[str, Any]) -> None:
    folder = Path(given["folder"])
    sink = _sink(folder, Path(given["sink"]))
    settings = {name.replace(".", "__"): value for name, value in sink.spark_settings.items()}
    settings |= {"spark__ui__enabled": "false", "spark__sql__shuffle__partitions": "2"}
    spark = dblog.session("life", master="local[2]", **settings)
    spark.sparkContext.setLogLevel("ERROR")
    if not sys.stdin.readline():
        return

    def write(batch: Batch, really: Written) -> None:
        doomed = watched.begun > given["batches"]
        if doomed and given["die"] != "after":
            threading.Timer(given["die"], _die).start()
        really(batch)
        if doomed:
            if given["die"] != "after":
                time.sleep(given["die"])
            _die()

    watched = Watched(sink, write)
    watched.check()
    watched.open(spark)
    delivery = Delivery(spark, watched, given["options"])
    stream = spark.readStream.format("dblog").options(**given["options"]).load().writeStream
    query = stream.option("checkpointLocation", str(folder / "checkpoint")).foreachBatch(delivery).start()
    query.awaitTermination()


def _sink(folder: Path, described: Path) -> Sink:
    kind, settings = pickle.loads(described.read_bytes())

    class Described(Target):
        sink = kind

        def settings(self) -> dict[str, Any]:
            return dict(settings)

        def rows(self, table: Any) -> Any:
            raise NotImplementedError

    return Described().make(folder)


def _die() -> None:
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
