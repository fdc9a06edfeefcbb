"""Routes: changes of a table on its way to a sink. Its name, its columns and their names, masked values, a filter of
rows.

The target may have a row that `where` now excludes. So the create or update of an excluded row becomes a delete; a
target that never had the row ignores it. Deletes always pass, because the log may have only their key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from dblog.core.event import BEFORE, RAW, RESERVED, WHOLE
from dblog.core.names import Pattern
from dblog.core.raw_values import OLD
from dblog.core.schema import Column, TableName, TableSchema
from dblog.core.value_rules import ALL
from dblog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

MASKS = ("sha256", "redact", "null")
REDACTED = "***"


@dataclass(frozen=True)
class Route:
    """The changes to all tables that match a pattern."""

    pattern: Pattern
    target: str | None = None
    """The table's name in the target; `{schema}` and `{table}` are replaced by the source's names."""
    include: tuple[str, ...] | None = None
    """The columns to keep beside the key; None for all."""
    exclude: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    mask: Mapping[str, str] = field(default_factory=dict)
    """By column, one of `MASKS`."""
    where: str | None = None
    """A condition in Spark's SQL on the source's columns."""
    values: str | Mapping[str, str] | None = None
    """The rule for values that their column's type cannot hold, or rules by column (`core.value_rules`)."""
    key: tuple[str, ...] | None = None
    """The key that the user promises (`core.promised_keys`)."""

    def check(self, schema: TableSchema) -> None:
        """Raise ConfigError unless the route fits the table."""
        ruled = () if self.values is None or isinstance(self.values, str) else self.values
        named = {*(self.include or ()), *self.exclude, *self.rename, *self.mask, *(set(ruled) - {ALL})}
        if unknown := sorted(named - set(schema.names)):
            raise ConfigError(
                f"the route {self.pattern.text!r} names the columns {unknown}, which {schema.table} does not have",
                hint="its columns are " + ", ".join(schema.names),
            )
        if lost := sorted(set(self.exclude) & set(schema.key)):
            raise ConfigError(f"the key columns {lost} of {schema.table} are excluded", hint="the target needs the key")
        if hidden := sorted(n for n in schema.key if self.mask.get(n, "sha256") != "sha256"):
            raise ConfigError(
                f"the key columns {hidden} of {schema.table} cannot have this mask", hint="mask a key by sha256"
            )
        names = [c.name for c in self._columns(schema)]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise ConfigError(f"two columns of {schema.table} would have the name {twice}", hint="change rename")
        if taken := sorted({*RESERVED, WHOLE} & set(self.rename.values())):
            raise ConfigError(f"columns of {schema.table} cannot have the names {taken}", hint="dblog uses these names")

    def kept(self, schema: TableSchema) -> list[Column]:
        """The table's columns that the target gets."""
        wanted = set(schema.names) if self.include is None else {*self.include, *schema.key}
        return [c for c in schema.columns if c.name in wanted and c.name not in self.exclude]

    def shown(self, schema: TableSchema) -> dict[str, str]:
        """The columns whose raw values the target may get, and their names there: kept, and not masked."""
        return {c.name: self.rename.get(c.name, c.name) for c in self.kept(schema) if c.name not in self.mask}

    def _columns(self, schema: TableSchema) -> list[Column]:
        return [self._column(c) for c in self.kept(schema)]

    def _column(self, column: Column) -> Column:
        name = self.rename.get(column.name, column.name)
        if self.mask.get(column.name) in ("sha256", "redact"):
            return Column(name, "text", pa.string())
        return replace(column, name=name)

    def schema(self, schema: TableSchema) -> TableSchema:
        """The table's schema in the target."""
        key = tuple(self.rename.get(name, name) for name in schema.key)
        return TableSchema(self._name(schema.table), tuple(self._columns(schema)), key)

    def _name(self, table: TableName) -> TableName:
        if self.target is None:
            return table
        name = self.target.format(schema=table.schema, table=table.name)
        schema, dot, rest = name.partition(".")
        return TableName(schema, rest) if dot else TableName("", name)

    def rows(self, frame: DataFrame, schema: TableSchema, *, changes: bool) -> DataFrame:
        """The rows as the target receives them."""
        from pyspark.sql import functions as f

        if self.where is not None:
            frame = self._filtered(frame, schema, changes=changes)
        kept = self.kept(schema)
        columns = [self._value(c.name).alias(self.rename.get(c.name, c.name)) for c in kept]
        metadata = [_named(n) for n in frame.columns if n not in schema.names and n not in ("_unchanged", BEFORE, RAW)]
        names = f.create_map(*(f.lit(t) for c in kept for t in (c.name, self.rename.get(c.name, c.name))))
        unchanged = f.filter(f.transform("_unchanged", lambda name: names[name]), lambda name: name.isNotNull())
        metadata.append(f.when(f.size(unchanged) > 0, unchanged).alias("_unchanged"))
        if RAW in frame.columns:
            metadata.append(_raw(self.shown(schema)).alias(RAW))
        if BEFORE in frame.columns:
            old = f.struct(*(self._value(c.name, f.col(BEFORE)).alias(self.rename.get(c.name, c.name)) for c in kept))
            metadata.append(f.when(f.col(BEFORE).isNotNull(), old).alias(BEFORE))
        return frame.select(*columns, *metadata)

    def _value(self, name: str, of: Expression | None = None) -> Expression:
        from pyspark.sql import functions as f

        value = _named(name) if of is None else of.getField(name)
        match self.mask.get(name):
            case "sha256":
                return f.sha2(value.cast("string"), 256)
            case "redact":
                return f.when(value.isNotNull(), f.lit(REDACTED))
            case "null":
                return f.when(f.lit(False), value)
        return value

    def _filtered(self, frame: DataFrame, schema: TableSchema, *, changes: bool) -> DataFrame:
        from pyspark.sql import functions as f

        assert self.where is not None
        asked = [n for n in schema.names if re.search(rf"(?<!\w){re.escape(n)}(?!\w)", self.where, re.IGNORECASE)]
        unknown = f.coalesce(f.arrays_overlap("_unchanged", f.array(*map(f.lit, asked))), f.lit(False))
        doubt = f.raise_error(
            f"dblog.errors.SinkError: the log does not have the columns that the filter of {schema.table} needs\n"
            "hint: set REPLICA IDENTITY FULL on the table, or filter by other columns"
        )
        holds = f.coalesce(f.expr(self.where), f.lit(False))
        kept = f.when(unknown, doubt.cast("boolean")).otherwise(holds) if asked else holds
        if not changes:
            return frame.where(kept)
        out = f.col("_op").isin("create", "update") & ~kept
        values = [
            _named(n) if n in schema.key else f.when(~f.col("_dblog_out"), _named(n)).alias(n) for n in schema.names
        ]
        metadata = [_named(n) for n in frame.columns if n not in schema.names and n not in ("_op", "_unchanged")]
        return frame.withColumn("_dblog_out", out).select(
            *values,
            f.when(f.col("_dblog_out"), f.lit("delete")).otherwise(f.col("_op")).alias("_op"),
            f.when(~f.col("_dblog_out"), f.col("_unchanged")).alias("_unchanged"),
            *metadata,
        )


def _raw(names: Mapping[str, str]) -> Expression:
    """`_raw_values` of the columns in `names`, under their new names."""
    from pyspark.sql import functions as f

    both = {**names, **{OLD + name: OLD + new for name, new in names.items()}}
    if not both:
        return f.lit(None).cast("string")
    given = f.from_json(f.col(RAW), "map<string,string>")
    kept = f.map_filter(given, lambda name, _: name.isin(*both))
    known = f.create_map(*(f.lit(text) for pair in both.items() for text in pair))
    found = f.transform_keys(kept, lambda name, _: known[name])
    return f.when(f.size(found) > 0, f.to_json(found))


def _named(name: str) -> Expression:
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")
