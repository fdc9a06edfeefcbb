"""Runs `dblog`: in this process where only words matter, in one of its own where signals do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from dblog.cli import app

SOURCE = Path(__file__).parents[2] / "src"
PATH = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))  # which may have another PySpark
# Where tests run as a background job interruptions are ignored, and children would ignore them too.
HEEDING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
PROGRAM = [sys.executable, "-c", f"{HEEDING}; from dblog.cli import main; main()"]


def dblog(*arguments: object, stdin: str | None = None, code: int = 0) -> Result:
    """A command that must end with this exit code."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr, result.exception)
    assert "Traceback" not in result.output
    return result


def document(*arguments: object, **given: Any) -> Any:
    """What a command prints with --json, which is one document."""
    return json.loads(dblog(*arguments, "--json", **given).stdout)


class Process:
    """`dblog` in a process of its own."""

    def __init__(self, folder: Path, *arguments: object, **environment: str) -> None:
        self.out, self.err = folder / "out", folder / "err"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("DBLOG_", "PG"))}
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [*PROGRAM, *map(str, arguments)],
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                env={**clean, "PYTHONPATH": PATH, "PYTHONIOENCODING": "utf-8", **environment},
            )

    @property
    def stdout(self) -> str:
        return self.out.read_text("utf-8")

    @property
    def stderr(self) -> str:
        return self.err.read_text("utf-8")

    def until(self, ready: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            assert self.process.poll() is None, (self.process.returncode, self.stdout, self.stderr)
            assert time.monotonic() < deadline, (self.stdout, self.stderr)
            time.sleep(0.05)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 60.0) -> int:
        return self.process.wait(seconds)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
