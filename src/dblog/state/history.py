"""Samples of a pipeline's status over the last hours, in a log of the state store that keeps a bounded number of them.

Counters of a sample begin at 0 when the pipeline starts (`started_at`), so a rate is the difference between two samples
of one life.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from dblog.state.pipeline import Pipeline
from dblog.state.store import Value

SAMPLE_SECONDS = 15.0
"""How often a sample is written, in seconds."""
KEEP_SAMPLES = 1920
"""How many samples the store keeps: those of eight hours."""

GAUGES = ("lag_seconds", "lag_bytes", "capture_lag_seconds", "spool_bytes", "last_batch_seconds")
COUNTERS = ("events", "rows", "dropped", "batches", "batch_seconds")


def sample(status: Mapping[str, Any], at: float) -> dict[str, Any]:
    """The sample of a status. What the status does not have is left out."""
    retained = (status.get("slot_health") or {}).get("retained_bytes")
    found = {name: status.get(name) for name in ("started_at", *GAUGES, *COUNTERS)} | {"retained_bytes": retained}
    return {"at": round(at, 3), **{name: _short(value) for name, value in found.items() if value is not None}}


def samples(pipeline: Pipeline, limit: int = KEEP_SAMPLES) -> Sequence[Value]:
    """The last samples, the oldest first."""
    return [value for _, value in pipeline.store.tail(pipeline.at("history"), limit=limit)]


class Sampler:
    """Writes samples of a running pipeline's status, one every `SAMPLE_SECONDS`."""

    def __init__(self) -> None:
        self._due = 0.0

    def add(self, pipeline: Pipeline, status: Mapping[str, Any]) -> None:
        """Write a sample if one is due."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + SAMPLE_SECONDS
        pipeline.store.append(pipeline.at("history"), [sample(status, time.time())], keep=KEEP_SAMPLES)


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value
