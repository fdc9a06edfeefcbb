"""Which failures may pass, and how often a query is started again."""

from __future__ import annotations

import pytest

from dblog import errors
from dblog.pipelines.restart import WINDOW_SECONDS, Restarts, may_pass
from dblog.spark.failure import cause


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("odd"),
        ConnectionRefusedError("a sink's own"),
        errors.DBLogError("Python worker failed to connect back."),
        errors.SourceError("gave up after 300 s: connection refused"),
        errors.SpoolError("the spool is full"),
        errors.StateError("the store is locked"),
        errors.ConnectionLost("connection refused"),
        errors.SinkUnreachable("nobody is there"),
        cause("Job aborted: ExecutorLostFailure (executor 1 exited)\n\tat org.apache.spark.Foo"),
    ],
)
def test_what_is_unknown_or_retryable_may_pass(error: Exception) -> None:
    assert may_pass(error, once=False)


@pytest.mark.parametrize(
    "kind",
    [
        errors.ConfigError,
        errors.PreconditionFailed,
        errors.PositionLost,
        errors.DecodeError,
        errors.SchemaChanged,
        errors.TableUnreadable,
        errors.WatermarkError,
        errors.SinkError,
    ],
)
def test_what_needs_a_person_does_not(kind: type[errors.DBLogError]) -> None:
    report = (
        f"[STREAM_FAILED] Query terminated with exception:\ndblog.errors.{kind.__name__}: so it is\nhint: do that\n"
    )
    assert not may_pass(kind("so it is"), once=False)
    assert not may_pass(cause(report), once=False)


def test_an_error_of_the_jvm_is_told_without_the_call() -> None:
    report = (
        "An error occurred while calling o974.count.\n: org.apache.spark.SparkException: Job aborted\n\tat a.b(C:1)"
    )
    assert cause(report).message == "org.apache.spark.SparkException: Job aborted"


def test_a_run_once_does_not_begin_its_patience_anew() -> None:
    assert not may_pass(errors.ConnectionLost("connection refused"), once=True)
    assert may_pass(RuntimeError("odd"), once=True)


def test_delays_double_within_the_window_and_begin_anew_after_it() -> None:
    now = [0.0]
    restarts = Restarts(8, once=False, clock=lambda: now[0])
    assert [restarts.next() for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, None]
    assert restarts.used == 8
    now[0] = WINDOW_SECONDS
    assert restarts.next() == 1


def test_the_restarts_of_a_run_once_are_counted_for_ever() -> None:
    now = [0.0]
    restarts = Restarts(1, once=True, clock=lambda: now[0])
    assert restarts.next() == 1
    now[0] = 10 * WINDOW_SECONDS
    assert restarts.next() is None


def test_none_may_be_wanted() -> None:
    assert Restarts(0, once=False).next() is None
