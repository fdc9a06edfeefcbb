"""Prometheus metrics, computed from what the pipelines have written to the state store."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dblog.state.pipeline import ALIVE, Pipeline
from dblog.state.requests import Dump, State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

STATES = (*ALIVE, "stopped", "failed", "lost", "never started")
WAL_STATUSES = ("reserved", "extended", "unreserved", "lost")

Sample = tuple[Mapping[str, str], float | None]
"""Labels beside `pipeline`, and the value; a sample without a value is left out."""


@dataclass(frozen=True)
class Seen:
    """A pipeline at one moment."""

    name: str
    status: Mapping[str, Any]
    dumps: list[Dump]
    at: float

    @staticmethod
    def of(pipeline: Pipeline) -> Seen:
        return Seen(pipeline.name, pipeline.status(), pipeline.dumps(), time.time())


@dataclass(frozen=True)
class Metric:
    """One metric: its name, its type, what it measures, and how it is computed."""

    name: str
    kind: Literal["gauge", "counter"]
    about: str
    samples: Callable[[Seen], Iterable[Sample]]


def _status(field: str) -> Callable[[Seen], Iterable[Sample]]:
    return lambda seen: [({}, seen.status.get(field))]


def _slot(field: str) -> Callable[[Seen], Iterable[Sample]]:
    return lambda seen: [({}, (seen.status.get("slot_health") or {}).get(field))]


def _dumps(value: Callable[[Dump], float | None]) -> Callable[[Seen], Iterable[Sample]]:
    return lambda seen: [({"dump": d.id}, value(d)) for d in seen.dumps if not d.state.ended]


def _up(seen: Seen) -> Iterator[Sample]:
    yield {}, seen.status["state"] in ALIVE


def _state(seen: Seen) -> Iterator[Sample]:
    state = seen.status["state"]
    for each in dict.fromkeys((*STATES, state)):
        yield {"state": each}, each == state


def _ha(field: str) -> Callable[[Seen], Iterable[Sample]]:
    return lambda seen: [({}, (seen.status.get("ha") or {}).get(field))]


def _waiting(seen: Seen) -> Iterator[Sample]:
    since = seen.status.get("since")
    yield {}, 0.0 if since is None else max(0.0, seen.at - since)


def _age(seen: Seen) -> Iterator[Sample]:
    said = seen.status.get("updated_at")
    yield {}, None if said is None else max(0.0, seen.at - said)


def _wal_status(seen: Seen) -> Iterator[Sample]:
    status = (seen.status.get("slot_health") or {}).get("wal_status")
    for each in dict.fromkeys((*WAL_STATUSES, status)) if status else ():
        yield {"status": each}, each == status


def _left_out(seen: Seen) -> Iterator[Sample]:
    found = seen.status.get("left_out")
    yield {}, None if found is None else len(found)


def _failed(seen: Seen) -> Iterator[Sample]:
    found = seen.status.get("failed_tables")
    yield {}, None if found is None else len(found)


def _cascades_ignored(seen: Seen) -> Iterator[Sample]:
    yield {}, (seen.status.get("slot_health") or {}).get("cascades_ignored")


def _tables(seen: Seen) -> Iterator[Sample]:
    found = seen.status.get("tables")
    yield {}, None if found is None else len(found)


def _by_state(seen: Seen) -> Iterator[Sample]:
    for state in State:
        yield {"state": str(state)}, sum(d.state is state for d in seen.dumps)


METRICS = (
    Metric("dblog_up", "gauge", "1 while the pipeline runs, waits for its sink or restarts, else 0", _up),
    Metric("dblog_state", "gauge", "1 for the pipeline's present `state`, else 0", _state),
    Metric("dblog_waiting_seconds", "gauge", "how long it has waited for its sink or restarted; else 0", _waiting),
    Metric("dblog_restarts_total", "counter", "restarts of a query that had failed", _status("restarts")),
    Metric("dblog_leader_epoch", "gauge", "number of the leader's lease: greater with each take-over", _ha("epoch")),
    Metric("dblog_lease_age_seconds", "gauge", "time since the leader has renewed its lease", _ha("lease_age")),
    Metric("dblog_status_age_seconds", "gauge", "time since the pipeline last wrote its status", _age),
    Metric("dblog_tables", "gauge", "tables that are followed", _tables),
    Metric("dblog_tables_failed", "gauge", "tables that failed and are set aside", _failed),
    Metric("dblog_tables_left_out", "gauge", "tables that the patterns name and that cannot be followed", _left_out),
    Metric(
        "dblog_cascades_ignored_total",
        "counter",
        "changes of parents whose effects on child rows were not delivered (cascades = ignore)",
        _cascades_ignored,
    ),
    Metric("dblog_lag_bytes", "gauge", "log of the database that is not delivered yet", _status("lag_bytes")),
    Metric(
        "dblog_lag_seconds", "gauge", "age of the oldest commit that is not delivered; 0: none", _status("lag_seconds")
    ),
    Metric(
        "dblog_capture_lag_seconds",
        "gauge",
        "time from commit to capture of the last captured transaction",
        _status("capture_lag_seconds"),
    ),
    Metric("dblog_events_total", "counter", "log events delivered", _status("events")),
    Metric("dblog_dump_rows_total", "counter", "rows of dumps delivered", _status("rows")),
    Metric("dblog_dropped_rows_total", "counter", "dump rows dropped: the log has newer changes", _status("dropped")),
    Metric("dblog_raw_values_total", "counter", "values delivered as null and as raw text", _status("raw_values")),
    Metric("dblog_windows_total", "counter", "windows between two watermarks", _status("windows")),
    Metric("dblog_selects_total", "counter", "selects of chunks", _status("selects")),
    Metric("dblog_select_seconds_total", "counter", "time spent in selects of chunks", _status("select_seconds")),
    Metric("dblog_last_select_seconds", "gauge", "how long the last select took", _status("last_select_seconds")),
    Metric("dblog_spool_bytes", "gauge", "size of the spool", _status("spool_bytes")),
    Metric("dblog_slot_active", "gauge", "1 while the replication slot is being read", _slot("active")),
    Metric("dblog_slot_retained_bytes", "gauge", "log that the database keeps for the slot", _slot("retained_bytes")),
    Metric("dblog_slot_safe_bytes", "gauge", "log until the slot may be lost; absent: no limit", _slot("safe_bytes")),
    Metric("dblog_slot_wal_status", "gauge", "1 for the slot's present `status`, else 0", _wal_status),
    Metric("dblog_dumps", "gauge", "dumps by `state`", _by_state),
    Metric("dblog_dump_read", "gauge", "rows read by a `dump` that has not ended", _dumps(lambda d: d.read)),
    Metric("dblog_dump_emitted", "gauge", "of these, rows delivered", _dumps(lambda d: d.emitted)),
    Metric("dblog_dump_dropped", "gauge", "of these, rows dropped as stale", _dumps(lambda d: d.dropped)),
    Metric("dblog_dump_total", "gauge", "estimate of the rows the `dump` has to read", _dumps(lambda d: d.total)),
    Metric(
        "dblog_dump_seconds_left", "gauge", "estimate of the time the `dump` needs", _dumps(lambda d: d.seconds_left)
    ),
)


def render(pipelines: Iterable[Seen]) -> str:
    """All metrics of some pipelines in Prometheus' text format."""
    seen = list(pipelines)
    lines = []
    for metric in METRICS:
        lines += [f"# HELP {metric.name} {metric.about}", f"# TYPE {metric.name} {metric.kind}"]
        for each in seen:
            for labels, value in metric.samples(each):
                if value is not None:
                    lines.append(f"{metric.name}{_labels({'pipeline': each.name, **labels})} {_number(value)}")
    return "\n".join([*lines, ""])


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if isinstance(value, bool) else repr(value)
