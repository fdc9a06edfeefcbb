"""Divides the work of a batch among Spark tasks, and does the work of one task."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache

import pyarrow as pa

from dblog.capture.spool import Spool
from dblog.errors import ConfigError, ConnectionLost, KeyChanged, TableLocked
from dblog.sources.base import Source
from dblog.work.rows import Shape, in_order, regrouped
from dblog.work.tasks import Emit, Log, Select, emitted_rows, log_changes, stage

Work = Log | Emit | Select

SMALL_LOG_ROWS = 10_000
"""A log of at most this many rows shares a Spark task with other work."""
SWITCH = "DBLOG_TUNE_WORKERS"
"""The environment variable that says whether workers are tuned: true (the default) or false. It belongs to the session
and not to a stream: the streams of a session share its workers."""
KEPT_BYTES = 128 << 20
"""Freed memory that a tuned worker keeps instead of giving it back to the kernel, in bytes."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def lanes(work: Sequence[Work], count: int) -> list[tuple[Work, ...]]:
    """Divide the work of a batch into at most `count` lanes, and one more for a large log. Spark spends about 25 ms on
    every task. So one task emits a chunk and selects the next one. The log comes first."""
    result: list[list[Work]] = [[] for _ in range(count)]
    for kind in (Emit, Select):
        for number, item in enumerate(w for w in work if isinstance(w, kind)):
            result[number % count].append(item)
    for log in (w for w in work if isinstance(w, Log)):
        if sum(f.rows for f in log.window.files) > SMALL_LOG_ROWS:
            result.insert(0, [])
        result[0].insert(0, log)
    return [tuple(lane) for lane in result if lane]


def delivered(
    lane: Iterable[Work], shape: Shape, spool: Spool, source: Callable[[], Source], *, before: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of a lane, in batches of a good size for Spark. Runs on an executor."""
    tune_worker()
    return regrouped(rows for work in lane for rows in _rows(work, shape, spool, source, before))


def _rows(
    work: Work, shape: Shape, spool: Spool, source: Callable[[], Source], before: bool
) -> Iterator[pa.RecordBatch]:
    match work:
        case Log() as log:
            yield from in_order(log_changes(spool, log), shape)
        case Emit(chunk=chunk) as emit:
            for schema, batch in emitted_rows(spool, emit, before=before):
                yield shape.project(schema, batch, chunk.dump)
        case Select(chunk=chunk):
            try:
                stage(source(), spool, chunk)
            except (TableLocked, ConnectionLost, KeyChanged):
                return  # the planner stages the chunk itself, or reads it in a later round; the log must not wait


@cache
def tune_worker() -> None:
    """Tune garbage collection and malloc, once per Python worker of Spark, unless `SWITCH` is false.

    Some workers collect garbage after each call, which takes 50 ms; loaded modules are excluded from that. And glibc
    returns memory to the kernel after each portion of the log, and requests it again, page by page, for the next one,
    which takes a tenth of the time. Other code that Spark runs in these workers gets the same settings."""
    wanted = os.environ.get(SWITCH, "true")
    if wanted not in ("true", "false"):
        raise ConfigError(f"{SWITCH} is {wanted!r}", hint="set it to true or false, or leave it out")
    if wanted == "false":
        return
    gc.collect()
    gc.freeze()
    with suppress(AttributeError, OSError):  # C libraries other than glibc do not have it
        set_option = ctypes.CDLL(None).mallopt
        set_option(_MMAP_THRESHOLD, 32 << 20)
        set_option(_TRIM_THRESHOLD, KEPT_BYTES)
