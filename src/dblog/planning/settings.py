"""How a stream runs, and what it has done in this life."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StreamSettings:
    """How a stream runs."""

    dump: bool = True
    """Whether every table is dumped when the stream first meets it."""
    before: bool = False
    chunk_rows: int | None = None
    parallelism: int = 2
    read_ahead: int = 256 << 20
    heartbeat: float = 30.0
    patience: float = 300.0
    follow_renamed: bool = False
    """A table that has left its name goes on under the name it had; otherwise it stops the stream."""
    follow_new: bool = True
    """A table joins that is created while the stream runs; otherwise people are told."""


@dataclass
class Counts:
    """What the stream has done in this life, for progress reports."""

    windows: int = 0
    dumped: int = 0
    dropped: int = 0
    events: int = 0

    def to_json(self) -> dict[str, int]:
        return dict(vars(self))
