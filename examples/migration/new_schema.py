"""From the old tables to the new ones: each is a select from an old one, in Spark's SQL.

What the selects give is written by the sink `sql`: exactly once, all tables of a batch in one transaction, and never an
older state of a row over a newer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_type

from dblog.core.schema import Column, TableName, TableSchema
from dblog.core.settings import read_settings
from dblog.sinks.base import Batch, SinkContext, TableBatch, metadata_of
from dblog.sinks.sql import SqlSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Table:
    """A table of the new schema."""

    name: str
    key: str
    columns: tuple[str, ...]


NEW = {
    "clients": (  # becomes two tables
        Table(
            "customers",
            "id",
            (
                "cno as id",
                "split_part(name, ' ', 1) as first_name",
                "split_part(name, ' ', 2) as last_name",
                "vip = 'Y' as vip",
                "timestamp_seconds(since) as since",
            ),
        ),
        Table(
            "addresses",
            "customer_id",
            (
                "cno as customer_id",
                "concat(street, ' ', house) as line",
                "lpad(cast(zip as string), 5, '0') as postcode",
                "city",
            ),
        ),
    ),
    "purchases": (
        Table(
            "orders",
            "id",
            (
                "pno as id",
                "cno as customer_id",
                "cast(cents * 0.01bd as decimal(12, 2)) as total",
                "element_at(array('new', 'paid', 'sent'), state + 1) as state",
                "timestamp_seconds(bought) as ordered_at",
            ),
        ),
    ),
}
WHOLE = (
    "cast(assert_true(_unchanged is null, 'a change leaves columns out: set binlog_row_image = FULL') as array<string>)"
    " as _unchanged"
)
"""Columns are made from whole rows. MySQL and MariaDB log those, unless they are told not to."""


class NewSchema:
    """The new database."""

    def __init__(self, settings: dict[str, Any]) -> None:
        given = {"url": settings["url"], "schema": "public", "schema_changes": "fail"}
        self._tables = SqlSink(read_settings("new", given, SqlSink.settings), SinkContext("migration", Path()))

    def open(self, spark: Any) -> None:
        self._tables.open(spark)

    def close(self) -> None:
        self._tables.close()

    def write(self, batch: Batch) -> None:
        new = [migrated(old, table) for old in batch.tables for table in NEW[old.source.name]]
        self._tables.write(replace(batch, tables=tuple(new)))


def migrated(old: TableBatch, table: Table) -> TableBatch:
    """What a batch has for a table of the new schema."""
    changes, rows = (None if f is None else selected(f, old, table.columns) for f in (old.changes, old.rows))
    frame = changes if changes is not None else rows
    assert frame is not None
    fields = frame.schema.fields[: len(table.columns)]
    columns = tuple(
        Column(c.name, c.dataType.simpleString(), to_arrow_type(c.dataType, timezone="UTC")) for c in fields
    )
    schema = TableSchema(TableName("", table.name), columns, (table.key,))
    return replace(old, schema=schema, changes=changes, rows=rows)


def selected(frame: DataFrame, old: TableBatch, columns: Sequence[str]) -> DataFrame:
    """The new columns, and the metadata as it was."""
    metadata = [name for name in metadata_of(frame.columns, old.schema) if name != "_unchanged"]
    return frame.selectExpr(*columns, *metadata, WHOLE)
