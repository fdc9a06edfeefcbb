"""Where the work of a batch runs: small work in threads of the driver, other work in Spark's tasks."""

from __future__ import annotations

import os
import threading

import pytest
from pyspark.sql import SparkSession

from dblog.errors import SinkError, SinkUnreachable
from dblog.sinks.task_job import DRIVER_BYTES, run_in_tasks

NO_SPARK: SparkSession = None  # type: ignore[assignment]


def process(_: int) -> int:
    return os.getpid()


def test_small_work_runs_in_this_process_and_needs_no_spark() -> None:
    assert set(run_in_tasks(NO_SPARK, [1, 2, 3], process, [1, 2, DRIVER_BYTES - 3])) == {os.getpid()}


def test_results_come_in_the_order_of_the_work() -> None:
    late = threading.Event()

    def run(number: int) -> int:
        if number == 0:
            assert late.wait(60)
        else:
            late.set()
        return 10 * number

    assert run_in_tasks(NO_SPARK, [0, 1, 2], run, [1, 1, 1]) == [0, 10, 20]


def test_no_work_needs_nothing() -> None:
    assert run_in_tasks(NO_SPARK, [], process) == []


@pytest.mark.parametrize("error", [SinkUnreachable("away"), ValueError("wrong")])
def test_an_error_of_small_work_is_raised_as_it_is_when_all_work_has_ended(error: Exception) -> None:
    done = []

    def run(number: int) -> None:
        if number == 1:
            raise error
        done.append(number)

    with pytest.raises(type(error)) as raised:
        run_in_tasks(NO_SPARK, [0, 1, 2, 3], run, [1] * 4)
    assert raised.value is error
    assert sorted(done) == [0, 2, 3]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("weights", "driver"), [([DRIVER_BYTES, 1], True), (None, True), ([1, 1], False)], ids=["large", "unknown", "never"]
)
def test_other_work_runs_in_tasks(spark: SparkSession, weights: list[int] | None, driver: bool) -> None:
    ran = run_in_tasks(spark, [1, 2], lambda _: os.getpid(), weights, driver=driver)
    assert len(ran) == 2
    assert os.getpid() not in ran


@pytest.mark.spark
def test_a_task_s_error_is_raised_as_it_is(spark: SparkSession) -> None:
    def run(_: int) -> None:
        from dblog.errors import SinkError

        raise SinkError("no", hint="do")

    with pytest.raises(SinkError, match="no") as raised:
        run_in_tasks(spark, [1], run)
    assert raised.value.hint == "do"
