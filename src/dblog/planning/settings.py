"""The settings of a stream, and its counts in this life."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StreamSettings:
    """The settings of a stream."""

    dump: bool = True
    """Whether every table is dumped when the stream first follows it."""
    before: bool = False
    chunk_rows: int | None = None
    parallelism: int = 2
    read_ahead: int = 256 << 20
    heartbeat: float = 30.0
    patience: float = 300.0
    max_delay: float | None = None
    """How long a round may delay the log, in seconds; None if that follows the time that batches take."""
    batch_seconds: float = 0.0
    """The least time from one batch to the next, in seconds, unless a round of a dump is to run."""
    follow_renamed: bool = False
    """Whether a renamed table is followed further, under its old name. Otherwise it stops the stream."""
    follow_new: bool = True
    """Whether tables that are created while the stream runs join it. Otherwise they are only reported."""
    set_aside: bool = False
    """Whether a table that fails is set aside, and the others go on. Otherwise it stops the stream."""


@dataclass
class Counts:
    """What the stream has done in this life, for progress reports."""

    windows: int = 0
    dumped: int = 0
    dropped: int = 0
    events: int = 0
    raw: int = 0
    """Values that their column's type cannot hold (`core.raw_values`)."""

    def to_json(self) -> dict[str, int]:
        return dict(vars(self))
