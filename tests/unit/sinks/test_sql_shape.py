"""Which types hold which, and what is to be changed about a table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import SinkError
from dblog.sinks.sql.mysql import MySQLTarget
from dblog.sinks.sql.postgres import PostgresTarget
from dblog.sinks.sql.shape import Changes, compare, holds, of_mysql

GROWS = [
    ("integer", "bigint"), ("smallint", "integer"), ("tinyint", "int"), ("int", "bigint"),
    ("tinyint unsigned", "smallint"), ("int unsigned", "bigint"), ("int", "decimal(10,0)"), ("bigint", "numeric(19,0)"),
    ("integer", "double precision"), ("real", "double precision"), ("float", "double"), ("mediumint", "int"),
    ("numeric(10,2)", "numeric(12,2)"), ("numeric(10,2)", "numeric(12,4)"), ("numeric(10,2)", "numeric"),
    ("decimal(20,0)", "decimal(30,0)"), ("bigint", "numeric"), ("varchar(10)", "varchar(20)"),
    ("char(5)", "varchar(5)"),
    ("character varying(10)", "character varying(11)"), ("character varying(10)", "character varying"),
    ("character varying(10)", "text"), ("varchar(100)", "longtext"), ("integer", "text"), ("date", "datetime(6)"),
    ("date", "timestamp without time zone"), ("datetime", "datetime(6)"), ("timestamp(3)", "timestamp(6)"),
    ("tinyblob", "blob"), ("blob", "longblob"), ("varbinary(20)", "blob"), ("binary(4)", "varbinary(4)"),
    ("enum('a','b')", "enum('a','b','c')"), ("uuid", "text"), ("year", "smallint"), ("jsonb", "text"),
]  # fmt: skip


@pytest.mark.parametrize(("small", "large"), GROWS)
def test_a_type_that_grows_holds_what_it_held(small: str, large: str) -> None:
    assert holds(large, small)
    assert holds(small, small)
    assert not holds(small, large)


APART = [
    ("integer", "date"), ("int", "int unsigned"), ("numeric(10,2)", "integer"),
    ("longblob", "longtext"), ("bigint", "double"), ("numeric(10,4)", "numeric(10,2)"),
    ("uuid", "integer"), ("integer", "decimal(9,0)"), ("bigint", "decimal(20,2)"), ("boolean", "integer"),
    ("varbinary(300)", "tinyblob"), ("enum('a','b')", "enum('b','a')"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), APART)
def test_types_that_do_not_hold_each_other(one: str, other: str) -> None:
    assert not holds(one, other)
    assert not holds(other, one)


SCHEMA = TableSchema(
    TableName("s", "t"),
    (Column("id", "integer", pa.int32()), Column("n", "bigint", pa.int64()), Column("d", "date", pa.date32())),
    ("id",),
)
WANTED = {"id": "integer", "n": "bigint", "d": "date"}


def changes(mode: str, made: dict[str, str], names: list[str]) -> Changes:
    return compare(SCHEMA, WANTED, made, names, mode, "text")


def test_columns_are_added_and_widened() -> None:
    made = {"id": "integer", "n": "integer"}
    assert changes("evolve", made, ["id", "n"]) == Changes(add={"d": "date"}, alter={"n": "bigint"})
    assert changes("ignore", made, ["id", "n"]) == Changes(left_out={"n", "d"})
    with pytest.raises(SinkError, match=r"'d' \(date\) is missing; column 'n' is integer"):
        changes("fail", made, ["id", "n"])


def test_a_type_that_became_another_becomes_text_and_a_smaller_one_stays() -> None:
    assert changes("evolve", {"n": "numeric", "d": "uuid"}, ["id", "n", "d"]) == Changes(alter={"d": "text"})


@pytest.mark.parametrize("mode", ["evolve", "ignore", "fail"])
def test_what_fits_stays_and_what_others_made_is_not_judged(mode: str) -> None:
    assert changes(mode, WANTED, [*WANTED, "more"]) == Changes()
    assert changes(mode, {}, ["id", "n", "d"]) == Changes()


def test_a_key_cannot_be_left_out() -> None:
    with pytest.raises(SinkError, match=r"lacks the key columns \['id'\]"):
        changes("ignore", {"id": "smallint"}, ["id", "n", "d"])


# -- the types of new tables -----------------------------------------------------------------------------------------

POSTGRES = PostgresTarget("postgresql://u@h/d")
MYSQL = MySQLTarget("mysql://u@h/d")


def schema(*types: tuple[str, pa.DataType], key: int = 1) -> TableSchema:
    columns = tuple(Column(f"c{n}", name, arrow) for n, (name, arrow) in enumerate(types))
    return TableSchema(TableName("s", "t"), columns, tuple(c.name for c in columns[:key]))


FROM_POSTGRES = schema(
    ("text", pa.string()), ("integer", pa.int32()), ("numeric(10,2)", pa.decimal128(10, 2)), ("numeric", pa.string()),
    ("timestamp with time zone", pa.timestamp("us", tz="UTC")), ("public.mood", pa.string()),
    ("integer[]", pa.list_(pa.int32())), ("uuid", pa.string()), ("character varying(20)", pa.string()),
    ("bytea", pa.binary()), ("public.price", pa.decimal128(10, 2)),
    ("regclass", pa.string()), ("boolean", pa.bool_()), ("jsonb", pa.string()), ("bit(3)", pa.string()),
    ("numeric(38,35)", pa.decimal128(38, 35)),
)  # fmt: skip
FROM_MYSQL = schema(
    ("varchar(20)", pa.string()), ("int unsigned", pa.int64()), ("bigint unsigned", pa.decimal128(20)),
    ("timestamp(3)", pa.timestamp("us", tz="UTC")), ("enum('a','it''s')", pa.string()), ("json", pa.string()),
    ("bit(9)", pa.int64()), ("longblob /*M!100301 COMPRESSED*/", pa.binary()), ("point", pa.binary()),
    ("text", pa.string()),
    ("year", pa.int16()), ("time(3)", pa.string()), ("uuid", pa.string()), ("decimal(65,30)", pa.string()),
)  # fmt: skip


def test_the_family_is_known_by_its_words() -> None:
    assert of_mysql(FROM_MYSQL)
    assert not of_mysql(FROM_POSTGRES)


def test_types_of_the_same_family_are_the_sources_own_where_the_target_has_them() -> None:
    assert list(POSTGRES.types(FROM_POSTGRES).values()) == [
        "text", "integer", "numeric(10,2)", "numeric", "timestamp with time zone", "text", "integer[]", "uuid",
        "character varying(20)", "bytea", "numeric(10,2)", "text", "boolean", "jsonb", "bit(3)", "numeric(38,35)",
    ]  # fmt: skip
    assert list(MYSQL.types(FROM_MYSQL).values()) == [
        "varchar(20)", "int unsigned", "bigint unsigned", "timestamp(3)", "enum('a','it''s')", "longtext", "bit(9)",
        "longblob", "longblob", "longtext", "year", "time(3)", "char(36)", "decimal(65,30)",
    ]  # fmt: skip


def test_types_of_another_family_are_those_that_hold_the_same_values() -> None:
    assert list(POSTGRES.types(FROM_MYSQL).values()) == [
        "text", "bigint", "numeric(20,0)", "timestamp with time zone", "text", "json", "bigint", "bytea", "bytea",
        "text", "smallint", "text", "uuid", "text",
    ]  # fmt: skip
    assert list(MYSQL.types(FROM_POSTGRES).values()) == [
        "varchar(758)", "int", "decimal(10,2)", "longtext", "datetime(6)", "longtext", "longtext", "char(36)",
        "varchar(20)", "longblob", "decimal(10,2)", "longtext", "tinyint(1)", "longtext", "longtext", "varchar(42)",
    ]  # fmt: skip


def test_texts_in_a_key_share_what_the_server_has_for_it() -> None:
    found = MYSQL.types(schema(("text", pa.string()), ("bytea", pa.binary()), ("integer", pa.int32()), key=3))
    assert found == {"c0": "varchar(369)", "c1": "varbinary(1476)", "c2": "int"}


def test_rows_that_would_be_too_wide_are_stored_apart() -> None:
    found = MYSQL.types(
        schema(("varchar(100)", pa.string()), ("varchar(16000)", pa.string()), ("char(5)", pa.string()))
    )
    assert found == {"c0": "varchar(100)", "c1": "longtext", "c2": "char(5)"}
