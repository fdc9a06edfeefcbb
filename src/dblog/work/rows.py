"""Output rows: change batches projected to what the DataFrame shows, typed for one table or enveloped for many.

A typed stream has the columns that its table had when the stream was loaded. Older log, from before a column was added
or changed, still fits: `_unchanged` names the columns that it lacks. Newer log does not fit, and stops the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dblog.core.event import BEFORE, CASCADE, DELIVERED_FIELDS, RAW, RESERVED, WHOLE, Op, op_names
from dblog.core.schema import TableSchema
from dblog.errors import ConfigError, SchemaChanged
from dblog.sources.base import Source
from dblog.work.cascade_text import cascade_text
from dblog.work.envelope import ENVELOPE, envelope
from dblog.work.tasks import Stride

LEAST_ROWS, MOST_ROWS, MOST_BYTES = 4_096, 32_768, 32 << 20
"""The size of Arrow batches for Spark, in rows and bytes. Spark spends 50 to 100 us per batch, whatever its size."""

METADATA = (pa.field("_op", pa.string()), *DELIVERED_FIELDS)

COMPUTED = "_dblog_"
"""Prefix of the names of columns that exist only while a batch is computed."""


def check_names(schema: TableSchema) -> None:
    """Raise ConfigError if Spark cannot distinguish a column from another one, or from one that we add: Spark ignores
    upper and lower case."""
    seen = {name.lower(): name for name in (*RESERVED, WHOLE)}
    for name in schema.names:
        if name.lower() in seen or name.lower().startswith(COMPUTED):
            other = seen.get(name.lower(), COMPUTED)
            raise ConfigError(
                f"Spark cannot distinguish column {name!r} of {schema.table} from {other!r}",
                hint=f"rename the column, or leave the table out: add !{schema.table} to the tables",
            )
        seen[name.lower()] = name


class Shape(Protocol):
    """The columns of a stream's rows."""

    @property
    def arrow(self) -> pa.Schema: ...

    def project(self, schema: TableSchema, changes: pa.RecordBatch, dump: str | None) -> pa.RecordBatch: ...


@dataclass(frozen=True)
class Enveloped:
    """One shape for all tables: the row as JSON."""

    @property
    def arrow(self) -> pa.Schema:
        return ENVELOPE

    def project(self, schema: TableSchema, changes: pa.RecordBatch, dump: str | None) -> pa.RecordBatch:
        return envelope(changes, schema, dump=dump)


@dataclass(frozen=True)
class Typed:
    """The columns of one table, then the metadata."""

    table: TableSchema
    before: bool
    cascades: bool = False
    """Whether cascade events of the table are rows, with the column `_cascade`."""

    @property
    def arrow(self) -> pa.Schema:
        fields = [*self.table.arrow, *METADATA]
        if self.before:
            fields.append(pa.field(BEFORE, pa.struct(list(self.table.arrow))))
        if self.cascades:
            fields.append(pa.field(CASCADE, pa.string()))
        return pa.schema(fields)

    def project(self, schema: TableSchema, changes: pa.RecordBatch, dump: str | None) -> pa.RecordBatch:
        size = changes.num_rows
        given = {name: changes.column(name) for name in changes.schema.names}
        event = self.cascades and bool(schema.cascade)
        said = cascade_text(schema, changes) if event else pa.nulls(size, pa.string())
        if event:
            given |= {f.name: pa.nulls(size, f.type) for f in self.table.arrow}
            given[BEFORE] = pa.nulls(size, pa.struct(list(self.table.arrow)))
        columns, missing = self._columns(given, size)
        metadata = {
            **given,
            "_op": op_names().take(given["_op"]),
            "_dump": pa.repeat(pa.scalar(dump, pa.string()), size),
            "_schema": pa.repeat(pa.scalar(schema.version), size),
            "_unchanged": _with_missing(given["_unchanged"], given["_op"], missing),
            RAW: given[RAW] if RAW in given else pa.nulls(size, pa.string()),
        }
        columns += [metadata[f.name] for f in METADATA]
        if self.before:
            old = given[BEFORE]
            fields, _ = self._columns({old.type.field(i).name: old.field(i) for i in range(old.type.num_fields)}, size)
            columns.append(pa.StructArray.from_arrays(fields, fields=list(self.table.arrow), mask=pc.is_null(old)))
        if self.cascades:
            columns.append(said)
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    def _columns(self, given: dict[str, pa.Array], size: int) -> tuple[list[pa.Array], list[str]]:
        """The table's columns, and the names of those that `given` does not have in the table's type."""
        columns, missing = [], []
        for field in self.table.arrow:
            column = given.get(field.name)
            if column is not None and column.type != field.type:
                column = _cast(column, field.type)
            if column is None:
                if field.name in self.table.key:
                    raise SchemaChanged(
                        f"older changes of table {self.table.table} lack the key column {field.name!r}",
                        hint="start with a new checkpoint and a new slot, which dumps the table again",
                    )
                missing.append(field.name)
                column = pa.nulls(size, field.type)
            columns.append(column)
        return columns, missing

    def check(self, versions: Collection[str], source: Source, accepted: set[str]) -> None:
        """Raise SchemaChanged if the log has another schema than ours and ours is not the table's schema any more.

        If ours is still the table's schema, the other one is older, and fits. `accepted` collects such older versions.
        """
        if set(versions) <= accepted | {self.table.version}:
            return
        now = source.tables().get(self.table.table)
        if now is not None and now.version == self.table.version:
            accepted |= set(versions)
            return
        what = ["the table does not exist"] if now is None else self.table.differences(now)
        raise SchemaChanged(
            f"table {self.table.table} no longer has the columns of this stream: {'; '.join(what)}",
            hint="restart the query: it uses the new columns and continues where it stopped; rows that do not change "
            "keep their old columns downstream until they are dumped again",
        )


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """The column as another type; None unless every value fits it exactly."""
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _with_missing(unchanged: pa.ListArray, op: pa.Array, missing: list[str]) -> pa.ListArray:
    """`_unchanged` with the missing columns added where a row should have them."""
    if not missing:
        return unchanged
    bare = pc.is_in(op, value_set=pa.array([Op.delete, Op.truncate], op.type)).to_pylist()
    lists = [old if skip else [*(old or ()), *missing] for old, skip in zip(unchanged.to_pylist(), bare, strict=True)]
    return pa.array(lists, unchanged.type)


def in_order(strides: Iterable[Stride], shape: Shape) -> Iterator[pa.RecordBatch]:
    """The log's changes as output rows, in commit order across tables. A cascade event has the order of its
    parent's change, and comes after it."""
    for stride in strides:
        parts = [shape.project(schema, changes, None) for schema, changes in stride]
        if len(parts) == 1:
            yield parts[0]
            continue
        rows = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        lsn, seq = rows.column("_lsn").to_numpy(), rows.column("_seq").to_numpy()
        effect = pc.equal(rows.column("_op" if "_op" in rows.schema.names else "op"), Op.cascade.name)
        yield rows.take(pa.array(np.lexsort((effect.to_numpy(zero_copy_only=False), seq, lsn))))


def regrouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a good size for Spark."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= LEAST_ROWS:
            yield from _sliced(held)
            held, rows = [], 0
    if held:
        yield from _sliced(held)


def _sliced(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches():
        batch.validate()  # Spark may be configured not to check the offsets of values
        step = max(1, min(MOST_ROWS, MOST_BYTES * batch.num_rows // max(batch.nbytes, 1)))
        for at in range(0, batch.num_rows, step):
            yield batch.slice(at, step)
