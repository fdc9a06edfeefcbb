"""Lakes that the native writer writes to without Spark: the work of its tasks is done in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark import cloudpickle

from dblog.core.schema import TableName
from dblog.sinks.base import Batch, Sink
from dblog.sinks.lake.native import writer
from tests.sinks.lakes import Lake, NativeDelta, NativeIceberg, at
from tests.sinks.target import Row

LAKES = {"delta": NativeDelta, "iceberg": NativeIceberg}


class Killed(BaseException):
    """The process ends here."""


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the writer do the work of tasks itself. What a task gets and returns is pickled as Spark does."""

    def run(_spark: object, works: Sequence[Any], work: Callable[[Any], Any], *_weights: object, **_: Any) -> list[Any]:
        copies = cloudpickle.loads(cloudpickle.dumps((list(works), work)))
        return [cloudpickle.loads(cloudpickle.dumps(copies[1](one))) for one in copies[0]]

    monkeypatch.setattr(writer, "run_in_tasks", run)


def opened(lake: Lake, **settings: Any) -> Sink:
    """A sink object that knows nothing of those before it, as in another process."""
    sink = lake.make(lake.folder, **{"maintain": "off", **settings})
    sink.open(None)  # type: ignore[arg-type]
    return sink


def joined(*batches: Batch) -> Batch:
    """One batch with the tables of several."""
    last = max(batches, key=lambda batch: batch.position)
    return Batch(last.id, last.position, tuple(table for batch in batches for table in batch.tables))


@contextmanager
def killed(owner: Any, name: str, call: int, *, after: bool) -> Iterator[None]:
    """The process ends before, or just after, this call of a function; it is counted from 1."""
    real = getattr(owner, name)
    calls = 0

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            raise Killed
        result = real(*given, **named)
        if calls == call:
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, counted)
        yield


def shown(lake: Lake, table: TableName) -> list[Row]:
    """The rows of a table in an order of their own; the times at which they were written are all the same."""

    def plain(value: Any) -> Any:
        return "now" if hasattr(value, "tzinfo") and value.tzinfo and value > at(1_000_000) else value

    return sorted(({n: plain(v) for n, v in row.items()} for row in lake.all(table)), key=str)
