"""What the page shows about all pipelines: how each of them does, the worst first, and its last hours."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from dblog.state.history import SAMPLE_SECONDS, sample, samples
from dblog.state.pipeline import ALIVE, RUNNING, Pipeline
from dblog.state.store import Value

RECENT_SAMPLES = 40
"""How many samples the list of pipelines has of each: those of ten minutes."""
LATE_SECONDS = 60.0
"""Lag above which a pipeline needs attention, in seconds."""
LOSS_SOON_SECONDS, LOSS_LATER_SECONDS = 3600.0, 86_400.0
"""If the slot may be lost within the first time, in seconds, the pipeline is in a bad state; within the second it needs
attention."""
LEAST_GROWTH_SECONDS = 120.0
"""The shortest time, in seconds, over which the growth of the retained log is measured."""
GAP_SECONDS = 8 * SAMPLE_SECONDS
"""Two samples with more time between them, in seconds, give no rate: the pipeline did not run in between."""

Severity = Literal["bad", "warn", "good", "idle"]
_ORDER: tuple[Severity, ...] = ("bad", "warn", "good", "idle")


class Lag(BaseModel):
    """The bytes of log that are not delivered, by the part that has to handle them next."""

    capture: int = Field(description="in the database, not captured yet")
    spool: int = Field(description="captured, in no batch yet")
    sink: int = Field(description="in the batch that is being delivered")


class Point(BaseModel):
    """A sample: gauges, and rates since the sample before; null if there are none."""

    at: float
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    capture_lag_seconds: float | None = None
    spool_bytes: int | None = None
    retained_bytes: int | None = None
    events_per_second: float | None = None
    rows_per_second: float | None = None
    dropped_per_second: float | None = None
    batch_seconds: float | None = Field(None, description="mean duration of the batches since the sample before")


class Trend(BaseModel):
    """The last samples in columns, the oldest first."""

    lag_seconds: list[float | None] = []
    events_per_second: list[float | None] = []
    rows_per_second: list[float | None] = []


class History(BaseModel):
    pipeline: str
    points: list[Point]


class Member(BaseModel):
    """A pipeline in the list of all pipelines."""

    name: str
    state: str
    severity: Severity = Field(description="bad: it delivers nothing or will lose its log; warn: look at it")
    concerns: list[str] = Field(description="why it needs attention, the worst first")
    error: str | None = None
    hint: str | None = None
    reason: str | None = None
    since: float | None = None
    waiting: str | None = None
    source: str | None = None
    sink: dict[str, str] = {}
    role: str | None = None
    epoch: int | None = None
    started_at: float | None = None
    updated_at: float | None = None
    tables: int = 0
    left_out: int = 0
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    lag: Lag | None = None
    slow: Literal["capture", "spool", "sink"] | None = Field(None, description="the part with the most bytes of lag")
    events_per_second: float | None = None
    rows_per_second: float | None = None
    retained_bytes: int | None = None
    safe_bytes: int | None = None
    wal_status: str | None = None
    lost_in_seconds: float | None = Field(
        None, description="when the database may remove log that is needed, if the retained log grows as it does now"
    )
    recent: Trend = Field(Trend(), description="its last samples")


class Overview(Member):
    """One pipeline, with more than the list of all pipelines has, and without its tables."""

    at: float = Field(description="the server's clock")
    host: str | None = None
    pid: int | None = None
    slot: str | None = None
    restarts: int | None = None
    position: int | None = None
    planned: int | None = None
    captured: int | None = None
    latest: int | None = None
    capture_lag_seconds: float | None = None
    last_batch_seconds: float | None = None
    spool_bytes: int | None = None
    events: int | None = None
    rows: int | None = None
    dropped: int | None = None
    windows: int | None = None
    joining: list[str] = []
    not_followed: dict[str, str] = Field({}, description="tables that the patterns name and that are left out, and why")
    set_aside: dict[str, Any] = Field({}, description="tables that are set aside after an error, and why")
    spark_ui: str | None = None


class Fleet(BaseModel):
    at: float = Field(description="the server's clock")
    pipelines: list[Member]


def fleet(pipelines: Sequence[Pipeline]) -> Fleet:
    """All pipelines, the worst first."""
    members = [member(pipeline) for pipeline in pipelines]
    members.sort(key=lambda m: (_ORDER.index(m.severity), -(m.lag_seconds or 0.0), m.name))
    return Fleet(at=time.time(), pipelines=members)


def overview(pipeline: Pipeline) -> Overview:
    """One pipeline."""
    status = pipeline.status()
    own = {name: status[name] for name in Overview.model_fields.keys() - Member.model_fields.keys() if name in status}
    aside = status.get("failed")
    more = {
        "at": time.time(),
        "not_followed": status.get("left_out", {}),
        "set_aside": aside if isinstance(aside, Mapping) else {},
    }
    return Overview.model_validate({**member(pipeline, status).model_dump(), **own, **more})


def member(pipeline: Pipeline, status: Mapping[str, Any] | None = None) -> Member:
    status = pipeline.status() if status is None else status
    recent = samples(pipeline, RECENT_SAMPLES + 1)
    now = (
        _rates(_before(recent, status), sample(status, status.get("updated_at", 0.0)))
        if status["state"] == RUNNING
        else {}
    )
    lag = lag_of(status)
    slot = status.get("slot_health") or {}
    lost_in = lost_in_seconds(slot.get("safe_bytes"), recent)
    severity, concerns = judged(status, lost_in)
    error, _, hint = str(status.get("error") or "").partition("\nhint: ")
    return Member(
        name=pipeline.name,
        state=str(status["state"]),
        severity=severity,
        concerns=concerns,
        error=error or None,
        hint=hint or None,
        **{name: status.get(name) for name in ("reason", "since", "waiting", "source", "role", "epoch")},
        sink=status.get("sink", {}),
        **{name: status.get(name) for name in ("started_at", "updated_at", "lag_seconds", "lag_bytes")},
        tables=len(status.get("tables", ())),
        left_out=len(status.get("left_out", ())),
        lag=lag,
        slow=_slowest(lag),
        events_per_second=now.get("events_per_second"),
        rows_per_second=now.get("rows_per_second"),
        **{name: slot.get(name) for name in ("retained_bytes", "safe_bytes", "wal_status")},
        lost_in_seconds=lost_in,
        recent=_trend(points(recent)[-RECENT_SAMPLES:]),
    )


def judged(status: Mapping[str, Any], lost_in: float | None) -> tuple[Severity, list[str]]:
    """How a pipeline with this status does, and what is wrong with it, the worst first."""
    bad, warn = [], []
    state = str(status["state"])
    wal_status = (status.get("slot_health") or {}).get("wal_status")
    if state in ("failed", "lost"):
        bad.append("it has failed" if state == "failed" else "it has stopped writing its status")
    elif state not in (RUNNING, "stopped", "never started"):
        warn.append("it restarts" if state == "restarting" else f"it is {state}")
    if wal_status in ("lost", "unreserved"):
        bad.append("the database has removed log" if wal_status == "lost" else "the slot may be lost at any time")
    elif lost_in is not None and lost_in < LOSS_LATER_SECONDS:
        (bad if lost_in < LOSS_SOON_SECONDS else warn).append("the slot reaches its limit soon")
    if state in ALIVE and (status.get("lag_seconds") or 0.0) > LATE_SECONDS:
        warn.append("it is late")
    if failed := status.get("failed"):
        warn.append(f"tables set aside: {len(failed)}")
    if bad or warn:
        return "bad" if bad else "warn", bad + warn
    return ("good" if state == RUNNING else "idle"), []


def lag_of(status: Mapping[str, Any]) -> Lag | None:
    """The lag of a running pipeline in bytes, split by the part that has to handle them."""
    latest, captured, position = (status.get(name) for name in ("latest", "captured", "position"))
    if latest is None or captured is None or position is None:
        return None
    planned = min(max(status.get("planned") or position, position), max(captured, position))
    return Lag(capture=max(0, latest - captured), spool=max(0, captured - planned), sink=planned - position)


def lost_in_seconds(safe_bytes: int | None, recent: Sequence[Value]) -> float | None:
    """When the retained log reaches the database's limit if it grows as over the last samples; None if it does not."""
    known = [(float(s["at"]), int(s["retained_bytes"])) for s in recent if "retained_bytes" in s]
    if safe_bytes is None or len(known) < 2:
        return None
    (first, before), (last, after) = known[0], known[-1]
    if last - first < LEAST_GROWTH_SECONDS or after <= before:
        return None
    return max(0.0, float(safe_bytes) * (last - first) / (after - before))


def points(recent: Sequence[Value]) -> list[Point]:
    """The samples with their rates."""
    found = []
    for before, after in zip([None, *recent], recent, strict=False):
        gauges = {name: after.get(name) for name in Point.model_fields if name in after and name != "batch_seconds"}
        found.append(Point.model_validate({**gauges, **_rates(before, after)}))
    return found


def _trend(found: Sequence[Point]) -> Trend:
    columns = {name: [getattr(point, name) for point in found] for name in Trend.model_fields}
    return Trend.model_validate(
        {name: [None if value is None else round(value, 2) for value in column] for name, column in columns.items()}
    )


def _rates(before: Value | None, after: Value) -> dict[str, float]:
    """Rates between two samples of the same life; empty for others."""
    if before is None or before.get("started_at") != after.get("started_at"):
        return {}
    seconds = after["at"] - before["at"]
    if not 0.0 < seconds <= GAP_SECONDS:
        return {}
    found = {
        f"{name}_per_second": round(max(0, after[name] - before[name]) / seconds, 3)
        for name in ("events", "rows", "dropped")
        if name in after and name in before
    }
    if (batches := after.get("batches", 0) - before.get("batches", 0)) > 0:
        found["batch_seconds"] = round((after["batch_seconds"] - before["batch_seconds"]) / batches, 4)
    return found


def _before(recent: Sequence[Value], status: Mapping[str, Any]) -> Value | None:
    """The last sample that is a few seconds older than the status, for the present rates."""
    old = [s for s in recent if s["at"] < status.get("updated_at", 0.0) - SAMPLE_SECONDS / 3]
    return old[-1] if old else None


def _slowest(lag: Lag | None) -> Literal["capture", "spool", "sink"] | None:
    if lag is None or not (lag.capture or lag.spool or lag.sink):
        return None
    parts: tuple[tuple[int, Literal["capture", "spool", "sink"]], ...] = (
        (lag.capture, "capture"),
        (lag.spool, "spool"),
        (lag.sink, "sink"),
    )
    return max(parts, key=lambda part: part[0])[1]
