"""Events over HTTP: in order, resumable, and without a slow subscriber holding up anybody."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from dblog.control import events
from dblog.control.events import Hub, Subscriber
from dblog.errors import StateError
from dblog.state import open_store
from dblog.state.events import EventKind
from dblog.state.pipeline import Pipeline
from dblog.state.store import Store
from tests.control.conftest import start, wait_until

URL = "/api/v1/events"


class Stream:
    """A subscriber as browsers are: fields of events, and the id to come back with."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.last_id: str | None = None
        self.comments: list[str] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        fields: dict[str, str] = {}
        for line in self._lines:
            if line.startswith(":"):
                self.comments.append(line[1:].strip())
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            else:
                self.last_id = fields.get("id", self.last_id)
                if "data" in fields:
                    yield {"event": fields.get("event", "message"), **json.loads(fields["data"])}
                fields = {}

    def take(self, count: int) -> list[dict[str, Any]]:
        return [event for _, event in zip(range(count), self, strict=False)]


@contextmanager
def follow(client: httpx.Client, last_id: str | None = None, **parameters: Any) -> Iterator[Stream]:
    """A stream that is connected: what is told from now on is in it."""
    headers = {} if last_id is None else {"last-event-id": last_id}
    with client.stream("GET", URL, params=parameters, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.iter_lines()
        stream = Stream(lines)
        assert next(lines) == ": connected"
        stream.last_id = next(lines).partition(": ")[2]
        yield stream


def tell(pipeline: Pipeline, numbers: range, kind: str = "chunk_emitted", **more: Any) -> None:
    pipeline.tell([{"at": 1.0, "kind": kind, "chunk": n, **more} for n in numbers])


def chunks(told: list[dict[str, Any]]) -> list[int]:
    return [event["chunk"] for event in told]


def test_a_stream_begins_now_and_keeps_the_order(shop: Pipeline, client: httpx.Client) -> None:
    tell(shop, range(5))
    with follow(client) as stream:
        for n in range(5, 30, 5):
            tell(shop, range(n, n + 5))
        told = stream.take(25)
        assert chunks(told) == list(range(5, 30))
        assert told[0] == {"event": "message", "at": 1.0, "kind": "chunk_emitted", "chunk": 5}
        assert stream.last_id == "30"


def test_a_stream_goes_on_where_it_was_left(shop: Pipeline, client: httpx.Client) -> None:
    tell(shop, range(1200))
    with follow(client, after=0) as stream:
        assert chunks(stream.take(700)) == list(range(700))
        last = stream.last_id
    assert last == "700"
    with follow(client, last, after=0) as stream:
        tell(shop, range(1200, 1210))
        assert chunks(stream.take(510)) == list(range(700, 1210))


def test_a_stream_that_has_heard_nothing_comes_back_to_the_same_place(shop: Pipeline, client: httpx.Client) -> None:
    tell(shop, range(3))
    with follow(client) as stream:
        last = stream.last_id
    tell(shop, range(3, 6))
    with follow(client, last) as stream:
        assert chunks(stream.take(3)) == [3, 4, 5]


def test_a_number_of_another_log_begins_at_the_beginning(shop: Pipeline, client: httpx.Client) -> None:
    tell(shop, range(3))
    with follow(client, "1000") as stream:
        assert chunks(stream.take(3)) == [0, 1, 2]


def test_those_who_catch_up_and_those_who_listen_miss_nothing(shop: Pipeline, client: httpx.Client) -> None:
    """Writers write while subscribers come at any moment: each hears every entry once."""
    total = 3000
    heard: list[list[int]] = []

    def listen(delay: float) -> None:
        time.sleep(delay)
        with follow(client, after=0) as stream:
            heard.append(chunks(stream.take(total)))

    listeners = [threading.Thread(target=listen, args=(0.1 * n,)) for n in range(6)]
    for listener in listeners:
        listener.start()
    for n in range(0, total, 50):
        tell(shop, range(n, n + 50))
        time.sleep(0.01)
    for listener in listeners:
        listener.join(60)
    assert [h == list(range(total)) for h in heard] == [True] * 6


def test_only_the_kinds_that_are_asked_for(shop: Pipeline, client: httpx.Client) -> None:
    with follow(client, kind=["row_dropped", "dump_ended"]) as stream:
        for n, kind in enumerate(EventKind):
            tell(shop, range(n, n + 1), kind)
        assert [e["kind"] for e in stream.take(2)] == ["row_dropped", "dump_ended"]
    with follow(client, after=0, kind="row_dropped") as stream:
        assert chunks(stream.take(1)) == [list(EventKind).index(EventKind.row_dropped)]
    assert client.get(URL, params={"kind": "nonsense"}).status_code == 422


def test_a_stream_is_of_one_pipeline(shop: Pipeline, store: Store, client: httpx.Client) -> None:
    other = start(store, "other")
    assert client.get(URL).status_code == 404
    with follow(client, pipeline="other") as stream:
        tell(shop, range(3))
        tell(other, range(7, 8))
        assert chunks(stream.take(1)) == [7]


@pytest.mark.parametrize("given", ["x", "-1", str(2**63), ""])
def test_a_number_that_is_none(shop: Pipeline, client: httpx.Client, given: str) -> None:
    assert client.get(URL, params={"after": given}).status_code == 422
    if given:
        assert client.get(URL, headers={"last-event-id": given}).status_code == 422


def test_silence_is_broken_by_heartbeats(shop: Pipeline, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.3)
    with follow(client) as stream:
        threading.Timer(1.5, tell, (shop, range(1))).start()
        assert chunks(stream.take(1)) == [0]
        assert 2 <= stream.comments.count("heartbeat") <= 6


def test_there_is_room_for_so_many(shop: Pipeline, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_SUBSCRIBERS", 2)
    with follow(client) as first:
        with follow(client):
            refused = client.get(URL)
            assert (refused.status_code, set(refused.json())) == (503, {"error", "hint"})
            assert refused.headers["retry-after"]
            assert client.get("/api/v1/status").status_code == 200

        def is_free() -> bool:
            with client.stream("GET", URL) as response:
                return response.status_code == 200

        wait_until(is_free)
        tell(shop, range(1))
        assert chunks(first.take(1)) == [0]


def test_a_slow_subscriber_is_dropped_and_nobody_waits_for_it(
    shop: Pipeline, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "QUEUE", 100)
    monkeypatch.setattr(events, "BATCH", 50)
    url = urlsplit(str(client.base_url))
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.settimeout(30)
    slow.connect((url.hostname, url.port))
    slow.sendall(f"GET {URL} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    assert b"200 OK" in slow.recv(300)
    time.sleep(1)  # It has caught up and joined: from now on it takes nothing.
    total, large = 1000, "x" * 30_000
    with follow(client) as quick:
        heard: list[int] = []

        def listen() -> None:
            heard.extend(event["chunk"] for _, event in zip(range(total), quick, strict=False))

        listener = threading.Thread(target=listen)
        listener.start()
        for n in range(0, total, 20):
            tell(shop, range(n, n + 20), text=large)
            wait_until(lambda reached=n: len(heard) >= reached - 60 or not listener.is_alive())
        listener.join(60)
        assert heard == list(range(total))
    received = b""
    while more := slow.recv(1 << 20):
        received += more
    slow.close()
    assert b"event: dropped\r\n" in received.replace(b"\n", b"\r\n")[-300:]
    assert 0 < received.count(b"chunk_emitted") < total


def test_a_subscriber_that_takes_nothing_at_all_is_given_up(
    shop: Pipeline, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "STUCK_SECONDS", 0.5)
    monkeypatch.setattr(events, "MOST_SUBSCRIBERS", 1)
    tell(shop, range(1000), text="x" * 30_000)
    url = urlsplit(str(client.base_url))
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect((url.hostname, url.port))
        stuck.sendall(f"GET {URL}?after=0 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        time.sleep(0.3)
        assert client.get(URL).status_code == 503

        def is_free() -> bool:
            with client.stream("GET", URL) as response:
                return response.status_code == 200

        wait_until(is_free)


def test_all_subscribers_share_one_reader_and_none_reads_for_nobody(shop: Pipeline, place: str) -> None:
    opened: list[float] = []

    def counted() -> Store:
        opened.append(time.monotonic())
        return open_store(place)

    async def run() -> None:
        hub = Hub(counted)
        streams = [hub.follow("shop", 0, ()) for _ in range(20)]
        for stream in streams:
            await anext(stream)
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(1)
        opened.clear()
        await asyncio.sleep(2)
        assert 3 <= len(opened) <= 10, "one reads four times a second"
        tell(shop, range(1))
        assert {bytes(chunk) for chunk in await asyncio.gather(*waiting)} == {
            b'id: 1\ndata: {"at": 1.0, "kind": "chunk_emitted", "chunk": 0}\n\n'
        }
        for stream in streams:
            await stream.aclose()
        await asyncio.sleep(0.5)
        opened.clear()
        await asyncio.sleep(0.6)
        assert opened == []

    asyncio.run(run())


def test_a_store_that_is_away_for_a_while_costs_nothing(shop: Pipeline, place: str) -> None:
    away = False

    def opened() -> Store:
        if away:
            raise StateError("the store is away")
        return open_store(place)

    async def run() -> None:
        nonlocal away
        stream = Hub(opened).follow("shop", 0, ())
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.5)
        away = True
        tell(shop, range(1))
        await asyncio.sleep(0.6)
        assert not waiting.done()
        away = False
        assert b'"chunk": 0' in await asyncio.wait_for(waiting, 10)
        await stream.aclose()

    asyncio.run(run())


def test_a_log_that_replaces_another_is_followed(store: Store, shop: Pipeline, place: str) -> None:
    async def run() -> None:
        hub = Hub(lambda: open_store(place))
        tell(shop, range(50))
        old = hub.follow("shop", await hub.position("shop", None), ())
        await anext(old)
        waiting = asyncio.ensure_future(anext(old))
        await asyncio.sleep(0.5)
        shop.forget()
        new = hub.follow("shop", await hub.position("shop", None), ())
        await anext(new)
        told = asyncio.ensure_future(anext(new))
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(waiting, 10)
        await asyncio.sleep(0.6)
        tell(shop, range(1))
        assert b'"chunk": 0' in await asyncio.wait_for(told, 10)
        await new.aclose()

    asyncio.run(run())


def test_what_the_feed_has_read_while_somebody_comes_is_not_missed(
    shop: Pipeline, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        hub = Hub(lambda: open_store(place))
        old, new = hub.follow("shop", 0, ()), hub.follow("shop", 0, ())
        await anext(old)
        heard = asyncio.ensure_future(anext(old))
        await asyncio.sleep(0.5)
        await anext(new)
        read = hub._read

        async def late(name: str, after: int | None, limit: int) -> Any:
            """The newcomer finds nothing, and before it can join the feed finds something."""
            if asyncio.current_task() is hub._feeds[name].task:
                return await read(name, after, limit)
            monkeypatch.setattr(hub, "_read", read)
            found = await read(name, after, limit)
            tell(shop, range(1))
            await heard
            return found

        monkeypatch.setattr(hub, "_read", late)
        assert b'"chunk": 0' in await asyncio.wait_for(anext(new), 10)
        assert b'"chunk": 0' in heard.result()
        await old.aclose()
        await new.aclose()

    asyncio.run(run())


def test_a_full_queue_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "QUEUE", 3)

    async def run() -> None:
        subscriber = Subscriber(0, {"a"})
        subscriber.offer([(n, {"kind": "b"}) for n in range(1, 10)])
        subscriber.offer([(n, {"kind": "a"}) for n in range(10, 13)])
        assert not subscriber.dropped
        assert [n for n, _ in await subscriber.take()] == [10, 11, 12]
        subscriber.offer([(n, {"kind": "a"}) for n in range(13, 17)])
        assert (subscriber.dropped, subscriber.ended, await subscriber.take()) == (True, True, [])

    asyncio.run(run())
