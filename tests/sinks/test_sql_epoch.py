"""The sink `sql` refuses a leader that was replaced, whatever it was doing at that moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblog.core.settings import read_settings
from dblog.errors import LeaseLost, SinkUnreachable
from dblog.sinks.base import SinkContext
from dblog.sinks.sql import SqlSink
from tests.sinks.test_sql_guard import WAYS, AnyTarget, Event, History, state
from tests.sinks.test_sql_guard import target as target

pytestmark = [pytest.mark.server, pytest.mark.spark]

HISTORY = History([Event(10 * n, "create" if n < 5 else "update", n % 4, f"v{n}", "b") for n in range(1, 9)])
Lead = Callable[[int | None], SqlSink]


@pytest.fixture
def lead(target: AnyTarget, spark: SparkSession, tmp_path: Path) -> Iterator[Lead]:
    made = []

    def sink(epoch: int | None) -> SqlSink:
        given = read_settings("sink", target.settings(), SqlSink.settings)
        made.append(SqlSink(given, SinkContext("one", tmp_path, epoch=epoch)))
        made[-1].check()
        made[-1].fence()
        made[-1].open(spark)
        return made[-1]

    yield sink
    for one in made:
        one.close()


def test_a_leader_that_was_replaced_ends_and_the_next_one_goes_on(
    target: AnyTarget, spark: SparkSession, lead: Lead
) -> None:
    old = lead(1)
    old.write(HISTORY.batch(spark, 0, 0, 30, dump=range(4)))
    new = lead(2)
    before = state(target)
    late = HISTORY.batch(spark, 1, 30, 50)
    for error in (SinkUnreachable, LeaseLost):  # its session was ended; then it looks at the ledger
        with pytest.raises(error):
            old.write(late)
    assert state(target) == before
    for _ in range(2):  # to look at the ledger, the old one has ended the session of the new one
        try:
            new.write(HISTORY.batch(spark, 1, 30, 60))
        except SinkUnreachable:
            continue
    assert state(target) == HISTORY.state(60)
    with pytest.raises(LeaseLost, match="epoch 2 of a later leader, and this instance has 1"):
        lead(1)


@pytest.mark.parametrize("way", WAYS)
def test_a_leader_is_replaced_between_its_first_look_and_its_transaction(
    target: AnyTarget, spark: SparkSession, lead: Lead, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = lead(1)
    old.write(HISTORY.batch(spark, 0, 0, 30, dump=range(4), way=way))
    monkeypatch.setattr(type(old._target), "claim", lambda *_: None)  # its session lives: the epoch alone protects
    apply = old._apply

    def late(*args: Any) -> None:
        lead(2)
        apply(*args)

    monkeypatch.setattr(old, "_apply", late)
    with pytest.raises(LeaseLost):
        old.write(HISTORY.batch(spark, 1, 30, 50, way=way))
    assert state(target) == HISTORY.state(30)


def test_a_leader_that_was_stopped_inside_of_its_transaction_holds_nobody_up(
    target: AnyTarget, spark: SparkSession, lead: Lead, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = lead(1)
    old.write(HISTORY.batch(spark, 0, 0, 30, dump=range(4)))
    record, replaced = old._ledger.record, []

    def late(*args: Any) -> None:
        replaced.append(lead(2))
        record(*args)

    monkeypatch.setattr(old._ledger, "record", late)
    with pytest.raises(SinkUnreachable):
        old.write(HISTORY.batch(spark, 1, 30, 50))
    assert state(target) == HISTORY.state(30)
    replaced[0].write(HISTORY.batch(spark, 1, 30, 50))
    assert state(target) == HISTORY.state(50)


def test_rows_of_a_first_dump_are_not_inserted_directly_by_a_leader_that_was_replaced(
    target: AnyTarget, spark: SparkSession, lead: Lead, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = lead(1)
    monkeypatch.setattr(type(old._target), "claim", lambda *_: None)
    start, allowed = old._ledger.start_filling, []

    def late(*args: Any) -> set[str]:
        lead(2)
        allowed.append(start(*args))
        return allowed[-1]

    monkeypatch.setattr(old._ledger, "start_filling", late)
    with pytest.raises(LeaseLost):
        old.write(HISTORY.batch(spark, 0, 41, 50, dump=range(4), way="job"))
    assert allowed == [set()]
    assert state(target) == {}


def test_without_standbys_the_epoch_does_not_matter(target: AnyTarget, spark: SparkSession, lead: Lead) -> None:
    lead(7).write(HISTORY.batch(spark, 0, 0, 30, dump=range(4)))
    lead(None).write(HISTORY.batch(spark, 1, 30, 50))
    assert state(target) == HISTORY.state(50)
