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

from tests.history import History

ROOT = Path(__file__).parents[2]


class App:
    """One life of an application with all its processes."""

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
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env={**environment(), "SPARK_LOCAL_DIRS": str(folder / "local")},  # a killed one leaves them behind
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.said.read_text()

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
        """All its processes at once, without a word."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def running(folder: Path, options: dict[str, Any], **given: Any) -> Iterator[App]:
    app = App(folder, options, **given)
    try:
        yield app
    finally:
        app.kill()


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "PYTHONDONTWRITEBYTECODE": "1"}


def delivered(folder: Path, key: tuple[str, ...] = ("id",)) -> History:
    """The history that all lives together have written; a batch that was written twice must be the same twice."""
    history = History(key)
    for path in sorted((folder / "out").glob("[0-9]*.json")):
        history.deliver(int(path.name.split("-")[0]), json.loads(path.read_text()))
    return history
