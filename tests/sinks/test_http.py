"""Events posted to an API that takes, refuses, dawdles and dies."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from dblog.core.schema import TableName, TableSchema
from dblog.core.settings import read_settings
from dblog.errors import ConfigError, SinkError, SinkUnreachable
from dblog.sinks.api import Answer, Api
from dblog.sinks.base import Batch, SinkContext
from dblog.sinks.http import HttpSink, Post, bodies
from tests.sinks.batches import T, batch, change, frame, read
from tests.sinks.endpoint import TAKEN, Endpoint, Reply
from tests.sinks.envelopes import EnvelopeTarget, event
from tests.sinks.suite import AwaySuite, SinkSuite
from tests.sinks.target import Target


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


class Listener(EnvelopeTarget):
    """It obeys idempotency keys, so that it has each event once."""

    sink = "http"

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def settings(self) -> dict[str, Any]:
        return {"url": self.endpoint.url, "size": 100, "retries": 1, "timeout": 10}

    def texts(self, table: TableName) -> list[str]:
        raise NotImplementedError

    def events(self, table: TableName) -> list[dict[str, Any]]:
        found = [e for request in self.endpoint.taken() for e in request.events]
        return [event(e) for e in found if (e["schema"], e["table"]) == table]

    def away(self) -> AbstractContextManager[None]:
        return self.endpoint.away()


class TestHttp(SinkSuite, AwaySuite):
    @pytest.fixture
    def target(self, endpoint: Endpoint) -> Target:
        return Listener(endpoint)


# What no database is needed for


pytestmark = [pytest.mark.spark]
SECRET = "s3cr3t-t0ken"


def sink(endpoint: Endpoint, folder: Path, **given: Any) -> HttpSink:
    given = {"url": endpoint.url, "retries": 2, **given}
    return HttpSink(read_settings("sink", given, HttpSink.settings), SinkContext("shop", folder))


def ids(endpoint: Endpoint) -> list[list[int]]:
    """Of all requests, in the order they came."""
    return [[e["key"]["id"] for e in request.events] for request in endpoint.requests]


def created(spark: SparkSession, numbers: range, partitions: int = 1) -> DataFrame:
    return frame(spark, [change("create", n, n) for n in numbers], partitions=partitions)


def answers(*replies: Reply | None) -> Callable[[list[dict[str, Any]]], Reply | None]:
    """These one after the other, then all is taken."""
    left = iter(replies)
    return lambda events: next(left, TAKEN)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's workers are other processes: only what runs here is quick."""
    monkeypatch.setattr("dblog.sinks.api.FIRST_DELAY", 0.01)


def test_changes_are_posted_in_order_and_in_arrays_of_a_size(
    spark: SparkSession, endpoint: Endpoint, tmp_path: Path
) -> None:
    sink(endpoint, tmp_path, size=40).write(batch(3, created(spark, range(100), partitions=5)))
    assert ids(endpoint) == [[*range(40)], [*range(40, 80)], [*range(80, 100)]]
    assert {r.path for r in endpoint.requests} == {"/events?for=test"}
    assert {r.headers["content-type"] for r in endpoint.requests} == {"application/json"}


def test_rows_of_dumps_are_posted_after_the_changes(spark: SparkSession, endpoint: Endpoint, tmp_path: Path) -> None:
    rows = frame(spark, [read(200, n) for n in range(100, 120)], partitions=2)
    sink(endpoint, tmp_path).write(batch(3, created(spark, range(10)), rows))
    first, *rest = ids(endpoint)
    assert first == [*range(10)]
    assert sorted(rest) == [[*range(100, 110)], [*range(110, 120)]]


def test_tables_are_posted_one_after_the_other(spark: SparkSession, endpoint: Endpoint, tmp_path: Path) -> None:
    other = TableSchema(TableName("public", "a-b c/ü"), T.columns, T.key)
    tables = (*batch(1, created(spark, range(5))).tables, *batch(1, created(spark, range(5)), schema=other).tables)
    sink(endpoint, tmp_path, size=2).write(Batch(1, 10, tables))
    assert [request.events[0]["table"] for request in endpoint.requests] == ["t"] * 3 + ["a-b c/ü"] * 3
    assert len({request.key for request in endpoint.requests}) == 6


def test_a_batch_that_is_given_again_has_the_same_keys_and_another_has_not(
    spark: SparkSession, endpoint: Endpoint, tmp_path: Path
) -> None:
    given = batch(3, created(spark, range(10)), frame(spark, [read(20, n) for n in range(20, 30)]))
    for each in (given, given, batch(4, *(getattr(given.tables[0], name) for name in ("changes", "rows")))):
        sink(endpoint, tmp_path, size=5).write(each)
    keys = [request.key for request in endpoint.requests]
    assert keys[:4] == keys[4:8]
    assert len(set(keys)) == 8
    assert keys[0].startswith("shop-3-public.t-changes-0-0-")
    assert len(endpoint.taken()) == 8


def test_a_key_never_stands_for_other_events(spark: SparkSession, endpoint: Endpoint, tmp_path: Path) -> None:
    """Rows of a dump may come in other parts when a pipeline is started with other settings: none must be lost."""
    rows = [read(20, n) for n in range(20)]
    sink(endpoint, tmp_path, size=5).write(batch(3, rows=frame(spark, rows[:10])))  # then it is killed
    sink(endpoint, tmp_path, size=5).write(batch(3, rows=frame(spark, rows[::-1], partitions=2)))
    assert {e["key"]["id"] for request in endpoint.taken() for e in request.events} == {*range(20)}


def test_headers_are_sent_and_never_shown(spark: SparkSession, endpoint: Endpoint, tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/vnd.own+json"}
    made = sink(endpoint, tmp_path, url=f"{endpoint.url}&token={SECRET}", headers=headers)
    made.check()
    made.write(batch(0, created(spark, range(1))))
    (request,) = endpoint.requests
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert request.headers["content-type"] == "application/vnd.own+json"
    assert request.path.endswith(f"token={SECRET}")
    endpoint.answer = lambda events: (400, {}, "bad")
    with pytest.raises(SinkError) as refused:
        made.write(batch(1, created(spark, range(1))))
    endpoint.answer = lambda events: (401, {}, "who are you")
    with pytest.raises(SinkError) as unknown:
        made.write(batch(1, created(spark, range(1))))
    with endpoint.away(), pytest.raises(SinkUnreachable) as away:
        made.check()
    for error in (refused, unknown, away):
        assert SECRET not in str(error.value)
        assert SECRET not in repr(error.value)
    assert SECRET not in repr(Post(made._api, 1, "", None, ""))


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_an_api_that_says_not_now_is_asked_again(endpoint: Endpoint, status: int) -> None:
    endpoint.answer = answers((status, {}, "busy"), (status, {}, "busy"))
    with Api(endpoint.url, {}, 5, 2).session() as session:
        assert session.post(b"[1]", "k") is None
    assert [(r.key, r.taken) for r in endpoint.requests] == [("k", False), ("k", False), ("k", True)]
    endpoint.answer = lambda events: (status, {}, "busy")
    with Api(endpoint.url, {}, 5, 1).session() as session, pytest.raises(SinkUnreachable, match=f"{status} .*busy"):
        session.post(b"[1]", "k")
    assert len(endpoint.requests) == 5


def test_an_api_that_hangs_up_is_asked_again(endpoint: Endpoint) -> None:
    endpoint.answer = answers(TAKEN, None, None)
    with Api(endpoint.url, {}, 5, 2).session() as session:
        assert session.post(b"[1]", "a") is None
        assert session.post(b"[2]", "b") is None
    assert [r.key for r in endpoint.requests] == ["a", "b", "b", "b"]


def test_an_api_that_does_not_answer_in_time_is_asked_again(endpoint: Endpoint) -> None:
    first = threading.Event()

    def answer(events: list[dict[str, Any]]) -> Reply:
        if not first.is_set():
            first.set()
            time.sleep(1.5)
        return TAKEN

    endpoint.answer = answer
    with Api(endpoint.url, {}, 0.5, 1).session() as session:
        assert session.post(b"[1]", "a") is None
    first.clear()
    with Api(endpoint.url, {}, 0.5, 0).session() as session, pytest.raises(SinkUnreachable, match="timed out"):
        session.post(b"[1]", "a")


@pytest.mark.parametrize("when", ["1", "date"])
def test_an_api_that_says_when_to_come_back_is_obeyed(endpoint: Endpoint, when: str) -> None:
    if when == "date":
        when = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    endpoint.answer = answers((429, {"Retry-After": when}, ""))
    begin = time.monotonic()
    with Api(endpoint.url, {}, 5, 1).session() as session:
        assert session.post(b"[1]", "a") is None
    assert 0.9 < time.monotonic() - begin < 3


def test_what_an_api_says_of_when_is_not_believed_blindly() -> None:
    for said in ("soon", "", "2", "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:28:00"):
        assert Answer(503, "", "", said).not_before <= 2
    assert Answer(503, "", "", None).not_before == 0


def test_connections_are_kept_whatever_is_answered(endpoint: Endpoint) -> None:
    opened = 0
    made = Api(endpoint.url, {}, 5, 0)

    class Counted(http.client.HTTPConnection):
        def connect(self) -> None:
            nonlocal opened
            opened += 1
            super().connect()

    endpoint.answer = answers(TAKEN, (400, {}, "no"), (200, {}, "x" * 5000))
    with made.session() as session:
        at = session._connection
        session._connection = Counted(at.host, at.port, timeout=5)
        for key in "abcd":
            session.post(b"[1]", key)
        assert opened == 1
        endpoint.answer = lambda events: (200, {}, "x" * 50_000)  # more than anyone reads
        for key in "ef":
            session.post(b"[1]", key)
        assert opened == 2
    assert len(endpoint.requests) == 6


@pytest.mark.parametrize("status", [301, 401, 403, 404])
def test_an_api_that_takes_nothing_at_all_ends_the_pipeline(
    spark: SparkSession, endpoint: Endpoint, tmp_path: Path, status: int
) -> None:
    """However patient one is, and although dead letters have a place: it would be all events."""
    endpoint.answer = lambda events: (status, {"Location": "/elsewhere"}, "no")
    with pytest.raises(SinkError, match=f"{status}") as wrong:
        sink(endpoint, tmp_path, dead_letter="dead").write(batch(0, created(spark, range(5))))
    assert not isinstance(wrong.value, SinkUnreachable)
    assert wrong.value.hint
    assert len(endpoint.requests) == 1


def refuse_odd(events: list[dict[str, Any]]) -> Reply:
    return (422, {}, 'not "this"') if any(e["key"]["id"] % 10 == 3 for e in events) else TAKEN


def test_a_request_that_is_refused_ends_the_pipeline_without_a_place_for_it(
    spark: SparkSession, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.answer = refuse_odd
    with pytest.raises(SinkError, match=r"422 .*not \"this\"") as wrong:
        sink(endpoint, tmp_path, size=2).write(batch(0, created(spark, range(6))))
    assert not isinstance(wrong.value, SinkUnreachable)
    assert "dead_letter" in str(wrong.value.hint)
    assert ids(endpoint) == [[0, 1], [2, 3]]


def letters(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (folder / "dead" / "public.t").iterdir()
    }


def test_dead_letters_have_the_events_and_the_answer(spark: SparkSession, endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.answer = refuse_odd
    given = batch(5, created(spark, range(20)), frame(spark, [read(50, n) for n in range(40, 44)]))
    made = sink(endpoint, tmp_path, size=2, dead_letter="dead")
    made.check()
    made.write(given)
    found = letters(tmp_path)
    assert sorted(found) == [f"{5:020d}-changes-00000.ndjson", f"{5:020d}-rows-00000.ndjson"]
    refused = found[f"{5:020d}-changes-00000.ndjson"]
    assert [[e["key"]["id"] for e in letter["events"]] for letter in refused] == [[2, 3], [12, 13]]
    assert [(letter["status"], letter["answer"]) for letter in refused] == [(422, 'not "this"')] * 2
    assert refused[0]["key"] == endpoint.requests[1].key
    assert refused[0]["events"] == endpoint.requests[1].events
    assert [i for request in endpoint.taken() for i in (e["key"]["id"] for e in request.events)] == [
        *(n for n in range(20) if n not in (2, 3, 12, 13)), 40, 41,
    ]  # fmt: skip


def test_dead_letters_of_a_batch_that_is_given_again_are_those_of_the_last_time(
    spark: SparkSession, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.answer = refuse_odd
    made = sink(endpoint, tmp_path, size=2, dead_letter="dead")
    given = batch(5, created(spark, range(6)))
    made.write(given)
    made.write(given)
    (found,) = letters(tmp_path).values()
    assert len(found) == 1
    endpoint.answer = lambda events: TAKEN
    made.write(given)
    assert letters(tmp_path) == {}


def test_an_api_that_dies_in_mid_batch_gets_the_rest_later(
    spark: SparkSession, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.answer = lambda events: TAKEN if len(endpoint.requests) < 2 else None
    made = sink(endpoint, tmp_path, size=5, retries=1)
    given = batch(5, created(spark, range(20)))
    with pytest.raises(SinkUnreachable):
        made.write(given)
    assert ids(endpoint) == [[*range(5)], [*range(5, 10)], [*range(10, 15)], [*range(10, 15)]]
    endpoint.answer = lambda events: TAKEN
    made.write(given)
    assert [i for r in endpoint.taken() for i in (e["key"]["id"] for e in r.events)] == [*range(20)]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/x",
        "host/x",
        "http://",
        "http://host:port/x",
        "http://user:pw@host/x",
        "http://host/ü",
        "http://[1/x",
    ],
)
def test_an_address_that_is_none_is_refused(endpoint: Endpoint, tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        sink(endpoint, tmp_path, url=url).check()
    assert "pw" not in str(wrong.value)


@pytest.mark.parametrize(("name", "value"), [("Two words", "x"), ("X", f"{SECRET}\r\nY: z"), ("X", f"{SECRET}€")])
def test_a_header_that_http_cannot_carry_is_refused(endpoint: Endpoint, tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name) as wrong:
        sink(endpoint, tmp_path, headers={name: value}).check()
    assert SECRET not in str(wrong.value)


@pytest.mark.parametrize("cuts", [[100], [1] * 100, [7, 0, 50, 43], [0]])
@pytest.mark.parametrize("size", [1, 10, 99, 100, 101])
def test_requests_do_not_depend_on_how_events_come_in_batches(cuts: list[int], size: int) -> None:
    given, at = [], 0
    for cut in cuts:
        values = [str(n) if n % 3 else None for n in range(at, at + cut)]
        given.append(pa.RecordBatch.from_arrays([pa.array(values, pa.string())], names=["value"]))
        at += cut
    events = [n for n in range(at) if n % 3]
    found = [json.loads(body) for body in bodies(iter(given), size)]
    assert found == [events[n : n + size] for n in range(0, len(events), size)]
