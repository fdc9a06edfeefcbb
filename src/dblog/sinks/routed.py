"""The tables of a batch after their routes.

Spark follows every route, on DataFrames. Rows that a task reads as Arrow follow names, columns and the masks `redact`
and `null`. A route's `where` is Spark's SQL, and `sha256` hashes the text that Spark makes of a value: these two are
left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.event import BEFORE, RAW
from dblog.core.raw_values import mapped, renamed
from dblog.core.schema import TableSchema
from dblog.sinks.base import ArrowRows, TableBatch
from dblog.sinks.route import REDACTED, Route


@dataclass(frozen=True)
class RoutedRows:
    """The rows of a table as a route changes them."""

    rows: ArrowRows
    route: Route
    schema: TableSchema
    """The table's schema before the route."""

    @property
    def overlapping(self) -> bool:
        return self.rows.overlapping

    @property
    def weight(self) -> int:
        return self.rows.weight

    def split(self) -> list[ArrowRows]:
        return [replace(self, rows=part) for part in self.rows.split()]

    def log_parts(self) -> list[ArrowRows]:
        return [replace(self, rows=part) for part in self.rows.log_parts()]

    def dump_parts(self) -> list[ArrowRows]:
        return [replace(self, rows=part) for part in self.rows.dump_parts()]

    def changes(self) -> Iterator[pa.RecordBatch]:
        return map(self._routed, self.rows.changes())

    def dump_rows(self) -> Iterator[pa.RecordBatch]:
        return map(self._routed, self.rows.dump_rows())

    def _routed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        target = self.route.schema(self.schema)
        kept = self.route.kept(self.schema)
        columns = [self._value(c.name, batch.column(c.name)) for c in kept]
        fields = list(target.arrow)
        for field in list(batch.schema)[len(self.schema.columns) :]:
            column = batch.column(field.name)
            if field.name == "_unchanged":
                column = self._renamed(column)
            if field.name == RAW:
                column = mapped(column, lambda texts: renamed(texts, self.route.shown(self.schema)))
            if field.name == BEFORE:
                old = [self._value(c.name, column.field(c.name)) for c in kept]
                column = pa.StructArray.from_arrays(old, fields=list(target.arrow), mask=pc.is_null(column))
                field = pa.field(BEFORE, column.type)
            columns.append(column)
            fields.append(field)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _value(self, name: str, column: pa.Array) -> pa.Array:
        match self.route.mask.get(name):
            case "redact":
                return pc.if_else(pc.is_valid(column), pa.scalar(REDACTED), pa.scalar(None, pa.string()))
            case "null":
                return pa.nulls(len(column), column.type)
        return column

    def _renamed(self, unchanged: pa.ListArray) -> pa.ListArray:
        """`_unchanged` with the target's names, without columns that the target does not get."""
        if unchanged.null_count == len(unchanged):
            return unchanged
        names = {c.name: self.route.rename.get(c.name, c.name) for c in self.route.kept(self.schema)}
        lists = [[names[n] for n in found or () if n in names] or None for found in unchanged.to_pylist()]
        return pa.array(lists, unchanged.type)


def routed(table: TableBatch, routes: Sequence[Route]) -> TableBatch:
    """The table after the first route that matches it; unchanged if none does."""
    route = next((r for r in routes if r.pattern.matches(table.source)), None)
    if route is None:
        return table
    route.check(table.schema)
    return table.mapped(
        route.schema(table.schema),
        lambda frame, changes: route.rows(frame, table.schema, changes=changes),
        _routed_rows(table.arrow, route, table.schema),
    )


def _routed_rows(rows: ArrowRows | None, route: Route, schema: TableSchema) -> ArrowRows | None:
    """The rows after a route; None if only Spark can follow it."""
    if rows is None or route.where is not None or "sha256" in route.mask.values():
        return None
    return RoutedRows(rows, route, schema)
