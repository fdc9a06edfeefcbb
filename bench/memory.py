"""Memory: one transaction of a million rows, and the largest resident set that each process of the application had."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from bench.database import Database
from bench.figures import Figure, Target
from bench.ours import Ours

SAMPLE_SECONDS = 0.05
MEGABYTE = 1 << 20


@dataclass
class Peak:
    """The largest resident set seen of a process, in MB."""

    role: str
    megabytes: float = 0.0


def measure(database: Database, ours: Ours, rows: int) -> tuple[list[Figure], list[Target]]:
    database.fill("one", 0)
    with ours.stream(table=f"{database.schema}.one", dump="never") as stream:
        stream.drain()
        database.write_transaction("one", rows)
        with sampled() as peaks:
            drain = stream.drain()
    if drain.rows != rows:
        raise RuntimeError(f"{rows} rows were written, {drain.rows} came")
    highest: dict[str, float] = {}
    for peak in peaks.values():
        highest[peak.role] = max(highest.get(peak.role, 0.0), peak.megabytes)
    note = f"{rows:,} rows in one transaction, delivered at {drain.rate:,.0f} rows/s"
    figures = [Figure("memory", role, (megabytes,), "MB", note) for role, megabytes in sorted(highest.items())]
    python = max(megabytes for role, megabytes in highest.items() if role != "JVM")
    return figures, [Target("memory of the largest Python process", python, " MB", 400, least=False, aim=300)]


@contextlib.contextmanager
def sampled() -> Iterator[dict[int, Peak]]:
    """The peaks of all processes below this one while the block runs."""
    peaks: dict[int, Peak] = {}
    stop = threading.Event()

    def sample() -> None:
        me = psutil.Process()
        while not stop.wait(SAMPLE_SECONDS):
            for process in me.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    if process.pid not in peaks:
                        role = _role(process)
                        if role is None:
                            continue
                        peaks[process.pid] = Peak(role)
                    peak = peaks[process.pid]
                    peak.megabytes = max(peak.megabytes, process.memory_info().rss / MEGABYTE)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        stop.set()
        thread.join()


def _role(process: psutil.Process) -> str | None:
    """Which process of Spark's this is; None for one that is not."""
    command = " ".join(process.cmdline())
    if process.name() == "java":
        return "JVM"
    if "source_runner" in command:
        return "source process (Python)"
    if "pyspark" in command and "python" in process.name():
        parent = process.parent()
        forked = parent is not None and parent.name() != "java"
        return "worker (Python)" if forked else "daemon (Python)"
    return None
