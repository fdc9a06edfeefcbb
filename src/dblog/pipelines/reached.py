"""How far a stream is, as its last batch tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dblog.spark.progress import offset


@dataclass(frozen=True)
class Reached:
    """How far a stream is."""

    batch: int
    position: int | None
    seconds: float
    at: str
    changes: int
    """Of the log, since the stream was started."""
    rows: int
    """Of dumps, likewise."""
    dumping: bool
    """Whether a dump has anything left to read or to deliver after this batch."""
    tables: tuple[str, ...]
    """Those whose changes are delivered."""
    caught_up: bool
    """Whether all captured log is delivered."""


def reached_by(progress: Any, rows: int, before: tuple[int, int]) -> Reached:
    """What Spark's progress of a batch says, and how many `rows` of dumps the sink has been given. `before` are the
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
