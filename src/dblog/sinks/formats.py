"""Events as text, for sinks whose targets have no columns.

An *event* is a key and a value, both text. A *formatter* makes the events of many rows at once, from Arrow columns.
There are two formatters, and a user can write another:

    envelope                   the change as one JSON object
    debezium                   the same in Debezium's format (`dblog.sinks.debezium`)
    package.module:function    a function of the user's

The key of a truncate is null. An event whose value is null is a tombstone if the target has tombstones; otherwise it is
left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.event import BEFORE, CASCADE, CHANGE_FIELDS, RAW, op_names
from dblog.core.schema import TableSchema
from dblog.core.settings import Setting, flag, text
from dblog.errors import SinkError
from dblog.sinks.base import SinkContext, TableBatch
from dblog.sinks.import_path import Imported
from dblog.work import envelope as streaming
from dblog.work.json_text import join_members, json_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Formatter: TypeAlias = Callable[[pa.RecordBatch, TableSchema], pa.RecordBatch]
"""Takes rows with the table's columns and then the metadata, as in the DataFrames of a `TableBatch`. Returns the
columns `key` and `value`, one event for each row and in the same order."""

EVENT = "key string, value string, _lsn bigint, _seq int, _op string"
"""The columns of events, as a Spark schema."""

FORMAT = Setting(
    "format",
    "the format of an event: envelope, debezium, or a function of yours",
    text("envelope, debezium or package.module:function"),
    default="envelope",
)
MOST_ROWS, MOST_BYTES = 10_000, 4 << 20
"""How many rows, and bytes of rows, become text at a time."""
OLD_ROWS = Setting("before", "whether an event has the old row, as far as the log has it", flag(), default=False)


def events(table: TableBatch, frame: DataFrame, form: Formatter) -> DataFrame:
    """The events of a DataFrame of the table, in its order and its partitions."""
    # Spark cannot pass columns to Arrow whose names have special characters or differ by case only.
    plain = frame.toDF(*(f"c{n}" for n in range(len(frame.columns))))
    return plain.mapInArrow(partial(_events, table.schema, frame.columns, form), EVENT)


def formatter(name: str, context: SinkContext) -> Formatter:
    """The formatter that the setting `format` names. Raises ConfigError."""
    from dblog.sinks.debezium import Debezium

    match name:
        case "envelope":
            return envelope
        case "debezium":
            return Debezium(context.pipeline)
    own = Imported(name, context.folder)
    own.find()
    return own


def envelope(rows: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    """The columns of the streaming envelope as one JSON object."""
    images, told = images_of(rows, schema), metadata(rows, schema)
    # The schema version is the row's, not that of the table in the target.
    columns = {name: told.get(name, images.column(name)) for name in images.schema.names}
    if CASCADE in told:
        columns[CASCADE] = told[CASCADE]
    objects = ("key", "before", "after", RAW, CASCADE)
    members = [column if name in objects else json_text(column) for name, column in columns.items()]
    names = ["schema_version" if name == "_schema" else name.removeprefix("_") for name in columns]
    return event_columns(event_keys(images.column("key"), told), join_members(names, members))


def event_keys(keys: pa.StringArray, told: dict[str, pa.Array]) -> pa.StringArray:
    """The keys of events. That of a cascade is its own: no other event has it, so that Kafka never compacts it."""
    if CASCADE not in told or told[CASCADE].null_count == len(told[CASCADE]):
        return keys
    names = [None if text is None else json.loads(text)["foreign_key"] for text in told[CASCADE].to_pylist()]
    own = {"cascade": pa.array(names, pa.string()), "lsn": told["_lsn"], "seq": told["_seq"]}
    return pc.if_else(pc.is_valid(told[CASCADE]), join_members(list(own), list(map(json_text, own.values()))), keys)


def event_columns(key: pa.StringArray, value: pa.StringArray) -> pa.RecordBatch:
    """The result of a formatter."""
    return pa.RecordBatch.from_arrays([key, value], names=["key", "value"])


def metadata(rows: pa.RecordBatch, schema: TableSchema) -> dict[str, pa.Array]:
    """The metadata columns of rows: those after the table's columns."""
    own = len(schema.columns)
    return dict(zip(rows.schema.names[own:], rows.columns[own:], strict=True))


def images_of(rows: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    """The streaming envelope of rows that have the table's columns first: `key`, `before` and `after` as JSON."""
    own = len(schema.columns)
    told = metadata(rows, schema)
    told["_op"] = pc.index_in(told["_op"], op_names())
    columns = [told[field.name].cast(field.type) for field in CHANGE_FIELDS] + rows.columns[:own]
    names = [field.name for field in CHANGE_FIELDS] + list(schema.names)
    if BEFORE in told:
        columns.append(told[BEFORE])
        names.append(BEFORE)
    return streaming.envelope(pa.RecordBatch.from_arrays(columns, names=names), schema)


def _events(
    schema: TableSchema, names: Sequence[str], form: Formatter, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return events_of((rows.rename_columns(list(names)) for rows in batches), schema, form)


def events_of(batches: Iterable[pa.RecordBatch], schema: TableSchema, form: Formatter) -> Iterator[pa.RecordBatch]:
    """The events of rows, in their order. The batches of events are small: a text is larger than its columns."""
    for rows in (part for batch in batches for part in _sliced(batch)):
        made = form(rows, schema)
        _check(made, rows.num_rows)
        told = metadata(rows, schema)
        columns = {"key": made.column("key"), "value": made.column("value")}
        columns |= {name: told[name] for name in ("_lsn", "_seq", "_op")}
        yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    step = max(1, min(MOST_ROWS, MOST_BYTES * batch.num_rows // max(batch.nbytes, 1)))
    for at in range(0, batch.num_rows, step):
        yield batch.slice(at, step)


def _check(made: object, rows: int) -> None:
    wanted = {"key": pa.string(), "value": pa.string()}
    if not isinstance(made, pa.RecordBatch) or dict(zip(made.schema.names, made.schema.types, strict=True)) != wanted:
        shown = made.schema.to_string() if isinstance(made, pa.RecordBatch) else type(made).__name__
        raise SinkError(
            f"the formatter returned {shown!r}", hint="return a pyarrow.RecordBatch with two texts, key and value"
        )
    if made.num_rows != rows:
        raise SinkError(
            f"the formatter returned {made.num_rows} events for {rows} rows",
            hint="return one event for each row, in the same order; to leave an event out, make its value null",
        )
