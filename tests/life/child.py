"""The process of a stream under test: the product's reader, called as Spark calls it."""

from __future__ import annotations

import json
import traceback
from multiprocessing.connection import Connection
from typing import Any

import psycopg2  # noqa: F401  loaded once, before the processes are forked
import pyarrow as pa

import dblog.planning.planner
import dblog.sources.mysql.source
import dblog.sources.postgres.source
import dblog.sources.postgres.stream
from dblog.capture.spool import Spool
from dblog.errors import DBLogError
from dblog.spark.format import DBLogSource
from dblog.spark.options import read_options
from dblog.spark.source import ChangeReader, Lane
from dblog.spark.versions import ReadAllAvailable
from dblog.work.tasks import Emit, Log, Select
from tests.life import sabotage
from tests.life.checker import Event
from tests.life.replay import Attempt, batch_of
from tests.life.world import as_text

POLL_SECONDS = 0.05
"""How long a plan waits for something to do: most steps of a life end by finding that there is nothing more."""


def serve(pipe: Connection, given: dict[str, str]) -> None:
    dblog.planning.planner.POLL_SECONDS = POLL_SECONDS
    dblog.sources.postgres.stream.IN_PROGRESS_MEMORY = "64kB"  # the least that a server allows
    if broken := given.pop("sabotage", ""):
        sabotage.apply(broken)
    reader = Reader(given)
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("ok", getattr(reader, name)(*args)))
        except DBLogError as error:
            pipe.send(("error", (type(error).__name__, error.message, error.hint, error.retryable)))
        except BaseException:
            pipe.send(("crash", traceback.format_exc()))


class Reader:
    def __init__(self, given: dict[str, str]) -> None:
        self._given = given
        self._reader: ChangeReader | None = None

    @property
    def reader(self) -> ChangeReader:
        if self._reader is None:
            self._reader = ChangeReader(read_options(self._given), DBLogSource(self._given).schema())
        return self._reader

    def plan(self, start: dict[str, Any] | None) -> dict[str, Any] | None:
        start = start or self.reader.initialOffset()
        end: dict[str, Any] = json.loads(json.dumps(self.reader.latestOffset(start, ReadAllAvailable())))
        return None if end == start else end

    def run(
        self, start: dict[str, Any] | None, end: dict[str, Any], selects_last: bool, tables: bool
    ) -> tuple[list[Event], Attempt | None]:
        """Run a batch; its events, and with `tables` also what a sink is given."""
        lanes: list[Lane] = list(self.reader.partitions(start or self.reader.initialOffset(), end))  # type: ignore[arg-type]
        if not selects_last:
            self._read(lanes, Select)
        events = self._read(lanes, Log, Emit)
        if selects_last:
            self._read(lanes, Select)
        work = [w for lane in lanes for w in lane.work]
        options = read_options(self._given)
        given = batch_of(work, Spool(options.spool), options.settings.parallelism) if tables else None
        return events, given

    def commit(self, end: dict[str, Any]) -> None:
        self.reader.commit(end)

    def exchange(self) -> None:
        """Have the stream look at its state store."""
        sync = self.reader._started()[0].sync
        assert sync is not None
        sync.exchange(20.0)

    def joining(self) -> bool:
        """Whether a table is about to be followed."""
        return bool(self.reader._started()[0].status()["joining"])

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.stop()

    def _read(self, lanes: list[Lane], *kinds: type) -> list[Event]:
        events: list[Event] = []
        for lane in lanes:
            for batch in self.reader.read(Lane(tuple(w for w in lane.work if isinstance(w, kinds)), lane.shape)):
                events += _events(batch)
        return events


def _events(envelopes: pa.RecordBatch) -> list[Event]:
    found = []
    for row in envelopes.to_pylist():
        key = json.loads(row["key"]) if row["key"] else None
        after = json.loads(row["after"]) if row["after"] else None
        found.append(
            Event(
                batch=-1,
                table=row["table"],
                op=row["op"],
                at=(row["_lsn"], row["_seq"]),
                key=None if key is None else tuple(str(v) for v in key.values()),
                row=None if after is None else {c: as_text(v) for c, v in after.items() if c not in (key or ())},
                unchanged=tuple(row["_unchanged"] or ()),
                dump=row["_dump"],
            )
        )
    return found
