"""The sink `http`: each request posts a JSON array of events to an API.

One task posts the changes of a table, one request after the other, so that the events of a key arrive in order; other
tasks post those of other tables. Then several tasks post the rows of dumps, in which no key occurs twice. A request
that the API refuses is stored as a *dead letter*, or ends the pipeline.

The `Idempotency-Key` of a request is made of its number in the batch and its content. A batch that comes again has the
same keys, and two requests with the same key have the same events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.schema import TableName
from dblog.core.settings import Setting, mapping, number, text
from dblog.errors import SinkError
from dblog.sinks.api import Api
from dblog.sinks.base import DELIVERED, Batch, Sink, SinkContext, TableBatch
from dblog.sinks.folder import Folder, folder_name
from dblog.sinks.formats import FORMAT, OLD_ROWS, Formatter, events, events_of, formatter
from dblog.sinks.partition_work import each_part
from dblog.sinks.table_parts import Part, read_in_tasks, weights_of
from dblog.sinks.task_job import run_in_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HttpSink(Sink):
    """Posts events at least once, with keys by which the API can recognise repeats."""

    settings = (
        Setting("url", "where to post", text("a URL like https://api.example/events"), secret=True),
        Setting("headers", "headers of each request", mapping(), default={}, secret=True),
        FORMAT,
        Setting("size", "events in a request", number(1, 100_000), default=500),
        Setting("timeout", "seconds to wait for an answer", number(0.1, 3600.0), default=30.0),
        Setting("retries", "retries of a request before the sink counts as unreachable", number(0, 100), default=5),
        Setting(
            "dead_letter",
            "a folder for the events of refused requests; without it, a refused request ends the pipeline",
            text("a path, or a URL like s3://bucket/x"),
            default=None,
        ),
        OLD_ROWS,
    )

    def __init__(self, given: Mapping[str, Any], context: SinkContext) -> None:
        super().__init__(given, context)
        self._api = Api(given["url"], given["headers"], given["timeout"], given["retries"])
        self._letters = Folder.of(given["dead_letter"], context) if given["dead_letter"] else None
        self._spark: SparkSession | None = None

    @property
    def cascades(self) -> str:
        return DELIVERED

    @property
    def before(self) -> bool:
        return bool(self.given["before"])

    @property
    def folders(self) -> Sequence[str]:
        return () if self._letters is None else (self._letters.uri,)

    def check(self) -> None:
        formatter(self.given["format"], self.context)
        self._api.check()
        if self._letters is not None:
            self._letters.make()
        self._api.reach()

    def open(self, spark: SparkSession) -> None:
        self._spark = spark

    def write(self, batch: Batch) -> None:
        form = formatter(self.given["format"], self.context)
        tables, others = read_in_tasks(batch.tables)
        if self._letters is not None:
            for table in batch.tables:
                (self._letters / folder_name(table.schema.table)).make()
        changes, rows = _changes_and_rows(tables)
        self._post_in_tasks(batch, "changes", changes, form)
        self._post_in_tasks(batch, "rows", rows, form)
        for table in others:
            if table.changes is not None:
                frame = events(table, table.changes, form).coalesce(1)
                each_part(frame, self._post(batch, table.schema.table, "changes"))
            if table.rows is not None:
                each_part(events(table, table.rows, form), self._post(batch, table.schema.table, "rows"))

    def _post_in_tasks(self, batch: Batch, kind: str, parts: Sequence[Part], form: Formatter) -> None:
        works = [(self._post(batch, part.schema.table, kind), part, form) for part in parts]
        # The API may answer late: it must be possible to stop the query meanwhile.
        run_in_tasks(self._spark, works, _post, weights_of(parts), threads=1, driver=False)

    def _post(self, batch: Batch, table: TableName, kind: str) -> Post:
        letters = None if self._letters is None else self._letters / folder_name(table)
        parts = (self.context.pipeline, str(batch.id), str(table), kind)
        key = "-".join(quote(part, safe="") for part in parts)
        return Post(self._api, self.given["size"], key, letters, f"{batch.id:020d}-{kind}")


@dataclass(frozen=True)
class Post:
    """The work of a task: post its events, and store refused requests as dead letters."""

    api: Api
    size: int
    key: str
    letters: Folder | None
    name: str

    def __call__(self, part: int, batches: Iterator[pa.RecordBatch]) -> str:
        name = f"{self.name}-{part:05d}.ndjson"
        if self.letters is not None:
            self.letters.remove(name)  # a file of an earlier attempt at this batch
        with ExitStack() as stack:
            session = stack.enter_context(self.api.session())
            file: Any = None
            for number, body in enumerate(bodies(batches, self.size)):
                key = f"{self.key}-{part}-{number}-{hashlib.sha256(body).hexdigest()[:12]}"
                refused = session.post(body, key)
                if refused is None:
                    continue
                if self.letters is None:
                    raise SinkError(
                        f"{self.api.shown} refused the request {key!r}: {refused}",
                        hint="set dead_letter to store the events of refused requests in a folder and go on",
                    )
                if file is None:
                    file = stack.enter_context(self.letters.writing(name))
                file.write(refused.letter(key, body))
        return ""


def _post(work: tuple[Post, Part, Formatter]) -> None:
    post, part, form = work
    post(part.number, events_of(part.batches(), part.schema, form))


def _changes_and_rows(tables: Sequence[TableBatch]) -> tuple[list[Part], list[Part]]:
    """The changes of each table as one part, and the rows of dumps in parts."""
    changes: list[Part] = []
    rows: list[Part] = []
    for index, table in enumerate(tables):
        assert table.arrow is not None
        split = list(table.arrow.split())
        if table.has_changes:
            changes.append(Part(index, 0, table.schema, split.pop(0)))
        rows += [Part(index, number, table.schema, part) for number, part in enumerate(split)]
    return changes, rows


def bodies(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[bytes]:
    """The events as JSON arrays of `size` events; the last array has the rest."""
    held = pa.chunked_array([], pa.string())
    for batch in batches:
        held = pa.chunked_array([*held.chunks, batch.column("value").drop_null()])
        whole = len(held) - len(held) % size
        for at in range(0, whole, size):
            yield _array(held.slice(at, size))
        held = held.slice(whole)
    if len(held):
        yield _array(held)


def _array(values: pa.ChunkedArray) -> bytes:
    texts = values.combine_chunks()
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), ",")
    return b"".join((b"[", joined[0].as_buffer(), b"]"))
