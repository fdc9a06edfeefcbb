"""The events of a pipeline as server-sent events.

A subscriber first reads the entries that it has missed from the store, at its own speed. Then it joins the pipeline's
feed: one task that reads the store for all subscribers. Entries that a subscriber has not taken yet wait in its queue.
If the queue is full, the subscriber is dropped, so that it does not delay the others. It can connect again with the
number of the last entry it has seen. It then gets all later entries that the store still has.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing, closing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dblog.errors import DBLogError
from dblog.state.pipeline import Pipeline
from dblog.state.store import Store, Value

POLL_SECONDS = 0.25
HEARTBEAT_SECONDS = 15.0
STUCK_SECONDS = 30.0
"""How long, in seconds, a client may take no data before its connection is closed."""
BATCH = 500
QUEUE = 2000
MOST_SUBSCRIBERS = 100

HEARTBEAT = b": heartbeat\n\n"
DROPPED = b'event: dropped\ndata: {"error": "too slow", "hint": "connect again with Last-Event-ID"}\n\n'

Entry = tuple[int, Value]
log = logging.getLogger(__name__)


class Busy(DBLogError):
    """There are already `MOST_SUBSCRIBERS` subscribers."""

    retryable = True


class Subscriber:
    """A client of the event stream, with the entries that it has not taken yet."""

    def __init__(self, after: int, kinds: Collection[str]) -> None:
        self.dropped = False
        self.ended = False
        self._after = after
        self._kinds = kinds
        self._pending: deque[Entry] = deque()
        self._news = asyncio.Event()

    def wants(self, entries: Sequence[Entry]) -> list[Entry]:
        return [e for e in entries if not self._kinds or e[1].get("kind") in self._kinds]

    def offer(self, entries: Sequence[Entry]) -> None:
        """Queue the entries that are new to it. Never waits."""
        wanted = self.wants([e for e in entries if e[0] > self._after])
        if len(self._pending) + len(wanted) > QUEUE:
            self.dropped = True
        if self.dropped:
            self._pending.clear()
            self.end()
        elif wanted:
            self._pending.extend(wanted)
            self._news.set()

    def end(self) -> None:
        self.ended = True
        self._news.set()

    async def take(self) -> list[Entry]:
        """The queued entries; none if a heartbeat is due first, or if the subscriber has ended."""
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                await self._news.wait()
        except TimeoutError:
            return []
        if not self.ended:
            self._news.clear()
        taken = list(self._pending)
        self._pending.clear()
        return taken


class Feed:
    """The task that reads the events of one pipeline for its subscribers, and the number of the last entry it read."""

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        self.subscribers: set[Subscriber] = set()
        self.task: asyncio.Task[None] | None = None

    def end(self) -> None:
        for subscriber in self.subscribers:
            subscriber.end()
        self.subscribers.clear()


class Hub:
    """The subscribers of all pipelines. Belongs to one event loop; the store is read in other threads."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self.streams = 0
        self.closed = False
        self._open_store = open_store
        self._feeds: dict[str, Feed] = {}

    def close(self) -> None:
        """End all streams. Streams that are still catching up, or begin later, end when they have caught up."""
        self.closed = True
        for feed in self._feeds.values():
            feed.end()

    async def position(self, name: str, after: int | None, before: int = 0) -> int:
        """The number after which a stream begins: the given one, or that of the newest entry, or `before` entries
        before that."""
        newest = await self._read(name, None, 1)
        last = newest[-1][0] if newest else 0
        if after is None:
            return max(0, last - before)
        # A greater number is from an earlier store, which this one has replaced.
        return after if after <= last else 0

    async def follow(self, name: str, position: int, kinds: Collection[str]) -> AsyncGenerator[bytes]:
        """The chunks of a stream, until its subscriber is dropped or the hub closes."""
        # With this id a client can continue from here if it loses the connection before the first entry.
        yield b": connected\nid: %d\n\n" % position
        while True:
            feed = self._feeds.get(name)
            read_before = feed.cursor if feed else 0
            subscriber = Subscriber(position, kinds)
            entries = await self._read(name, position, BATCH)
            if entries:
                position = entries[-1][0]
                if wanted := subscriber.wants(entries):
                    yield _text(wanted)
            elif self.closed:
                return
            elif feed and read_before > position:
                feed.end()  # it has read an earlier store, which this one has replaced
                await asyncio.sleep(POLL_SECONDS)
            elif joined := self._join(name, position, subscriber):
                break
        try:
            while not subscriber.ended:
                entries = await subscriber.take()
                if entries or not subscriber.ended:
                    yield _text(entries) if entries else HEARTBEAT
            if subscriber.dropped:
                yield DROPPED
        finally:
            joined.subscribers.discard(subscriber)

    def _join(self, name: str, position: int, subscriber: Subscriber) -> Feed | None:
        """Subscribe to the pipeline's feed, unless it has read further than the subscriber."""
        feed = self._feeds.setdefault(name, Feed(position))
        if feed.cursor > position:
            return None
        feed.subscribers.add(subscriber)
        if feed.task is None:
            feed.task = asyncio.create_task(self._feed(name, feed))
        return feed

    async def _feed(self, name: str, feed: Feed) -> None:
        """Read the events of a pipeline while it has subscribers."""
        try:
            while feed.subscribers:
                entries: Sequence[Entry] = ()
                try:
                    entries = await self._read(name, feed.cursor, BATCH)
                except DBLogError as error:
                    log.warning("events of pipeline %r cannot be read, trying again: %s", name, error)
                if entries:
                    feed.cursor = entries[-1][0]
                    for subscriber in list(feed.subscribers):
                        subscriber.offer(entries)
                await asyncio.sleep(POLL_SECONDS if len(entries) < BATCH else 0)
        finally:
            feed.end()
            del self._feeds[name]

    async def _read(self, name: str, after: int | None, limit: int) -> Sequence[Entry]:
        def read() -> Sequence[Entry]:
            with closing(self._open_store()) as store:
                return Pipeline(store, name).events(after, limit)

        return await asyncio.to_thread(read)


def _text(entries: Sequence[Entry]) -> bytes:
    return b"".join(b"id: %d\ndata: %s\n\n" % (number, json.dumps(value).encode()) for number, value in entries)


class EventStream(Response):
    """An endless answer. It ends when the client leaves or takes no data, or when the hub closes."""

    media_type = "text/event-stream"

    def __init__(self, hub: Hub, name: str, position: int, kinds: Collection[str]) -> None:
        self.hub, self.name, self.position, self.kinds = hub, name, position, kinds
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.hub.streams >= MOST_SUBSCRIBERS:
            raise Busy(f"there are {self.hub.streams} subscribers already", hint="end one, or try again later")
        self.hub.streams += 1
        writing = asyncio.create_task(self._write(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writing.cancel()
            leaving.cancel()
            outcome, _ = await asyncio.gather(writing, leaving, return_exceptions=True)
            self.hub.streams -= 1
        if isinstance(outcome, Exception):
            log.info("a stream of events has ended: %r", outcome)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self.hub.follow(self.name, self.position, self.kinds)) as chunks:
            async for chunk in chunks:
                async with asyncio.timeout(STUCK_SECONDS):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
