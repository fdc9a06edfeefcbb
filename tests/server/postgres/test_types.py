"""Every type: the value from the log is the value from a dump, and the one the database holds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import psycopg2.extensions
import psycopg2.extras
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dblog.core.event import UTC_MICROS, Op
from dblog.core.schema import TableName, TableSchema
from dblog.core.value_rules import ValueRules
from dblog.databases.postgres.connect import SESSION, identifier
from dblog.errors import PreconditionFailed, ValueRefused
from dblog.sources.postgres.catalog import read_tables, relation_schema
from dblog.sources.postgres.column_types import TypeOptions
from dblog.sources.postgres.copy import decode_rows, select_list
from dblog.sources.postgres.pgoutput import Decoder, Relation
from tests.conftest import Database

pytestmark = pytest.mark.server

WATERMARK = TableName("dblog", "watermark")
MICRO = timedelta(microseconds=1)


@dataclass
class Source:
    """A database with a slot, read the way the project reads it."""

    connection: psycopg2.extensions.connection
    options: TypeOptions = field(default_factory=TypeOptions)
    relations: list[Relation] = field(default_factory=list)

    def execute(self, sql: str, *values: Any) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or None)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()

    def log(self, *, before: bool = False) -> list[tuple[TableSchema, pa.RecordBatch]]:
        """The changes since the last call."""
        with self.connection.cursor() as cursor:
            cursor.execute(
                "select data from pg_logical_slot_get_binary_changes("
                "'types', null, null, 'proto_version', '1', 'publication_names', 'types')"
            )
            messages = [bytes(data) for (data,) in cursor.fetchall()]

            def resolve(relation: Relation) -> TableSchema:
                self.relations.append(relation)
                return relation_schema(cursor, relation, self.options)

            runs = Decoder(resolve, watermark=WATERMARK, before=before).feed(messages)
        return [change for run in runs for change in run.changes]

    def schema(self, table: str) -> TableSchema:
        with self.connection.cursor() as cursor:
            return read_tables(cursor, [TableName("public", table)], self.options)[TableName("public", table)]

    def dump(self, table: str) -> pa.RecordBatch:
        schema = self.schema(table)
        rows = Rows()
        order = ", ".join(map(identifier, schema.key))
        query = f"select {', '.join(select_list(schema))} from public.{identifier(table)} order by {order}"
        with self.connection.cursor() as cursor:
            cursor.copy_expert(f"copy ({query}) to stdout (format binary)", rows)
        return decode_rows(rows, schema)


class Rows(list[bytes]):
    write = list.append


@pytest.fixture
def source(database: Database) -> Iterator[Source]:
    options = " ".join(f"-c {name}={value}" for name, value in SESSION.items())
    connection = database.connect(options=options, client_encoding="UTF8")
    made = Source(connection)
    made.execute("create publication types for all tables")
    made.execute("select pg_create_logical_replication_slot('types', 'pgoutput')")
    yield made
    connection.close()


def plain(values: pa.Array) -> list[Any]:
    """Values that compare exactly: floats by their bits, dates by their storage."""
    if pa.types.is_list(values.type):
        items = plain(values.flatten())
        lengths = [None if v is None else v.as_py() for v in pa.compute.list_value_length(values)]
        found, at = [], 0
        for length in lengths:
            found.append(None if length is None else items[at : at + length])
            at += length or 0
        return found
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.int64()).to_pylist()
    if pa.types.is_date(values.type):
        return values.cast(pa.int32()).to_pylist()
    if pa.types.is_floating(values.type):
        kind = np.int32 if values.type == pa.float32() else np.int64
        bits = values.fill_null(0).to_numpy().view(kind).tolist()
        return [bit if valid else None for bit, valid in zip(bits, values.is_valid().to_pylist(), strict=True)]
    return values.to_pylist()


def columns(batch: pa.RecordBatch, schema: TableSchema) -> dict[str, list[Any]]:
    return {name: plain(batch.column(name)) for name in schema.names}


def micros(*parts: int) -> int:
    return (datetime(*parts, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // MICRO


def days(*parts: int) -> int:
    return (date(*parts) - date(1970, 1, 1)).days


def far(years: int, *parts: int) -> int:
    """The day `years` (a multiple of 400) before or after a date that Python can represent."""
    return days(*parts) + years // 400 * 146097


DAY = 86400 * 10**6


def floats(kind: Any, *values: float) -> list[int]:
    return np.array(values, kind).view(np.int32 if kind is np.float32 else np.int64).tolist()


FOREVER = 2**63 - 1
SAME = object()
"""The text that was written is the text that is read."""

STRING = pa.string()
LONG = "x" * 5000 + "é漢😀"
TYPES: list[tuple[str, pa.DataType, list[str], Any]] = [
    ("bool", pa.bool_(), ["true", "false"], [True, False]),
    ("smallint", pa.int16(), ["0", "-1", "32767", "-32768"], [0, -1, 32767, -32768]),
    ("integer", pa.int32(), ["0", "-10", "2147483647", "-2147483648"], [0, -10, 2**31 - 1, -(2**31)]),
    (
        "bigint",
        pa.int64(),
        ["0", "-1", "12345678", "123456789", "-1234567890123456", "12345678901234567", str(2**63 - 1), str(-(2**63))],
        [0, -1, 12345678, 123456789, -1234567890123456, 12345678901234567, 2**63 - 1, -(2**63)],
    ),
    ("oid", pa.int64(), ["0", "4294967295"], [0, 4294967295]),
    ("xid", pa.int64(), ["3", "4294967295"], [3, 4294967295]),
    ("cid", pa.int64(), ["0", "4294967295"], [0, 4294967295]),
    (
        "real",
        pa.float32(),
        ["0", "-0", "1.1", "1e-45", "3.4028235e38", "NaN", "Infinity", "-Infinity"],
        floats(np.float32, 0, -0.0, 1.1, 1e-45, 3.4028235e38, math.nan, math.inf, -math.inf),
    ),
    (
        "double precision",
        pa.float64(),
        ["0", "-0", "0.1", "5e-324", "1.7976931348623157e308", "123456789.123456789", "NaN", "Infinity", "-Infinity"],
        floats(
            np.float64, 0, -0.0, 0.1, 5e-324, 1.7976931348623157e308, 123456789.123456789, math.nan, math.inf, -math.inf
        ),
    ),
    (
        "numeric(18,4)",
        pa.decimal128(18, 4),
        ["0", "-0.0001", "1.5", "99999999999999.9999", "-99999999999999.9999"],
        [Decimal(v) for v in ("0.0000", "-0.0001", "1.5000", "99999999999999.9999", "-99999999999999.9999")],
    ),
    ("numeric(5,5)", pa.decimal128(5, 5), ["0.00001", "-0.99999"], [Decimal("0.00001"), Decimal("-0.99999")]),
    ("numeric(18)", pa.decimal128(18, 0), ["-7", "9" * 18], [Decimal(-7), Decimal("9" * 18)]),
    ("numeric(18,18)", pa.decimal128(18, 18), ["-0." + "9" * 18, "0"], [Decimal("-0." + "9" * 18), Decimal("0E-18")]),
    (
        "numeric(38,10)",
        pa.decimal128(38, 10),
        ["-" + "9" * 28 + "." + "9" * 10, "0.0000000001"],
        [Decimal("-" + "9" * 28 + "." + "9" * 10), Decimal("1E-10")],
    ),
    ("numeric(39,2)", STRING, ["NaN", "-1.50"], SAME),
    ("numeric", STRING, ["NaN", "Infinity", "-Infinity", "1.500", "-0.00", "1e-20", "1e200"], None),
    (
        "date",
        pa.date32(),
        [
            "1970-01-01",
            "0001-01-01",
            "9999-12-31",
            "2024-02-29",
            "infinity",
            "-infinity",
            "4713-01-01 BC",
            "5874897-12-31",
            "0001-12-31 BC",
            "10000-01-01",
            "0044-03-15 BC",
        ],
        [
            0,
            days(1, 1, 1),
            days(9999, 12, 31),
            days(2024, 2, 29),
            2**31 - 1,
            -(2**31),
            far(-5200, 488, 1, 1),
            far(5874800, 97, 12, 31),
            days(1, 1, 1) - 1,
            far(2000, 8000, 1, 1),
            far(-400, 357, 3, 15),
        ],
    ),
    (
        "timestamp",
        pa.timestamp("us"),
        [
            "1970-01-01 00:00:00",
            "2024-02-29 23:59:59.999999",
            "1969-12-31 23:59:59.5",
            "0001-01-01 00:00:00",
            "infinity",
            "-infinity",
            "0044-03-15 12:00:00.000001 BC",
            "294246-12-31 23:59:59.999999",
            "10000-01-01 00:00:00.1",
        ],
        [
            0,
            micros(2024, 2, 29, 23, 59, 59, 999999),
            -500000,
            micros(1, 1, 1),
            FOREVER,
            -FOREVER - 1,
            far(-400, 357, 3, 15) * DAY + DAY // 2 + 1,
            far(294000, 247, 1, 1) * DAY - 1,
            far(2000, 8000, 1, 1) * DAY + 100000,
        ],
    ),
    (
        "timestamptz",
        UTC_MICROS,
        [
            "1970-01-01 00:00:00+00",
            "2024-06-30 12:00:00.12+05:30",
            "infinity",
            "-infinity",
            "0001-06-01 00:00:00+00 BC",
        ],
        [0, micros(2024, 6, 30, 6, 30, 0, 120000), FOREVER, -FOREVER - 1, far(-400, 400, 6, 1) * DAY],
    ),
    ("timestamp(0)", pa.timestamp("us"), ["2020-01-01 00:00:00"], [micros(2020, 1, 1)]),
    ("bytea", pa.binary(), ["\\x", "\\x00ff5c27", "\\x" + "ab" * 3000], [b"", b"\0\xff\\'", b"\xab" * 3000]),
    ("text", STRING, ["", "a", "twelve bytes", "thirteen byte", "é漢😀", "a\\b\"c'd\n\t", LONG], SAME),
    ("varchar(20)", STRING, ["", "trailing  "], SAME),
    ("char(6)", STRING, ["ab", ""], ["ab    ", "      "]),
    ("name", STRING, ["", "a name"], SAME),
    ('"char"', STRING, ["a", "", "é"], None),
    ("uuid", STRING, ["00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], SAME),
    ("json", STRING, ['{"b" : 1,  "a":[1.0, null]}', "null"], SAME),
    ("jsonb", STRING, ['{"b" : 1,  "a":[1.0, null], "é": "\\u0041"}', "null", "1e3"], None),
    ("time", STRING, ["00:00:00", "24:00:00", "23:59:59.999999"], SAME),
    ("timetz", STRING, ["12:00:00-07:52:58", "24:00:00+00"], SAME),
    (
        "interval",
        STRING,
        ["1 year 2 months -3 days 04:05:06.789", "0", "-1 mon"],
        ["P1Y2M-3DT4H5M6.789S", "PT0S", "P-1M"],
    ),
    ("inet", STRING, ["192.168.1.5", "192.168.1.5/24", "::1", "::ffff:1.2.3.4/96"], SAME),
    ("cidr", STRING, ["10.0.0.0/8", "192.168.1.5/32", "2001:db8::/32"], SAME),
    ("macaddr", STRING, ["08:00:2b:01:02:03"], SAME),
    ("macaddr8", STRING, ["08:00:2b:01:02:03:04:05"], SAME),
    ("bit(5)", STRING, ["10101"], SAME),
    ("varbit", STRING, ["", "1", "0101010101"], SAME),
    ("money", STRING, ["0", "-1234.56", "92233720368547758.07"], ["$0.00", "-$1,234.56", "$92,233,720,368,547,758.07"]),
    ("point", STRING, ["(1.1,-2)", "(NaN,Infinity)"], SAME),
    ("line", STRING, ["{1,2,3}"], SAME),
    ("lseg", STRING, ["[(1,1),(2,2)]"], SAME),
    ("box", STRING, ["(2,2),(1,1)"], SAME),
    ("path", STRING, ["[(1,1),(2,2)]", "((1,1),(2,2))"], SAME),
    ("polygon", STRING, ["((1,1),(2,2))"], SAME),
    ("circle", STRING, ["<(1,1),2>"], SAME),
    ("tsvector", STRING, ["'a':1 'it''s':2A"], SAME),
    ("tsquery", STRING, ["'a' & !'b':*"], SAME),
    ("pg_lsn", STRING, ["0/0", "16/B374D848"], SAME),
    ("txid_snapshot", STRING, ["10:20:10,14"], SAME),
    ("regclass", STRING, ["pg_class"], SAME),
    ("oidvector", STRING, ["1 2 3"], SAME),
    ("int4range", STRING, ["empty", "[1,5)", "(,)"], SAME),
    ("tstzrange", STRING, ['["2024-01-01 00:00:00+00",infinity)'], SAME),
    ("int4multirange", STRING, ["{}", "{[1,3),[5,7)}"], SAME),
    ("hstore", STRING, ['"a"=>"1", "b"=>NULL', ""], SAME),
    ("citext", STRING, ["MiXed"], SAME),
    ("ltree", STRING, ["Top.Science"], SAME),
    ("mood", STRING, ["happy", "so so"], SAME),
    ("pair", STRING, ['(1,"a ""b"", c")', "(,)"], ['(1,"a ""b"", c")', "(,)"]),
    ("positive", pa.int32(), ["5"], [5]),
    ("price", pa.decimal128(10, 2), ["1.5", "-2"], [Decimal("1.50"), Decimal("-2.00")]),
    ("pricier", pa.decimal128(10, 2), ["1.5"], [Decimal("1.50")]),
    ("email", STRING, ["A@b.c"], SAME),
    ("host", STRING, ["1.2.3.4"], SAME),
    ("int[]", pa.list_(pa.int32()), ["{}", "{1}", "{1,NULL,-3}"], [[], [1], [1, None, -3]]),
    ("bool[]", pa.list_(pa.bool_()), ["{t,f,NULL}"], [[True, False, None]]),
    (
        "text[]",
        pa.list_(STRING),
        [
            "{}",
            '{"",NULL,"NULL",null2}',
            '{"a,b","{c}","d\\"e","f\\\\","\\\\\\"",g h}',
            '{é,"漢 😀"}',
            "{" + LONG + "}",
        ],
        [[], ["", None, "NULL", "null2"], ["a,b", "{c}", 'd"e', "f\\", '\\"', "g h"], ["é", "漢 😀"], [LONG]],
    ),
    ("bytea[]", pa.list_(pa.binary()), ['{"\\\\x00ff","\\\\x",NULL}'], [[b"\0\xff", b"", None]]),
    ("numeric(6,2)[]", pa.list_(pa.decimal128(6, 2)), ["{1.5,-0.01}"], [[Decimal("1.50"), Decimal("-0.01")]]),
    ("numeric[]", pa.list_(STRING), ["{NaN,1.50}"], [["NaN", "1.50"]]),
    ("float8[]", pa.list_(pa.float64()), ["{NaN,0.1,-Infinity}"], [floats(np.float64, math.nan, 0.1, -math.inf)]),
    ("date[]", pa.list_(pa.date32()), ["{2020-01-01,infinity}"], [[days(2020, 1, 1), 2**31 - 1]]),
    (
        "timestamptz[]",
        pa.list_(UTC_MICROS),
        ['{"2020-01-01 00:00:00+00",NULL,infinity}'],
        [[micros(2020, 1, 1), None, FOREVER]],
    ),
    ("jsonb[]", pa.list_(STRING), ['{"{\\"a\\": [1, 2]}",null}'], [['{"a": [1, 2]}', None]]),
    ("inet[]", pa.list_(STRING), ["{1.2.3.4,10.0.0.0/8}"], [["1.2.3.4", "10.0.0.0/8"]]),
    ("box[]", pa.list_(STRING), ["{(2,2),(1,1);(4,4),(3,3)}"], [["(2,2),(1,1)", "(4,4),(3,3)"]]),
    ("pair[]", pa.list_(STRING), ['{"(1,\\"a b\\")","(,)"}'], [['(1,"a b")', "(,)"]]),
    ("mood[]", pa.list_(STRING), ['{happy,"so so"}'], [["happy", "so so"]]),
    ("price[]", pa.list_(pa.decimal128(10, 2)), ["{1.5}"], [[Decimal("1.50")]]),
    ("prices", pa.list_(pa.decimal128(10, 2)), ["{1.5,NULL}"], [[Decimal("1.50"), None]]),
]
XML = [
    "<a/>",
    '<?xml version="1.0" encoding="UTF-8"?><a>é</a>',
    '<?xml version="1.1" standalone="yes"?><a/>',
]

MADE_TYPES = """
create extension hstore schema public; create extension citext schema public; create extension ltree schema public;
create type public.mood as enum ('happy', 'so so');
create type public.pair as (number int, words text);
create domain public.positive as int check (value > 0);
create domain public.price as numeric(10,2);
create domain public.pricier as public.price check (value > 1);
create domain public.email as public.citext;
create domain public.host as inet;
create domain public.prices as numeric(10,2)[];
"""


def spelled(kind: str) -> str:
    """A type's name in SQL when nothing is on the search path."""
    bare = kind.removesuffix("[]")
    made = {"hstore", "citext", "ltree", "mood", "pair", "positive", "price", "pricier", "email", "host", "prices"}
    return f"public.{kind}" if bare in made else kind


def has_xml(source: Source) -> bool:
    try:
        source.execute("select '<a/>'::xml")
    except psycopg2.errors.FeatureNotSupported:
        return False
    return True


def test_every_type_has_the_same_value_in_the_log_and_in_a_dump(source: Source) -> None:
    source.execute(MADE_TYPES)
    cases = [*TYPES, *([("xml", STRING, XML, None)] if has_xml(source) else [])]
    for number, (kind, _, values, _) in enumerate(cases):
        source.execute(f"create table public.t{number} (id int primary key, v {spelled(kind)})")
        for row, value in enumerate(values):
            source.execute(f"insert into public.t{number} values (%s, %s::{spelled(kind)})", row, value)
        source.execute(f"insert into public.t{number} values (%s, null)", len(values))
    changes = {schema.table.name: (schema, batch) for schema, batch in source.log()}

    for number, (kind, arrow, values, expected) in enumerate(cases):
        schema, batch = changes[f"t{number}"]
        dump = source.dump(f"t{number}")
        assert schema == source.schema(f"t{number}"), kind
        assert schema.column("v").arrow == arrow, kind
        batch.validate(full=True)
        dump.validate(full=True)
        assert columns(batch, schema) == columns(dump, schema), kind
        found = plain(dump.column("v"))
        assert found.pop() is None, kind
        if expected is not None:
            assert found == (values if expected is SAME else expected), kind
        if arrow == STRING:  # format() prints what the type's output function prints
            printed = source.query(f"select format('%s', v) from public.t{number} where id < {len(values)} order by id")
            assert found == [text for (text,) in printed], kind


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


texts = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=40)
# PostgreSQL's range, in its own unit: microseconds since 2000.
moments = st.integers(-211813488000000000, 9222424352054775806)
COLUMNS: dict[str, tuple[str, str, st.SearchStrategy[Any]]] = {
    "i2": ("smallint", "%s", integers(16)),
    "i4": ("integer", "%s", integers(32)),
    "i8": ("bigint", "%s", integers(64)),
    "f4": ("real", "%s::float8::real", st.floats(width=32)),
    "f8": ("float8", "%s::float8", st.floats()),
    "d9": ("numeric(9,2)", "%s::numeric / 100", integers(29)),
    "d18": ("numeric(18,18)", "%s::numeric / 10::numeric ^ 18", st.integers(-(10**18) + 1, 10**18 - 1)),
    "d38": ("numeric(38,0)", "%s::numeric", st.integers(-(10**38) + 1, 10**38 - 1)),
    "dx": ("numeric", "%s::numeric / 1000000", integers(200)),
    "b": ("bool", "%s", st.booleans()),
    "t": ("text", "%s", texts),
    "y": ("bytea", "%s", st.binary(max_size=40)),
    "da": ("date", "date '2000-01-01' + %s::int", st.integers(-2451507, 2145031948)),
    "ts": ("timestamp", "pg_temp.moment(%s) at time zone 'UTC'", moments),
    "tz": ("timestamptz", "pg_temp.moment(%s)", moments),
    "iv": ("interval", "make_interval(secs => %s)", st.floats(-1e9, 1e9)),
    "js": ("jsonb", "to_jsonb(%s::text)", texts),
    "ta": ("text[]", "%s::text[]", st.lists(st.none() | texts, max_size=5)),
    "ia": ("bigint[]", "%s::bigint[]", st.lists(st.none() | integers(64), max_size=5)),
    "ya": ("bytea[]", "%s::bytea[]", st.lists(st.binary(max_size=20), max_size=3)),
    "za": (
        "timestamptz[]",
        "array(select pg_temp.moment(n) from unnest(%s::bigint[]) n)",
        st.lists(moments, max_size=3),
    ),
    "da2": ("numeric(12,3)[]", "%s::numeric(12,3)[]", st.lists(integers(29), max_size=4)),
}
MOMENT = """
create function pg_temp.moment(micros bigint) returns timestamptz language sql as $$
select timestamptz '2000-01-01' + make_interval(days => (micros / 86400000000)::int)
       + (micros % 86400000000) * interval '1 microsecond'
$$
"""
ROWS = st.lists(st.tuples(*(st.none() | values for _, _, values in COLUMNS.values())), min_size=1, max_size=30)


def test_random_rows_are_the_same_in_the_log_and_in_a_dump(source: Source) -> None:
    declared = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items())
    source.execute(f"create table public.t (id serial primary key, {declared})")
    source.execute(MOMENT)
    insert = f"insert into public.t ({', '.join(COLUMNS)}) values %s"
    template = "(" + ", ".join(expression for _, expression, _ in COLUMNS.values()) + ")"

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(ROWS)
    def check(rows: list[tuple[Any, ...]]) -> None:
        source.execute("truncate public.t")
        source.log()
        with source.connection.cursor() as cursor:
            psycopg2.extras.execute_values(cursor, insert, rows, template, page_size=1000)
        ((schema, batch),) = source.log()
        dump = source.dump("t")
        assert columns(batch, schema) == columns(dump, schema)
        for name in ("i2", "i4", "i8", "b", "t", "y", "ta", "ia", "ya"):
            place = list(COLUMNS).index(name)
            assert dump.column(name).to_pylist() == [row[place] for row in rows]
        for name, kind in (("f4", np.float32), ("f8", np.float64)):
            place = list(COLUMNS).index(name)
            expected = pa.array([row[place] for row in rows], pa.from_numpy_dtype(kind))
            assert plain(dump.column(name)) == plain(one_nan(expected))
        place = list(COLUMNS).index("tz")
        assert plain(dump.column("tz")) == [None if row[14] is None else row[14] + 946684800 * 10**6 for row in rows]

    check()


def one_nan(values: pa.Array) -> pa.Array:
    return pa.array([math.nan if v is not None and math.isnan(v) else v for v in values.to_pylist()], values.type)


@pytest.mark.parametrize(
    ("kind", "value", "way_out"),
    [
        ("numeric(10,2)", "NaN", TypeOptions(decimals="string")),
        ("numeric(30,2)", "NaN", TypeOptions(decimals="string")),
        ("numeric(10,2)[]", "{NaN}", TypeOptions(decimals="string")),
        ("int[]", "{{1,2},{3,4}}", TypeOptions(arrays="string")),
        ("int[]", "[2:3]={1,2}", TypeOptions(arrays="string")),
        ("text[]", '[0:0]={"{"}', TypeOptions(arrays="string")),
        ("timestamp", "294276-12-31 23:59:59", None),
        ("timestamptz", "294247-01-10 04:00:54.775807+00", None),
    ],
)
def test_a_value_that_arrow_cannot_hold_is_null_or_refused_by_both_with_the_way_out(
    source: Source, kind: str, value: str, way_out: TypeOptions | None
) -> None:
    source.execute(f"create table public.t (id int primary key, v {kind})")
    source.execute(f"insert into public.t values (1, %s::{kind})", value)
    for batch in (source.dump("t"), source.log()[0][1]):
        assert batch.column("v").to_pylist() == [None]
        assert json.loads(batch.column("_raw_values")[0].as_py()) == {"v": value}
    source.options = TypeOptions(values=ValueRules(default="stop"))
    source.execute("update public.t set id = id")
    for read in (lambda: source.dump("t"), source.log):
        with pytest.raises(ValueRefused, match=r"table public\.t: column 'v'") as caught:
            read()
        assert (caught.value.value, caught.value.key) == (value, {"id": "1"})
    source.options = way_out or TypeOptions(values=ValueRules(default="text"))
    source.execute("update public.t set id = id")
    ((schema, batch),) = source.log()
    assert plain(batch.column("v")) == plain(source.dump("t").column("v"))
    expected = ["NaN"] if kind == "numeric(10,2)[]" else value
    assert batch.column("v").to_pylist() == [expected]
    assert schema == source.schema("t")


def test_options_make_every_numeric_and_every_array_a_string(source: Source) -> None:
    source.options = TypeOptions(decimals="string", arrays="string")
    source.execute("create table public.t (id int primary key, d numeric(5,2), a int[], n numeric(5,2)[])")
    source.execute("insert into public.t values (1, 1.5, '{1,NULL}', '{2.5}')")
    ((schema, batch),) = source.log()
    assert [column.arrow for column in schema.columns] == [pa.int32(), STRING, STRING, STRING]
    expected = {"id": [1], "d": ["1.50"], "a": ["{1,NULL}"], "n": ["{2.50}"]}
    assert columns(batch, schema) == columns(source.dump("t"), schema) == expected


TABLES = {
    "plain": "(id int primary key, v varchar(10))",
    "key_in_another_order": "(a int, b text, c int, primary key (c, a))",
    "included": "(a int, b int, primary key (a) include (b))",
    "generated": "(id int primary key, twice int generated always as (id * 2) stored, v text)",
    "dropped": "(gone int, id int primary key, v text)",
    'Quoted "name"': '(id int primary key, "a ""b"", c" text)',
    "partitioned": "(id int primary key, v text) partition by range (id)",
    "full": "(a int, b text, c int, primary key (c, a))",
    "indexed": "(id int primary key, other int not null)",
}


@pytest.mark.parametrize("table", TABLES)
def test_the_catalog_and_the_log_describe_a_table_alike(source: Source, table: str) -> None:
    name = identifier(table)
    source.execute(f"create table public.{name} {TABLES[table]}")
    if table == "dropped":
        source.execute("alter table public.dropped drop column gone, add column late numeric(4,1)")
    if table == "partitioned":
        source.execute("create table public.leaf partition of public.partitioned for values from (0) to (10)")
        source.execute("alter publication types set (publish_via_partition_root = true)")
    if table == "full":
        source.execute("alter table public.full replica identity full")
    if table == "indexed":
        source.execute("create unique index i on public.indexed (other, id)")
        source.execute("alter table public.indexed replica identity using index i")
    source.log()
    first = "a" if "a int" in TABLES[table] else "id"
    second = {"key_in_another_order": "c", "full": "c", "indexed": "other"}.get(table)
    source.execute(
        f"insert into public.{name} ({', '.join(filter(None, [first, second]))}) values ({'1, 1' if second else 1})"
    )
    ((schema, batch),) = source.log()
    assert schema == source.schema(table)
    assert schema.version == source.schema(table).version
    assert columns(batch, schema) == columns(source.dump(table), schema)
    if table in ("key_in_another_order", "full"):
        assert schema.key == ("c", "a")
    if table == "generated":
        assert schema.names == ("id", "v")


def test_a_table_that_does_not_exist_is_absent_from_the_catalog(source: Source) -> None:
    source.execute("create table public.t (id int primary key); create view public.v as select 1")
    names = [TableName("public", name) for name in ("t", "v", "nothing")]
    with source.connection.cursor() as cursor:
        assert set(read_tables(cursor, names)) == {names[0]}
        assert read_tables(cursor, names[1:]) == {}
        assert read_tables(cursor, []) == {}


def test_a_type_that_has_been_dropped_since_is_read_as_text(source: Source) -> None:
    source.execute(
        "create type public.mood as enum ('happy'); create table public.t (id int primary key, v public.mood)"
    )
    source.execute("insert into public.t values (1, 'happy')")
    source.log()
    source.execute("drop type public.mood cascade")
    relation = source.relations[-1]
    with source.connection.cursor() as cursor:
        column = relation_schema(cursor, relation).column("v")
    assert (column.type, column.arrow) == ("unknown", STRING)


def test_a_table_that_only_takes_inserts_is_read_by_its_primary_key(source: Source) -> None:
    """Without a replica identity the server refuses every update and delete of a published table."""
    source.execute("create table public.t (id int primary key, other int)")
    source.execute("alter table public.t replica identity nothing")
    source.execute("insert into public.t values (1, 2)")
    source.log()
    with source.connection.cursor() as cursor:
        assert relation_schema(cursor, source.relations[-1]).key == ("id",)


def test_a_replica_identity_without_the_key_is_refused(source: Source) -> None:
    source.execute("create table public.t (id int primary key, other int not null unique)")
    source.execute("create unique index i on public.t (other)")
    source.execute("alter table public.t replica identity using index i")
    source.execute("insert into public.t values (1, 2)")
    with pytest.raises(PreconditionFailed, match="lacks the key") as refused:
        source.log()
    assert "alter table public.t replica identity" in str(refused.value.hint)


def test_a_table_without_a_primary_key_is_refused_even_with_identity_full(source: Source) -> None:
    source.execute("create table public.t (id int); alter table public.t replica identity full")
    source.execute("insert into public.t values (1)")
    with pytest.raises(PreconditionFailed, match=r"table public\.t has no key"):
        source.log()


BIG = "string_agg(md5(n::text), '')"


@pytest.mark.parametrize("identity", ["default", "full"])
def test_a_large_value_that_an_update_does_not_touch_is_named_or_found(source: Source, identity: str) -> None:
    source.execute("create table public.t (id int primary key, n int, big text)")
    source.execute("alter table public.t alter big set storage external")
    source.execute(f"alter table public.t replica identity {identity}")
    source.execute(f"insert into public.t select 1, 1, {BIG} from generate_series(1, 500) n")
    source.log()
    source.execute("update public.t set n = 2")
    ((_, batch),) = source.log()
    (value,) = batch.column("big").to_pylist()
    if identity == "full":
        assert batch.column("_unchanged").to_pylist() == [None]
        assert value == source.dump("t").column("big")[0].as_py()
    else:
        assert batch.column("_unchanged").to_pylist() == [["big"]]
        assert value is None


def test_a_large_key_that_an_update_does_not_touch_is_found(source: Source) -> None:
    source.execute("create table public.t (id text primary key, n int)")
    source.execute("alter table public.t alter id set storage external")
    source.execute("insert into public.t values (repeat('a', 2500), 1)")
    source.log()
    source.execute("update public.t set n = 2")
    ((_, batch),) = source.log()
    assert batch.column("_op").to_pylist() == [Op.update]
    assert batch.column("id").to_pylist() == ["a" * 2500]


@pytest.mark.parametrize("identity", ["default", "full"])
def test_a_change_of_the_key_is_a_delete_and_a_create(source: Source, identity: str) -> None:
    source.execute("create table public.t (id int primary key, v text)")
    source.execute(f"alter table public.t replica identity {identity}")
    source.execute("insert into public.t values (1, 'a')")
    source.log()
    source.execute("update public.t set id = 2, v = 'b'; update public.t set v = 'c'; delete from public.t")
    ((_, batch),) = source.log(before=True)
    whole = identity == "full"
    assert batch.column("_op").to_pylist() == [Op.delete, Op.create, Op.update, Op.delete]
    assert batch.column("_seq").to_pylist() == [0, 1, 2, 4]
    assert batch.column("id").to_pylist() == [1, 2, 2, 2]
    assert batch.column("v").to_pylist() == ["a" if whole else None, "b", "c", "c" if whole else None]
    assert batch.column("_before").to_pylist() == [
        {"id": 1, "v": "a" if whole else None},
        None,
        {"id": 2, "v": "b"} if whole else None,
        {"id": 2, "v": "c" if whole else None},
    ]


def test_a_truncate_of_several_tables_is_an_event_of_each(source: Source) -> None:
    source.execute("create table public.a (id int primary key); create table public.b (id int primary key, v text)")
    source.execute("insert into public.a values (1); truncate public.a, public.b; insert into public.b values (2, 'x')")
    changes = {schema.table.name: batch for schema, batch in source.log()}
    assert changes["a"].column("_op").to_pylist() == [Op.create, Op.truncate]
    assert changes["b"].column("_op").to_pylist() == [Op.truncate, Op.create]
    assert changes["b"].column("id").to_pylist() == [None, 2]
    places = sorted(changes["a"].column("_seq").to_pylist() + changes["b"].column("_seq").to_pylist())
    assert places == [0, 2, 4, 6]


def test_the_metadata_of_a_change_is_that_of_its_transaction(source: Source) -> None:
    source.execute("create table public.t (id int primary key)")
    source.connection.autocommit = False
    source.execute("insert into public.t values (1), (2)")
    ((xid,),) = source.query("select pg_current_xact_id()::text::bigint")
    source.connection.commit()
    source.connection.autocommit = True
    ((committed,),) = source.query("select clock_timestamp()")
    ((_, batch),) = source.log()
    assert set(batch.column("_txid").to_pylist()) == {xid}
    assert abs(batch.column("_committed_at")[0].as_py() - committed) < timedelta(seconds=30)


def test_every_not_a_number_is_the_same_one(source: Source) -> None:
    source.execute("create table public.t (id int primary key, f float4, d float8)")
    infinity = "'Infinity'::float8"
    source.execute(f"insert into public.t select 1, ({infinity} - {infinity})::float4, {infinity} - {infinity}")
    ((schema, batch),) = source.log()
    dump = source.dump("t")
    assert columns(batch, schema) == columns(dump, schema)
    assert plain(dump.column("d")) == floats(np.float64, math.nan)


def test_an_empty_table_dumps_to_an_empty_batch(source: Source) -> None:
    source.execute("create table public.t (id int primary key, v text, a int[], d numeric(5,2))")
    dump = source.dump("t")
    assert dump.num_rows == 0
    assert dump.schema == source.schema("t").arrow
