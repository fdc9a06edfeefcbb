"""`dblog run` itself: the command with a file, as a user starts it, and what its checkpoint says of how far it is.

A command's time is taken as a whole, with `--once`. Its start is measured with next to no work and subtracted. A
command that keeps running is observed from outside through Spark's checkpoint: the file `offsets/<n>` has what batch
`n` brings and how far the log and the dumps are then, and `commits/<n>` appears when the sink has all of it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cpu import metered, tree_seconds
from bench.figures import Cpu
from bench.postgres import Postgres
from dblog.core.offset import Offset

DBLOG = Path(sys.executable).with_name("dblog")
LOOK_SECONDS = 0.005
STOP_SECONDS = 60.0


@dataclass(frozen=True)
class Ran:
    """A command that ended by itself."""

    seconds: float
    cpu: Cpu
    """Processor seconds, not yet per million."""


class Pipeline:
    """One pipeline of one sink: its file, folder and slot. It goes with `forget`."""

    def __init__(self, source: Postgres, folder: Path, name: str, tables: str, sink: Mapping[str, str], **more: str):
        """`more` has lines for the sections `source` and `pipeline`, like `of_source='dump = "never"'`."""
        self._source, self.name, self._tables, self._sink = source, name, tables, sink
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        self._file = self.folder / f"{name}.toml"
        self.rewrite(**more)
        (self.folder / "log").touch()
        self.checkpoint = Checkpoint(self.folder / f"{name}.dblog" / sink["type"] / "checkpoint")

    def rewrite(self, **more: str) -> None:
        """Write the file, with other lines than before."""
        source, name = self._source, self.name
        lines = [
            "[source]", f"url = {json.dumps(source.url)}", f"tables = [{json.dumps(self._tables)}]",
            more.get("of_source", ""),
            "[pipeline]", f"name = {json.dumps(name)}", f"state = {json.dumps(str(self.folder / 'state.db'))}",
            more.get("of_pipeline", ""),
            "[[sink]]", *(f"{key} = {json.dumps(value)}" for key, value in self._sink.items()),
        ]  # fmt: skip
        self._file.write_text("\n".join(lines) + "\n")

    def once(self, *, target: int | None = None) -> Ran:
        """Deliver what there is. `target` is the first process of the target's server."""
        begin = time.monotonic()
        with (
            metered(source=[self._source.pid], target=[target] if target else [], sampling=True) as sides,
            self._started("--once") as process,
        ):
            sides.add(process.pid)
            code = process.wait()
            seconds = time.monotonic() - begin
            sides.sample()
        if code:
            raise RuntimeError(f"dblog run ended with {code}: {self._said()}")
        return Ran(seconds, sides.used)

    @contextmanager
    def running(self) -> Iterator[Running]:
        """The command until the block ends."""
        with self._started() as process:
            yield Running(process, self)

    @contextmanager
    def _started(self, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [DBLOG, "run", self._file, *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def forget(self) -> None:
        self._source.forget(self.name)
        shutil.rmtree(self.folder, ignore_errors=True)


class Running:
    """A command that runs."""

    def __init__(self, process: subprocess.Popen[bytes], pipeline: Pipeline) -> None:
        self._process, self._pipeline = process, pipeline
        self._checkpoint = pipeline.checkpoint

    @property
    def pid(self) -> int:
        return self._process.pid

    def until_started(self, seconds: float = 300.0) -> float:
        """Wait for the first offset: the log is followed from there. Returns the time when it was written."""
        return self._wait(self._checkpoint.started, seconds, "started")

    def until_dumped(self, seconds: float = 1800.0) -> float:
        """Wait until every row of the first dump is in the sink. Returns the time when it was committed."""
        return self._wait(self._checkpoint.dumped, seconds, "finished its dumps")

    def until(self, position: int, seconds: float = 600.0) -> float:
        """Wait until the sink has the log up to a position. Returns the time when it was committed."""
        return self._wait(lambda: self._checkpoint.reached(position), seconds, "got there")

    def _wait(self, look: Callable[[], float | None], seconds: float, what: str) -> float:
        deadline = time.monotonic() + seconds
        while (at := look()) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"dblog run has not {what}: {self._pipeline._said()}")
            time.sleep(LOOK_SECONDS)
        return float(at)

    def idle_share(self, seconds: float) -> float:
        """How much of one core all its processes use together, in percent."""
        before, begin = tree_seconds(self.pid), time.monotonic()
        time.sleep(seconds)
        return 100 * (tree_seconds(self.pid) - before) / (time.monotonic() - begin)


class Checkpoint:
    """Spark's checkpoint of a stream, read while the stream runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[int, Offset] = {}

    def started(self) -> float | None:
        """When the first offset was written."""
        return self._written("offsets", 0)

    def dumped(self) -> float | None:
        """When the first batch was committed after which no rows of dumps are to come."""
        begun = False
        for number in self._committed():
            offset = self._offset(number)
            if offset.read or offset.dumps:
                begun = True
            elif begun or offset.emit:
                return self._written("commits", number)
        return None

    def reached(self, position: int) -> float | None:
        """When a batch was committed that brings the log up to a position."""
        for number in self._committed():
            if (self._offset(number).position or 0) >= position:
                return self._written("commits", number)
        return None

    def size(self) -> int:
        """Bytes of the newest offset."""
        numbers = self._numbers("offsets")
        return len(self._line(numbers[-1])) if numbers else 0

    def _offset(self, number: int) -> Offset:
        if number not in self._known:
            self._known[number] = Offset.from_json(json.loads(self._line(number)))
        return self._known[number]

    def _line(self, number: int) -> str:
        """The source's line: the first one is a version, the second one is Spark's own."""
        return (self._folder / "offsets" / str(number)).read_text().splitlines()[2]

    def _committed(self) -> list[int]:
        return [n for n in self._numbers("commits") if (self._folder / "offsets" / str(n)).exists()]

    def _numbers(self, folder: str) -> list[int]:
        try:
            return sorted(int(name) for name in os.listdir(self._folder / folder) if name.isdecimal())
        except FileNotFoundError:
            return []

    def _written(self, folder: str, number: int) -> float | None:
        try:
            return (self._folder / folder / str(number)).stat().st_mtime
        except FileNotFoundError:
            return None


def net_rate(rows: int, whole: float, start: float) -> float:
    """Rows per second of a command, without its start."""
    return rows / max(whole - start, 1e-3)


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("DBLOG_", "SPARK_", "PYSPARK_"))}
