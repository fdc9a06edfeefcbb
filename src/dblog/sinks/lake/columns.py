"""The columns of a table in the lake, and how they are fitted to the source's.

A column fits if the target's type can hold every value of the source's type exactly. A column that does not fit is
altered (`evolve`), left out (`ignore`) or ends the pipeline (`fail`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from dblog.errors import ConfigError, SinkError, TargetRefused
from dblog.sinks.base import TableBatch

LOG_COLUMNS = {
    "_op": "string",
    "_lsn": "bigint",
    "_seq": "int",
    "_txid": "bigint",
    "_committed_at": "timestamp",
    "_dump": "string",
    "_schema": "string",
    "_unchanged": "array<string>",
}
CURRENT_COLUMNS = {"_lsn": "bigint", "_seq": "int"}
HISTORY_COLUMNS = {"_lsn": "bigint", "_seq": "int", "valid_from": "timestamp", "valid_to": "timestamp"}
OURS: dict[str, dict[str, str]] = {"current": CURRENT_COLUMNS, "history": HISTORY_COLUMNS, "log": LOG_COLUMNS}
"""The target's columns beside the table's own, by mode."""

_WHOLE: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
"""The decimal digits of integer types, the narrowest first."""


def quoted(name: str) -> str:
    """A name for Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def columns_of(schema: StructType) -> dict[str, DataType]:
    return {field.name: field.dataType for field in schema}


def fits(kind: DataType, target: DataType) -> bool:
    """Whether the target's type can hold every value of a type exactly."""
    if kind == target:
        return True
    if isinstance(kind, ArrayType) and isinstance(target, ArrayType):
        return fits(kind.elementType, target.elementType)
    digits = _WHOLE.get(type(kind))
    if digits is not None:
        if isinstance(target, DecimalType):
            return target.precision - target.scale >= digits
        if isinstance(target, DoubleType):
            return digits <= 10
        return digits <= _WHOLE.get(type(target), 0)
    if isinstance(kind, DecimalType) and isinstance(target, DecimalType):
        return target.scale >= kind.scale and target.precision - target.scale >= kind.precision - kind.scale
    pairs = [(FloatType, DoubleType), (DateType, TimestampNTZType)]
    return any(isinstance(kind, a) and isinstance(target, b) for a, b in pairs)


def check_names(table: str, names: Sequence[str], ours: Sequence[str]) -> None:
    """Raise ConfigError if a name equals another one, or one of ours, without regard to case."""
    taken = {name.lower() for name in ours}
    for name in names:
        if name.lower() in taken:
            raise ConfigError(
                f"{table} cannot have the column {name!r} in the lake: there is one of that name, in whatever case",
                hint="rename it for this table, or exclude it",
            )
        taken.add(name.lower())


class Fit:
    """The changes after which rows fit a table."""

    def __init__(self, name: str, source: Mapping[str, DataType], target: Mapping[str, DataType], mode: str) -> None:
        names = {column.lower(): column for column in target}
        self.new = {c: kind for c, kind in source.items() if c.lower() not in names}
        self.wider: dict[str, DataType] = {}
        """Columns of the target that get another type."""
        self.left_out: set[str] = set()
        wrong = {
            c: kind for c, kind in source.items() if c not in self.new and not fits(kind, target[names[c.lower()]])
        }
        if mode == "fail" and (self.new or wrong):
            raise TargetRefused(
                f"the source of {name} has columns that it does not have: "
                + ", ".join(f"{c!r} ({kind.simpleString()})" for c, kind in {**self.new, **wrong}.items()),
                hint="set schema_changes = evolve, which adds them",
            )
        if mode == "ignore":
            self.left_out, self.new = {*self.new, *wrong}, {}
            return
        for column, kind in wrong.items():
            old = target[names[column.lower()]]
            if not fits(old, kind):
                raise TargetRefused(
                    f"the column {column!r} of {name} is {old.simpleString()}, and cannot become {kind.simpleString()}",
                    hint="set schema_changes = ignore to leave the column as it is, or write to a new table",
                )
            self.wider[column] = kind


class Definition(Protocol):
    """A table whose columns can be changed."""

    @property
    def name(self) -> str: ...

    @property
    def columns(self) -> Mapping[str, DataType] | None:
        """None if the table does not exist."""

    def create(self, columns: Mapping[str, DataType]) -> None: ...

    def change(self, fit: Fit) -> None: ...


def fit_table(definition: Definition, table: TableBatch, mode: str, changes: str) -> tuple[Fit, dict[str, DataType]]:
    """Create or change a table of the lake so that a batch's rows fit, as far as the settings `mode` and
    `schema_changes` allow. Returns the fit and the table's columns."""
    source = columns_of(from_arrow_schema(table.schema.arrow, prefer_timestamp_ntz=True))
    ours = OURS[mode]
    if definition.columns is None:
        check_names(str(table.source), list(source), list(ours))
        definition.create({**source, **{name: spark_type(kind) for name, kind in ours.items()}})
    found = definition.columns
    assert found is not None
    if missing := sorted(set(ours) - set(found)):
        raise SinkError(
            f"the table {definition.name} is not of the mode {mode!r}: it has no columns {missing}",
            hint="write to another folder or catalog, or set the mode with which the table was made",
        )
    try:
        fit = Fit(definition.name, source, found, changes)
    except TargetRefused as error:
        raise TargetRefused(error.message, table=table.source, hint=error.hint) from error
    if lost := sorted(fit.left_out & set(table.schema.key)):
        raise TargetRefused(
            f"the key columns {lost} of {table.source} do not fit the table {definition.name}",
            table=table.source,
            hint="set schema_changes = evolve, or write to a new table",
        )
    if fit.new or fit.wider:
        check_names(str(table.source), list(source), list(ours))
        definition.change(fit)
        found = definition.columns
        assert found is not None
    return fit, dict(found)


def spark_type(name: str) -> DataType:
    return _TYPES[name]


_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()),
}
