"""Sinks of the zoo: one stream, several targets, and a record of what was delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from dblog.core import raw_values
from dblog.core.event import RAW
from dblog.core.schema import TableName, TableSchema
from dblog.sinks.base import Batch, Sink, SinkContext, TableBatch
from tests.zoo.canon import Value, values

Key = tuple[Value, ...]


@dataclass(frozen=True)
class Event:
    """A row that was delivered."""

    op: str
    order: tuple[int, int]
    row: dict[str, Value]
    raw: dict[str, str]
    unchanged: tuple[str, ...]


@dataclass
class Record:
    """What a stream has delivered: by table and key, the events in their order."""

    schemas: dict[TableName, TableSchema] = field(default_factory=dict)
    batches: dict[int, list[tuple[TableName, Key, Event]]] = field(default_factory=dict)

    def take(self, batch: Batch) -> None:
        found = [(table.source, *one) for table in batch.tables for one in self._events(table)]
        before = self.batches.setdefault(batch.id, found)
        assert before == found, f"batch {batch.id} was delivered again with other events"

    def _events(self, table: TableBatch) -> list[tuple[Key, Event]]:
        self.schemas[table.source] = table.schema
        assert table.arrow is not None
        batches = [*table.arrow.changes(), *table.arrow.dump_rows()]
        return [one for batch in batches for one in _events(table.schema, batch)]

    def events(self) -> dict[TableName, dict[Key, list[Event]]]:
        """All events, in their order. A truncate ends what its table had."""
        found: dict[TableName, dict[Key, list[Event]]] = {}
        for number in sorted(self.batches):
            for table, key, event in self.batches[number]:
                found.setdefault(table, {}).setdefault(key, []).append(event)
        return found


def _events(schema: TableSchema, batch: pa.RecordBatch) -> list[tuple[Key, Event]]:
    columns = {name: values(batch.column(name)) for name in schema.names}
    meta = {name: batch.column(name).to_pylist() for name in ("_op", "_lsn", "_seq", "_unchanged")}
    raw = batch.column(RAW).to_pylist() if RAW in batch.schema.names else [None] * batch.num_rows
    found = []
    for i in range(batch.num_rows):
        row = {name: column[i] for name, column in columns.items()}
        order, unchanged = (meta["_lsn"][i], meta["_seq"][i]), tuple(meta["_unchanged"][i] or ())
        event = Event(meta["_op"][i], order, row, raw_values.read(raw[i]), unchanged)
        found.append((tuple(row[name] for name in schema.key), event))
    return found


@dataclass(frozen=True)
class Output:
    """A sink, and the tables that it gets."""

    name: str
    sink: Sink
    wanted: Callable[[TableName], bool]
    cascades: bool = False


class Outputs(Sink):
    """Gives every batch to several sinks, and to the record."""

    applies_cascades = True

    def __init__(self, outputs: Sequence[Output], context: SinkContext) -> None:
        super().__init__({}, context)
        self.outputs = tuple(outputs)
        self.record = Record()

    def write(self, batch: Batch) -> None:
        self.record.take(batch)
        for output in self.outputs:
            tables = tuple(table for table in batch.tables if output.wanted(table.source))
            if tables:
                output.sink.write(Batch(batch.id, batch.position, tables, batch.cascades if output.cascades else ()))

    def close(self) -> None:
        for output in self.outputs:
            output.sink.close()
