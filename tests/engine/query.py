"""A query without Spark: calls the stream reader as Spark would, in the same order, one step at a time.

So a test can stand between any two calls, change the database there, lose a process or repeat a call. Like Spark it
writes an offset down before it runs the batch, and tells the reader of a finished batch only once the next is planned.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dblog.planning.engine import Engine
from dblog.spark.format import DBLogSource
from dblog.spark.options import read_options
from dblog.spark.source import ChangeReader, Lane
from dblog.spark.versions import ReadAllAvailable
from dblog.work.lanes import Work
from dblog.work.tasks import Emit, Log, Select
from tests.history import History, Row

Json = dict[str, Any]


SHORTEST_HEARTBEAT, QUICK_HEARTBEAT = 1, 0.2
"""Seconds: the shortest that a user may give, and what it is in tests, most of which wait for the next one."""


class Query:
    """A stream of one table or, with `tables`, of envelopes."""

    def __init__(self, url: str, spool: str, key: tuple[str, ...] = ("id",), **options: Any) -> None:
        self.given = {"url": url, "spool": spool, "state": f"{spool}.state"}
        self.given |= {"heartbeatSeconds": "3600", "chunkRows": "10"}
        self.given |= {name: str(value) for name, value in options.items()}
        self.history = History(key)
        self.offsets: list[Json] = []  # what Spark would have in its checkpoint
        self.done = 0  # so many of them are finished
        self._reader: ChangeReader | None = None

    # -- a life ----------------------------------------------------------------------------------------------

    @property
    def reader(self) -> ChangeReader:
        if self._reader is None:
            source = DBLogSource(self.given)
            options = read_options(self.given)
            if options.settings.heartbeat == SHORTEST_HEARTBEAT:
                options = replace(options, settings=replace(options.settings, heartbeat=QUICK_HEARTBEAT))
            self._reader = ChangeReader(options, source.schema())
        return self._reader

    @property
    def engine(self) -> Engine:
        return self.reader._started()[0]

    @property
    def committed(self) -> Json:
        """The offset that the next batch starts from."""
        return self.offsets[self.done - 1] if self.done else self.reader.initialOffset()

    def check_position(self) -> None:
        """Ask, as a preflight does, whether the log still reaches back to where the stream goes on."""
        read_options(self.given).source.check_position(self.committed["pos"], self.committed.get("place"))

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def restart(self, **options: Any) -> None:
        """End this life and begin the next, which repeats a batch that was planned and not finished."""
        self.stop()
        self.given |= {name: str(value) for name, value in options.items()}
        if len(self.offsets) > self.done:
            self.finish()

    # -- a batch ---------------------------------------------------------------------------------------------

    def plan(self, *, everything: bool = False) -> bool:
        """Plan the next batch and write it down; whether there is one."""
        assert len(self.offsets) == self.done, "the planned batch must be finished first"
        start = self.committed
        limit = ReadAllAvailable() if everything else self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(self.reader.latestOffset(start, limit)))
        if end == start:
            return False
        self.offsets.append(end)
        if self.done:
            self.reader.commit(start)
        return True

    def work(self) -> list[Lane]:
        """The work of the planned batch, as Spark's tasks get it."""
        return list(self.reader.partitions(self.committed, self.offsets[self.done]))  # type: ignore[arg-type]

    def rows(self, lanes: list[Lane], *kinds: type[Work]) -> Iterator[Row]:
        """Do the work of some kinds; its rows, in the order of the tasks."""
        for lane in lanes:
            for batch in self.reader.read(Lane(tuple(w for w in lane.work if isinstance(w, kinds)), lane.shape)):
                yield from _pylist(batch)

    def finish(self, *, selects: bool = True) -> list[Row]:
        """Run the planned batch and call it done. The selects go first: close behind the watermark, where it is most
        likely that they do not see everything that the log has shown."""
        lanes = self.work()
        if selects:
            assert not list(self.rows(lanes, Select))
        rows = list(self.rows(lanes, Log, Emit))
        self.history.deliver(self.done, rows)
        self.done += 1
        return rows

    # -- many batches ----------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One batch if there is something for it."""
        if not self.plan():
            return False
        self.finish()
        return True

    def until(self, ready: Callable[[], bool], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, f"not reached in {seconds} s: {self.offsets[-1:]}"
            self.step()

    def open_window(self) -> None:
        """Go on until a round has been selected: from here to the next plan is its window."""
        self.until(lambda: bool(self.committed.get("read")))

    @property
    def dumped(self) -> bool:
        offset = self.committed
        return bool(offset.get("tables")) and not offset.get("read") and not offset.get("dumps")

    def dump(self, seconds: float = 60.0) -> None:
        """Go on until no dump is running."""
        self.until(lambda: self.dumped, seconds)

    def wait_captured(self, seconds: float = 15.0) -> None:
        """Wait until the log as of now is on the spool."""
        target, deadline = self.engine._source.latest(), time.monotonic() + seconds
        while self.engine.report()["captured"] < target:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def catch_up(self, seconds: float = 60.0) -> None:
        """Go on until no dump is running and the log as of now is delivered."""
        target = self.engine._retrying(self.engine._source.latest)
        deadline = time.monotonic() + seconds
        while True:
            moved = self.step()
            captured = self.engine.report().get("captured", 0)
            if not moved and self.dumped and captured >= target:
                return
            state = f"moved {moved}, dumped {self.dumped}, captured {captured}, wanted {target}"
            assert time.monotonic() < deadline, f"not reached in {seconds} s: {state}, {self.offsets[-1:]}"


def _pylist(batch: pa.RecordBatch) -> list[Row]:
    """The rows; of an envelope, the row inside it with the table's name in `_table`."""
    rows: list[Row] = batch.to_pylist()
    return [_opened(row) for row in rows] if "after" in batch.schema.names else rows


def _opened(envelope: Row) -> Row:
    metadata = {k: v for k, v in envelope.items() if k.startswith("_")}
    inside = json.loads(envelope["after"] or envelope["key"] or "{}")
    return {**inside, **metadata, "_op": envelope["op"], "_table": envelope["table"]}
