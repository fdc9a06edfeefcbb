"""The position and counts that a stream has reached, from Spark's progress report of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dblog.spark.progress import offset


@dataclass(frozen=True)
class Reached:
    """The position and counts of a stream after a batch."""

    batch: int
    position: int | None
    seconds: float
    at: str
    changes: int
    """Changes of the log delivered since the stream was started."""
    rows: int
    """Rows of dumps delivered since the stream was started."""
    dumping: bool
    """Whether a dump still has rows to read or to deliver after this batch."""
    tables: tuple[str, ...]
    """The tables whose changes are delivered."""
    caught_up: bool
    """Whether all captured log is delivered."""


def reached_by(progress: Any, rows: int, before: tuple[int, int]) -> Reached:
    """Read Spark's progress report of a batch. `rows` of dumps were given to the sink by this query; `before` are the
    changes and rows of earlier queries of the stream."""
    end, latest = offset(progress, "endOffset"), offset(progress, "latestOffset")
    position, tables = end.get("pos"), tuple(".".join(t) for t in end.get("tables", ()))
    dumping = bool(end.get("read") or end.get("dumps") or not tables)
    return Reached(
        progress["batchId"],
        position,
        progress["batchDuration"] / 1000,
        progress["timestamp"],
        before[0] + latest.get("events", 0),
        before[1] + rows,
        dumping,
        tables,
        not dumping and (position or 0) >= latest.get("captured", 0),
    )
