"""Starts `app.py`, and reads what it has written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.history import History
from tests.spark.home import quick_spark

ROOT = Path(__file__).parents[2]


class App:
    """One life of an application with all its processes. A `held` one does not touch the source before `go`."""

    def __init__(self, folder: Path, options: dict[str, Any], **given: Any) -> None:
        self.folder = folder
        (folder / "out").mkdir(parents=True, exist_ok=True)
        config = {"checkpoint": str(folder / "checkpoint"), "out": str(folder / "out"), **given}
        config["options"] = {"spool": str(folder / "spool"), **{k: str(v) for k, v in options.items()}}
        self.said = folder / f"said-{time.monotonic_ns()}"
        with self.said.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("app.py"), json.dumps(config)],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.PIPE,
                bufsize=0,
                cwd=folder,
                env={**environment(), "SPARK_LOCAL_DIRS": str(folder / "local")},  # a killed one leaves them
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.said.read_text()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")

    def wait(self, seconds: float = 120.0) -> None:
        """Until it ends by itself, and well."""
        assert self.process.wait(seconds) == 0, self.output[-5000:]

    def until(self, ready: Callable[[], bool], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            assert self.process.poll() is None, self.output[-5000:]
            assert time.monotonic() < deadline, f"not reached in {seconds} s: {self.output[-3000:]}"
            time.sleep(0.2)

    def kill(self) -> None:
        """Python and the JVM at once, without a word. Spark's workers find that out, each in its own time."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def bury(self, seconds: float = 20.0) -> None:
        """Nothing of it is left after this, and nothing had to be helped."""
        self.kill()
        deadline = time.monotonic() + seconds
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        survivors = f"these outlive their driver: {left}"
        for process in left:
            process.kill()
        assert not left, survivors

    def _processes(self) -> list[psutil.Process]:
        """Those of its session: it is told from others by that even when its first process is gone."""
        return [process for process in psutil.process_iter() if _session(process) == self.process.pid]


@contextmanager
def running(folder: Path, options: dict[str, Any], **given: Any) -> Iterator[App]:
    app = App(folder, options, **given)
    try:
        yield app
    finally:
        app.bury()


def _session(process: psutil.Process) -> int | None:
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else os.getsid(process.pid)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None


def environment() -> dict[str, str]:
    """For processes of Spark."""
    return {
        **os.environ,
        **quick_spark(),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYSPARK_PYTHON": sys.executable,
    }


def delivered(folder: Path, key: tuple[str, ...] = ("id",)) -> History:
    """The history that all lives together have written; a batch that was written twice must be the same twice."""
    history = History(key)
    for path in sorted((folder / "out").glob("[0-9]*.json")):
        history.deliver(int(path.name.split("-")[0]), json.loads(path.read_text()))
    return history
