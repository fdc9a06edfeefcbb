"""A virtual environment with the built wheel and what it depends on, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.spark.home import QUICK_START

ROOT = Path(__file__).parents[2]
SECONDS = 240.0
"""How long a command may take, on a busy machine."""


def run(*command: object, folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        timeout=SECONDS,
    )


class Bare:
    """The environment. Programs in it have a home folder of their own, and no variables of the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        self.home = folder / "home"
        self.home.mkdir()
        self._pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", folder / "dist", ROOT)
        (self.wheel,) = (folder / "dist").iterdir()
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)

    def install(self, extras: str = "") -> None:
        self._pip(self.bin / "python", "install", f"{self.wheel}{extras}")

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG", "LC_ALL", "TMPDIR") if name in os.environ}
        # A Java that does not compile much starts sooner; everything else is as a user has it.
        quick = {"SPARK_SUBMIT_OPTS": QUICK_START, "SPARK_LAUNCHER_OPTS": QUICK_START}
        return {**kept, **quick, "PATH": os.environ["PATH"], "HOME": str(self.home), **more}

    def dblog(self, *arguments: object, folder: Path, code: int = 0, **environment: str) -> tuple[str, str]:
        """What the program prints, and what it says on standard error. It must end with this exit code."""
        done = run(self.bin / "dblog", *arguments, folder=folder, environment=self.environment(**environment))
        assert done.returncode == code, (done.returncode, done.stdout[-3000:], done.stderr[-6000:])
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr

    def python(self, code: str, folder: Path, **environment: str) -> str:
        """What a program in Python prints."""
        done = run(self.bin / "python", "-c", code, folder=folder, environment=self.environment(**environment))
        assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-6000:])
        return done.stdout

    def _pip(self, python: str | Path, *arguments: object) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = run(python, "-m", "pip", *arguments, folder=self.folder, environment=environment)
        assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
