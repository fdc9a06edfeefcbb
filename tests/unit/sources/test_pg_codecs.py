"""Which Arrow type and codec a PostgreSQL type gets."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from dblog.core.schema import TableName, TableSchema
from dblog.sources.postgres.codecs import pg_column
from dblog.sources.postgres.column_types import PgColumn, PgType, TypeOptions

NUMERIC = 1700


def numeric(precision: int, scale: int) -> PgType:
    return PgType(NUMERIC, (precision << 16 | (scale & 0x7FF)) + 4)


def column(kind: PgType, options: TypeOptions | None = None) -> PgColumn:
    return pg_column("v", kind.oid, "spelled", kind, options or TypeOptions())


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [
        (numeric(1, 0), pa.decimal128(1, 0)),
        (numeric(38, 38), pa.decimal128(38, 38)),
        (numeric(39, 2), pa.string()),
        (numeric(3, 5), pa.string()),
        (numeric(5, -2), pa.string()),
        (PgType(NUMERIC), pa.string()),
        (PgType(999999), pa.string()),
        (PgType(1007, element=PgType(23)), pa.list_(pa.int32())),
        (PgType(1231, element=numeric(4, 2)), pa.list_(pa.decimal128(4, 2))),
        (PgType(1, element=PgType(999999)), pa.list_(pa.string())),
    ],
)
def test_a_type_maps_to_the_arrow_type_that_holds_every_value(kind: PgType, arrow: pa.DataType) -> None:
    assert column(kind).arrow == arrow


def test_options_turn_numerics_and_arrays_into_strings() -> None:
    assert column(numeric(4, 2), TypeOptions(decimals="string")).arrow == pa.string()
    array = PgType(1231, element=numeric(4, 2))
    assert column(array, TypeOptions(decimals="string")).arrow == pa.list_(pa.string())
    assert column(array, TypeOptions(arrays="string")).arrow == pa.string()


def test_a_schema_of_such_columns_pickles_to_an_equal_one() -> None:
    kinds = [PgType(23), numeric(4, 2), PgType(1231, element=numeric(4, 2)), PgType(869, output="pg_catalog.inet_out")]
    schema = TableSchema(TableName("public", "t"), tuple(column(kind) for kind in kinds), ("v",))
    assert pickle.loads(pickle.dumps(schema)) == schema
