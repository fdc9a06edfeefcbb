"""Every type on real servers: the value from the log is the value from a dump, and the one that the server prints."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dblog.core.event import UTC_MICROS, Op
from dblog.core.schema import TableName, TableSchema
from dblog.core.value_rules import ValueRules
from dblog.databases.mysql import connect
from dblog.databases.mysql.flavor import MARIADB
from dblog.errors import DecodeError, ValueRefused
from dblog.sources.columns import Raw
from dblog.sources.mysql.catalog import read_types
from dblog.sources.mysql.charsets import CHARSETS, charset
from dblog.sources.mysql.codecs import my_column, table_schema
from dblog.sources.mysql.column_types import MyColumn, MyType, TypeOptions
from dblog.sources.mysql.layout import Layout
from dblog.sources.mysql.results import decode_rows
from dblog.sources.mysql.rows import find_changes, table_batch
from dblog.sources.mysql.tablemap import TableMap
from dblog.testing.mysql_server import MySQLServer
from tests.conftest import EVERY_MYSQL_SERVER, MySQLDatabase, started

pytestmark = pytest.mark.server

TABLE_MAP, ROWS = 19, (23, 24, 25, 30, 31, 32, 39)
BINLOG_DUMP, PREPARE, EXECUTE = 0x12, 0x16, 0x17


class Server:
    """A database of a test's own, read the way the project reads it."""

    def __init__(self, database: MySQLDatabase) -> None:
        self.database = database
        self.flavor = database.flavor
        self.connection = database.connect()
        self.query("set time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'")

    def query(self, sql: str, *, plain: bool = False) -> list[tuple[Any, ...]]:
        """`plain`: every value as the bytes or text that the server sent."""
        with self.connection.cursor() as cursor:
            before = self.connection.decoders
            if plain:
                self.connection.decoders = {}
            cursor.execute(sql)
            self.connection.decoders = before
            return list(cursor.fetchall())

    def place(self) -> tuple[str, int]:
        return self.query(connect.server(self.connection).log_status)[0][:2]

    def events(self, place: tuple[str, int]) -> list[tuple[int, bytes]]:
        """The log from a place on: the events' types and bodies."""
        reader = self.database.connect()
        with reader.cursor() as cursor:
            cursor.execute("set @master_binlog_checksum = @@global.binlog_checksum, @mariadb_slave_capability = 4")
        file, position = place
        command(reader, BINLOG_DUMP, struct.pack("<IHI", position, 1, 4711) + file.encode())
        found = []
        while not (packet := bytes(reader._read_packet()._data)).startswith(b"\xfe"):
            found.append((packet[5], packet[20:-4]))
        reader.close()
        return found

    def catalog(self, table: str) -> dict[str, MyType]:
        name = TableName(self.database.name, table)
        return read_types(self.connection, [name], self.flavor)[name]

    def log(
        self, place: tuple[str, int], table: str, options: TypeOptions | None = None, *, before: bool = False
    ) -> tuple[TableSchema, pa.RecordBatch]:
        """The changes of a table since a place in the log."""
        name = TableName(self.database.name, table)
        maps: dict[bytes, tuple[TableMap, list[int], list[bytes]]] = {}
        for kind, body in self.events(place):
            if kind == TABLE_MAP and (mapped := TableMap.parse(body, self.flavor)).table == name:
                maps.setdefault(body[:6], (mapped, [], []))
            elif kind in ROWS and body[:6] in maps:
                maps[body[:6]][1].append(kind)
                maps[body[:6]][2].append(body)
        [(mapped, kinds, bodies)] = maps.values()
        schema = table_schema(mapped, self.flavor, options, self.catalog(table))
        raw, start, size = Raw.join(bodies)
        changes = find_changes(Layout.of(mapped, schema), raw, start, start + size, np.array(kinds, np.uint8))
        number = np.arange(len(bodies), dtype=np.int64)
        preceding = np.cumsum(changes.counts) - changes.counts
        batch, _ = table_batch(changes, number, preceding, number, number, before=before)
        batch.validate(full=True)
        return schema, batch

    def dump(self, schema: TableSchema) -> pa.RecordBatch:
        """The table over the binary protocol."""
        names = ", ".join(f"`{name}`" for name in schema.names)
        sql = f"select {names} from `{schema.table.name}` order by {', '.join(schema.key)}"
        command(self.connection, PREPARE, sql.encode())
        statement, columns, _ = struct.unpack_from("<IHH", self.connection._read_packet()._data, 1)
        for _ in range(columns + 1):
            self.connection._read_packet()
        command(self.connection, EXECUTE, struct.pack("<IBI", statement, 0, 1))
        for _ in range(1 + columns + 1):
            self.connection._read_packet()
        rows = []
        while not (packet := bytes(self.connection._read_packet()._data)).startswith(b"\xfe"):
            rows.append(packet)
        batch = decode_rows(rows, schema)
        batch.validate(full=True)
        return batch


def command(connection: Any, code: int, body: bytes) -> None:
    connection._write_bytes(struct.pack("<I", len(body) + 1)[:3] + bytes([0, code]) + body)
    connection._next_seq_id = 1


@pytest.fixture(params=EVERY_MYSQL_SERVER)
def mysql_server(request: pytest.FixtureRequest, mysql_servers: dict[str, MySQLServer]) -> MySQLServer:
    return started(mysql_servers, request.param)


@pytest.fixture
def server(mysql_database: MySQLDatabase) -> Server:
    return Server(mysql_database)


LONG = "x" * 5000 + "é漢😀"
NUMBERS = ["0", "1", "-1"]
ODD_TIMES = ["'00:00:00'", "'-00:00:01'", "'838:59:59'", "'-838:59:59'", "'23:59:59'", "'100:00:00'"]
NAIVE = pa.timestamp("us")
UUIDS = [
    "'123e4567-e89b-12d3-a456-426614174000'",
    "'018c2e65-473a-7f00-b5d4-ae2b3c4d5e6f'",
    "'00000000-0000-0000-0000-000000000000'",
    "'00000000-0000-8000-0000-000000000001'",
    "'00000000-0000-8000-6000-000000000001'",
    "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
]
ZERO = "'0000-00-00'"
TYPES: list[tuple[str, pa.DataType, list[str]]] = [
    ("tinyint", pa.int8(), [*NUMBERS, "127", "-128"]),
    ("tinyint unsigned", pa.int16(), ["0", "255"]),
    ("bool", pa.int8(), ["true", "false"]),
    ("smallint", pa.int16(), [*NUMBERS, "32767", "-32768"]),
    ("smallint unsigned", pa.int32(), ["0", "65535"]),
    ("mediumint", pa.int32(), [*NUMBERS, "8388607", "-8388608"]),
    ("mediumint unsigned", pa.int32(), ["0", "16777215"]),
    ("int", pa.int32(), [*NUMBERS, "2147483647", "-2147483648"]),
    ("int unsigned", pa.int64(), ["0", "4294967295"]),
    ("int(5) zerofill", pa.int64(), ["7", "123456"]),
    ("bigint", pa.int64(), [*NUMBERS, str(2**63 - 1), str(-(2**63))]),
    ("bigint unsigned", pa.decimal128(20), ["0", str(2**63), str(2**64 - 1)]),
    ("float", pa.float32(), ["0", "-1.5", "3.40282e38", "1e-38", "0.1"]),
    ("float(7,3)", pa.float32(), ["1.2345", "-9999.999"]),
    ("double", pa.float64(), ["0", "-1.5", "1.7976931348623157e308", "2.2250738585072014e-308", "0.1"]),
    ("double unsigned", pa.float64(), ["12345.678"]),
    ("decimal(1,0)", pa.decimal128(1), [*NUMBERS, "9", "-9"]),
    ("decimal(5,5)", pa.decimal128(5, 5), ["0.00001", "-0.99999", "0"]),
    ("decimal(9,2)", pa.decimal128(9, 2), ["-0.01", "1234567.89"]),
    ("decimal(18,9)", pa.decimal128(18, 9), ["-999999999.999999999", "1"]),
    ("decimal(20,4) unsigned", pa.decimal128(20, 4), ["0", "9999999999999999.9999"]),
    ("decimal(38,10)", pa.decimal128(38, 10), ["-" + "9" * 28 + "." + "9" * 10, "0.0000000001", "0"]),
    ("decimal(39,2)", pa.string(), ["-" + "9" * 37 + ".99", "0.5", "-0.05", "0", "12"]),
    ("decimal(65,30)", pa.string(), ["9" * 35 + "." + "9" * 30, "-" + "9" * 35 + "." + "9" * 30, "0.1", "-0.1"]),
    ("decimal(65,0)", pa.string(), ["9" * 65, "-1", "0"]),
    ("bit(1)", pa.int64(), ["b'0'", "b'1'"]),
    ("bit(9)", pa.int64(), ["b'0'", "b'111111111'", "b'100000000'"]),
    ("bit(63)", pa.int64(), [str(2**63 - 1), "1"]),
    ("bit(64)", pa.decimal128(20), [str(2**64 - 1), "0", str(2**63)]),
    ("year", pa.int16(), ["1901", "2155", "0", "2024"]),
    ("date", pa.date32(), [ZERO, "'0001-01-01'", "'2024-02-29'", "'9999-12-31'", "'1969-12-31'"]),
    ("time", pa.string(), ODD_TIMES),
    ("time(1)", pa.string(), [*ODD_TIMES, "'-00:00:00.1'", "'-01:02:03.9'", "'838:59:58.9'"]),
    ("time(3)", pa.string(), [*ODD_TIMES, "'-00:00:00.001'", "'-01:02:03.999'", "'12:00:00.05'"]),
    ("time(6)", pa.string(), [*ODD_TIMES, "'-00:00:00.000001'", "'-838:59:58.999999'", "'00:00:00.999999'"]),
    ("datetime", NAIVE, [ZERO, "'0001-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'2024-02-29 12:34:56'"]),
    ("datetime(2)", NAIVE, [ZERO, "'1969-12-31 23:59:59.99'", "'2024-01-01 00:00:00.01'"]),
    ("datetime(4)", NAIVE, ["'1969-12-31 23:59:59.9999'", "'2024-01-01 00:00:00.0001'"]),
    ("datetime(5)", NAIVE, ["'1969-12-31 23:59:59.99999'", "'2024-01-01 00:00:00.00001'"]),
    ("datetime(6)", NAIVE, [ZERO, "'9999-12-31 23:59:59.999999'", "'2024-01-01 10:20:30.000001'"]),
    ("timestamp null", UTC_MICROS, [ZERO, "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'2024-03-31 02:30:00'"]),
    ("timestamp(3) null", UTC_MICROS, [ZERO, "'1970-01-01 00:00:01.001'", "'2024-10-27 02:30:00.999'"]),
    ("timestamp(6) null", UTC_MICROS, ["'1970-01-01 00:00:00.5'", "'2024-10-27 02:30:00.999999'"]),
    ("char(5)", pa.string(), ["''", "'a'", "'ab  '", "'é漢😀xy'"]),
    ("char(255)", pa.string(), ["'a'", "repeat('😀', 255)", "'  lead'"]),
    ("char(5) character set latin1", pa.string(), ["'é€'", "''", "'abcde'"]),
    ("char(5) character set ucs2", pa.string(), ["'é漢'", "'a '"]),
    ("char(5) character set utf16", pa.string(), ["'é😀'", "'a '"]),
    ("char(5) character set utf32", pa.string(), ["'é😀'", "'a '"]),
    ("varchar(63)", pa.string(), ["''", "'a  '", "'é漢😀'", "'\\0nul'"]),
    ("varchar(300)", pa.string(), ["''", "'a  '", "repeat('é漢', 150)"]),
    ("varchar(80) character set latin1", pa.string(), ["'é€ß'", "'plain'", "''"]),
    ("varchar(80) character set utf16le", pa.string(), ["'é😀'", "''"]),
    ("varchar(80) character set sjis", pa.string(), ["'漢字ｱ'", "'a'"]),
    ("varchar(80) character set gbk", pa.string(), ["'汉字'", "'a'"]),
    ("tinytext", pa.string(), ["''", "'é漢😀'"]),
    ("text", pa.string(), ["''", f"'{LONG}'"]),
    ("mediumtext", pa.string(), ["repeat('é', 70000)"]),
    ("longtext character set koi8r", pa.string(), ["'Привет'"]),
    ("binary(4)", pa.binary(), ["''", "'a'", "x'00010000'", "x'ff000000'", "'    '", "'abcd'"]),
    ("binary(255)", pa.binary(), ["''", "'a'", "repeat(x'ff', 255)"]),
    ("varbinary(10)", pa.binary(), ["''", "x'00ff00'", "'a  '"]),
    ("varbinary(1000)", pa.binary(), ["repeat(x'00', 1000)"]),
    ("tinyblob", pa.binary(), ["''", "x'00ff'"]),
    ("blob", pa.binary(), ["repeat(x'80', 60000)"]),
    ("mediumblob", pa.binary(), ["repeat(x'80', 70000)"]),
    ("longblob", pa.binary(), ["x'00'"]),
    ("enum('a','é','it''s','c,d')", pa.string(), ["'a'", "'é'", "'it''s'", "4", "0"]),
    ("enum('ä','b') character set latin1", pa.string(), ["'ä'", "'b'"]),
    ("set('a','é','c')", pa.string(), ["''", "'a'", "'a,c'", "'c,é,a'"]),
    ("set('ä','b') character set latin1", pa.string(), ["'ä,b'"]),
    ("geometry", pa.binary(), ["st_geomfromtext('POINT(1 2)')", "st_geomfromtext('LINESTRING(0 0,1 1)')"]),
    ("point", pa.binary(), ["point(1.5, -2)", "st_geomfromtext('POINT(3 4)', 4326)"]),
    ("geometrycollection", pa.binary(), ["st_geomfromtext('GEOMETRYCOLLECTION(POINT(1 2),LINESTRING(0 0,1 1))')"]),
    ("multipolygon", pa.binary(), ["st_geomfromtext('MULTIPOLYGON(((0 0,1 0,1 1,0 0)))')"]),
]  # fmt: skip
DOCUMENTS = [
    """'{"b": 1,  "a": [true, null, 1.50], "aa": {"": "é漢😀"}}'""",
    "'3'",
    "'[]'",
    "'{}'",
    "'null'",
    """'"a\\\\"b\\\\n"'""",
    "cast(18446744073709551615 as json)",
    "cast(-9223372036854775808 as json)",
    "'[1e300, 1.5e-7, 100000000000000000000, 0.1, -0.0, 3e15, 1e15, 123456789012345680, 1039514241563211.8]'",
    "json_array(repeat(x'ff', 57), repeat(x'ff', 58), repeat(x'ff', 300))",
    "json_array(convert('ab' using utf16))",
    "json_array(cast('2024-02-29' as date), cast('-12:34:56.7' as time(6)), timestamp'2024-02-29 01:02:03.000004')",
    "json_object('blob', x'00ff', 'bit', b'101', 'bool', true)",
    "json_array(1.50, -0.5, cast(1234567890.0987654321 as decimal(30,15)))",
    "json_array(repeat('long', 20000), 70000, -70000, json_object('k', repeat('é', 40000)))",
]
ADDRESSES = ["'::'", "'::1'", "'2001:db8::ff00:42:8329'", "'::ffff:1.2.3.4'", "'::1.2.3.4'", "'1::'"]
OWN_TYPES: dict[str, list[tuple[str, pa.DataType, list[str]]]] = {
    "mariadb": [
        ("varchar(80) collate utf8mb4_uca1400_ai_ci", pa.string(), ["'é漢😀'"]),
        ("varchar(80) collate latin1_swedish_nopad_ci", pa.string(), ["'é '"]),
        ("varchar(1000) compressed character set latin1", pa.string(), ["''", "'é'", "repeat('é', 900)"]),
        ("varbinary(200) compressed", pa.binary(), ["''", "'a'", "repeat('z', 200)"]),
        ("longblob compressed", pa.binary(), ["''", "repeat('z', 70000)"]),
        ("json", pa.string(), ["""'{"b": 1,  "a": [true, null, 1.50]}'""", "'3'"]),
        ("uuid", pa.string(), UUIDS),
        ("inet6", pa.string(), ADDRESSES),
        ("inet4", pa.string(), ["'0.0.0.0'", "'127.0.0.1'", "'255.255.255.255'", "'10.0.0.0'"]),
    ],
    "mysql": [
        ("varchar(80) collate utf8mb4_0900_ai_ci", pa.string(), ["'é漢😀 '", "''"]),
        ("varchar(80) collate utf8mb4_ja_0900_as_cs_ks", pa.string(), ["'é漢😀'"]),
        ("varchar(80) character set gb18030", pa.string(), ["'é漢😀€'", "'a'"]),
        ("json", pa.string(), DOCUMENTS),
        ("vector(3)", pa.binary(), ["to_vector('[1, 2.5, -3]')", "to_vector('[0]')"]),
        ("vector", pa.binary(), ["to_vector('[1]')"]),
        ("point srid 4326", pa.binary(), ["st_geomfromtext('POINT(3 4)', 4326)"]),
        ("geometry srid 0", pa.binary(), ["st_geomfromtext('MULTIPOINT(3 4, 5 6)')"]),
    ],
}  # fmt: skip
OWN_TYPES["mariadb11"] = [
    *OWN_TYPES["mariadb"],
    ("vector(3)", pa.binary(), ["vec_fromtext('[1, 2.5, -3]')"]),
    ("timestamp(1) null", UTC_MICROS, ["'2106-02-07 06:28:15.9'"]),
]
CASES = [
    pytest.param(server, *case, id=f"{server}-{case[0]}")
    for server in EVERY_MYSQL_SERVER
    for case in [*TYPES, *OWN_TYPES[server]]
]


def shown(value: Any, column: MyColumn) -> Any:
    """An Arrow value the way the server prints it."""
    digits = column.kind.size
    if value is None or isinstance(value, str):
        return value
    if column.codec == "bit":
        return int(value).to_bytes((digits + 7) // 8)
    if column.codec == "year":
        return f"{value:04}"
    if isinstance(value, bytes):
        return value
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def printed(values: pa.Array, column: MyColumn) -> list[Any]:
    digits = column.kind.size
    if pa.types.is_date(values.type):
        made = values.cast(pa.int32()).to_pylist()
        epoch = date(1970, 1, 1)
        return [v and ("0000-00-00" if v == -(2**31) else str(epoch + timedelta(days=v))) for v in made]
    if pa.types.is_timestamp(values.type):
        fraction = f".{'0' * digits}" if digits else ""
        texts = []
        for v in values.cast(pa.int64()).to_pylist():
            if v is None or v == -(2**63):
                texts.append(None if v is None else "0000-00-00 00:00:00" + fraction)
            else:
                moment = datetime(1970, 1, 1) + timedelta(microseconds=v)
                whole = moment.isoformat(" ", "microseconds")
                texts.append(whole[: 20 + digits] if digits else whole[:19])
        return texts
    return [shown(value, column) for value in values.to_pylist()]


def same_number(left: Any, right: Any, single: bool) -> bool:
    """A FLOAT is printed with six digits."""
    if left is None or right is None:
        return left is right
    return float(f"{left:.6g}") == float(right) if single else left == float(right)


def bits(values: pa.Array) -> Any:
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


@pytest.mark.parametrize(("mysql_server", "sql", "arrow", "values"), CASES, indirect=["mysql_server"])
def test_a_value_is_the_same_from_log_and_dump_and_the_one_printed(
    server: Server, sql: str, arrow: pa.DataType, values: Sequence[str]
) -> None:
    server.query(f"create table t (id int primary key, c {sql}, last int not null)")
    place = server.place()
    rows = ", ".join(f"({n}, {value}, {n})" for n, value in enumerate([*values, "null"]))
    server.query(f"insert into t values {rows}")
    schema, batch = server.log(place, "t")
    column = schema.column("c")
    assert isinstance(column, MyColumn)
    assert column.arrow == arrow
    logged = batch.column("c")
    dumped = server.dump(schema).column("c")
    assert logged.equals(dumped), (logged, dumped)
    assert batch["last"].to_pylist() == list(range(len(values) + 1))

    plain = "hex(c)" if sql.startswith("vector") else "c"  # the driver does not know vectors
    said = [value for (value,) in server.query(f"select {plain} from t order by id", plain=True)]
    assert len(said) == len(logged)
    if sql.startswith("vector"):
        assert [v and v.hex().upper() for v in logged.to_pylist()] == said
    elif column.codec == "geometry":
        said = [v for (v,) in server.query("select st_aswkb(c) from t order by id", plain=True)]
        systems = [v for (v,) in server.query("select st_srid(c) from t order by id")]
        found = [v for v, system in zip(logged.to_pylist(), systems, strict=True) if not system]
        assert found == [v for v, system in zip(said, systems, strict=True) if not system]
    elif pa.types.is_floating(arrow):
        single = arrow == pa.float32() and "(" not in sql
        pairs = zip(logged.to_pylist(), said, strict=True)
        if "(" not in sql:
            assert all(same_number(left, right, single) for left, right in pairs), (logged, said)
    elif "zerofill" in sql:
        assert logged.to_pylist() == [None if v is None else int(v) for v in said]
    else:
        assert printed(logged, column) == said


LABELS = r"""enum('a','it''s','b\\s','n\nl','t\tb','z\0z','q"q','r\rr','%','é','a,b','(','x\\nx')"""


LABELLED = [
    pytest.param(server, sql, id=f"{server}-{number}")
    for server in EVERY_MYSQL_SERVER
    for number, sql in enumerate([LABELS, LABELS.replace("enum", "set").replace(",'a,b'", "")])
]


@pytest.mark.parametrize(
    ("mysql_server", "sql"),
    [*(pytest.param(*case.values[:2], id=case.id) for case in CASES), *LABELLED],
    indirect=["mysql_server"],
)
def test_log_and_catalog_give_equal_types(server: Server, sql: str) -> None:
    server.query(f"create table t (id int primary key, c {sql})")
    place = server.place()
    server.query("insert into t values (1, null)")
    schema, _ = server.log(place, "t")
    told = server.catalog("t")["c"]
    assert schema.column("c") == my_column("c", told, server.flavor, TypeOptions())
    [(printed,)] = server.query(
        "select column_type from information_schema.columns"
        f" where table_schema = '{server.database.name}' and table_name = 't' and column_name = 'c'"
    )
    base = printed.split("(")[0]
    if base in ("tinyint", "smallint", "mediumint", "int", "bigint", "float", "double", "year"):
        printed = base + (" unsigned" if "unsigned" in printed else "")
    if base == "vector" and server.flavor is MARIADB:
        printed = "varbinary(12)"
    assert schema.column("c").type == printed


def test_all_types_in_one_table(server: Server, request: pytest.FixtureRequest) -> None:
    """What the log says of some columns only, it says of the right ones."""
    types = [*TYPES, *OWN_TYPES[request.node.callspec.params["mysql_server"]]]
    some = ", ".join(f"c{n} {sql}" for n, (sql, _, _) in enumerate(types))
    server.query(f"create table t (id int primary key, {some}) row_format = dynamic")
    place = server.place()
    firsts, lasts = (", ".join(values[place] for _, _, values in types) for place in (0, -1))
    server.query(f"insert into t values (1, {firsts}), (2, {lasts}), (3{', null' * len(types)})")
    schema, batch = server.log(place, "t")
    told = server.catalog("t")
    assert schema.columns == tuple(my_column(name, told[name], server.flavor, TypeOptions()) for name in schema.names)
    assert batch.select(list(schema.names)).equals(server.dump(schema))


some_rows = st.lists(
    st.tuples(
        st.none() | st.integers(0, 2**64 - 1),
        st.none() | st.decimals(-(10**19), 10**19, places=10),
        st.none() | st.datetimes(datetime(1, 1, 1)),
        st.none() | st.integers(-3020399999999, 3020399999999),
        st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
        st.none() | st.binary(max_size=300),
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
        st.none() | st.uuids() | st.uuids(version=1) | st.uuids(version=4),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=some_rows)
def test_any_rows(server: Server, rows: list[tuple[Any, ...]]) -> None:
    server.query("drop table if exists t")
    unique = "uuid" if server.flavor is MARIADB else "char(36)"
    server.query(
        "create table t (id int primary key, a bigint unsigned, b decimal(30,10), c datetime(6), d time(6),"
        f" e varchar(30), f blob, g double, h {unique})"
    )
    place = server.place()
    with server.connection.cursor() as cursor:
        cursor.executemany(
            "insert into t values (%s, %s, %s, %s, sec_to_time(%s / 1000000), %s, %s, %s, %s)",
            [(n, *row[:-1], row[-1] and str(row[-1])) for n, row in enumerate(rows)],
        )
    schema, batch = server.log(place, "t")
    assert batch.select(list(schema.names)).equals(server.dump(schema))
    for name, place in (("a", 0), ("b", 1), ("c", 2), ("e", 4), ("f", 5), ("g", 6)):
        assert batch[name].to_pylist() == [row[place] for row in rows]
    # MariaDB refuses some UUIDs of no variant, and then stores a null.
    assert [(value,) for value in batch["h"].to_pylist()] == server.query("select h from t order by id", plain=True)


any_document = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=40,
)


@pytest.mark.parametrize("mysql_server", ["mysql"], indirect=True)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=st.lists(any_document, min_size=1, max_size=30))
def test_any_documents(server: Server, documents: list[Any]) -> None:
    server.query("drop table if exists t")
    server.query("create table t (id int primary key, c json)")
    place = server.place()
    with server.connection.cursor() as cursor:
        cursor.executemany("insert into t values (%s, %s)", [(n, json.dumps(d)) for n, d in enumerate(documents)])
    schema, batch = server.log(place, "t")
    assert batch["c"].to_pylist() == server.dump(schema)["c"].to_pylist()


def changes(server: Server, table: str, *statements: str, **options: bool) -> list[tuple[Any, ...]]:
    place = server.place()
    for statement in statements:
        server.query(statement)
    schema, batch = server.log(place, table, **options)
    return [(Op(row["_op"]).name, *(row[name] for name in schema.names)) for row in batch.to_pylist()]


def test_updates_and_deletes(server: Server) -> None:
    server.query("create table t (a int, b varchar(10), c text, primary key (b, a))")
    found = changes(
        server,
        "t",
        "insert into t values (1, 'x', 'one'), (2, 'y', null)",
        "update t set c = 'new'",
        "update t set b = 'Y' where a = 2",
        "delete from t where a = 1",
    )
    assert found == [
        ("create", 1, "x", "one"),
        ("create", 2, "y", None),
        ("update", 1, "x", "new"),
        ("update", 2, "y", "new"),
        ("delete", 2, "y", "new"),
        ("create", 2, "Y", "new"),
        ("delete", 1, "x", "new"),
    ]


def test_generated_and_invisible_columns_are_in_the_log(server: Server) -> None:
    server.query(
        "create table t (id int primary key, v int as (id + 1) virtual, s int as (id * 2) stored, i int invisible)"
    )
    place = server.place()
    server.query("insert into t (id, i) values (1, 9), (2, null)")
    server.query("update t set id = id + 10")
    schema, batch = server.log(place, "t")
    assert schema.names == ("id", "v", "s", "i")
    rows = list(zip(*(batch[name].to_pylist() for name in schema.names), strict=True))
    assert rows == [(1, 2, 2, 9), (2, 3, 4, None), (1, 2, 2, 9), (11, 12, 22, 9), (2, 3, 4, None), (12, 13, 24, None)]
    assert server.dump(schema).to_pylist()[0] == {"id": 11, "v": 12, "s": 22, "i": 9}


@pytest.mark.parametrize("kind", ["minimal", "noblob"])
def test_a_log_without_all_columns_is_refused(server: Server, kind: str) -> None:
    server.query("create table t (id int primary key, a int, b text)")
    server.query(f"set session binlog_row_image = {kind}")
    with pytest.raises(DecodeError, match="binlog_row_image = FULL"):
        changes(server, "t", "insert into t (id, a) values (1, 2)", "update t set a = 3")


@pytest.mark.parametrize("key", ["primary key (a, id)", "primary key (b(3), id)"])
def test_the_key_is_in_its_own_order(server: Server, key: str) -> None:
    server.query(f"create table t (id int, a int, b varchar(20), {key})")
    place = server.place()
    server.query("insert into t values (1, 2, 'abcdef')")
    schema, _ = server.log(place, "t")
    assert schema.key == (("a", "id") if "(a" in key else ("b", "id"))


def test_dates_of_no_calendar_are_null_or_refused_or_text(server: Server) -> None:
    server.query("create table t (id int primary key, d date, m datetime(3), s timestamp(2) null, n decimal(10,3))")
    place = server.place()
    server.query(
        "insert into t values (1, '2024-00-00', '2024-02-31 01:02:03.5', '2024-01-01', -1.5),"
        " (2, '0000-00-00', '0000-00-00', '0000-00-00', 0), (3, null, null, null, null)"
    )
    with pytest.raises(ValueRefused, match="2024-00-00"):
        server.log(place, "t", TypeOptions(values=ValueRules(default="stop")))
    schema, batch = server.log(place, "t")
    raw = ['{"d":"2024-00-00","m":"2024-02-31 01:02:03.500"}', None, None]
    assert batch.column("_raw_values").to_pylist() == server.dump(schema).column("_raw_values").to_pylist() == raw
    schema, batch = server.log(place, "t", TypeOptions(decimals="string", dates="string"))
    rows = [tuple(row[name] for name in schema.names) for row in batch.to_pylist()]
    assert [(str(a), *b) for a, *b in rows] == server.query("select * from t", plain=True)
    assert server.dump(schema).to_pylist() == [dict(zip(schema.names, row, strict=True)) for row in rows]


def test_every_collation_has_its_character_set(server: Server) -> None:
    where = "collation_character_set_applicability" if server.flavor is MARIADB else "collations"
    found = server.query(f"select id, character_set_name from information_schema.{where}")
    assert len(found) > 250
    assert [charset(number).name for number, _ in found] == [name for _, name in found]
    widths = dict(server.query("select character_set_name, maxlen from information_schema.character_sets"))
    assert {name: CHARSETS[name].width for name in widths} == widths


DOUBLE = [range(128), range(0x8000, 0x10000)]
TRIPLE = [range(0x8000, 0x10000), range(0x8FA1A1, 0x8FFEFF)]
SHIFTED = [range(128), range(0xA0, 0xE0), range(0x8000, 0xA000), range(0xE000, 0x10000)]
CODES = {
    "ujis": TRIPLE,
    "eucjpms": TRIPLE,
    "sjis": SHIFTED,
    "cp932": SHIFTED,
    "utf8mb3": [],
    "utf8mb4": [],
    "binary": [],
}


def numbers(server: Server, codes: range) -> None:
    """A table of the numbers that are the codes of characters."""
    server.query("drop table if exists codes")
    server.query("create table codes (seq int primary key)")
    server.query(f"insert into codes values {', '.join(f'({n})' for n in codes)}")


@pytest.mark.parametrize("name", sorted(CHARSETS))
def test_characters_are_what_the_server_makes_of_them(server: Server, name: str) -> None:
    if name == "gb18030" and server.flavor is MARIADB:
        return  # which does not have it
    made = CHARSETS[name]
    usual = [range(256)] if made.width == 1 else DOUBLE
    for codes in CODES.get(name, usual):
        numbers(server, codes)
        padded = {"utf-16-be": 2, "utf-16-le": 2, "utf-32-be": 4}.get(made.codec)
        spelled = f"lpad(char(seq), {padded}, x'00')" if padded else "char(seq)"
        found = server.query(
            f"select hex(c), hex(convert(convert(c using {name}) using utf8mb4)) from"
            f" (select {spelled} c from codes where seq < 256 or seq & 255 >= 0x30) x"
        )
        wrong = []
        for stored, shown in found:
            # Of bytes that are not one whole character the server makes nothing, or several.
            text = bytes.fromhex(shown or "").decode("utf-8", "surrogatepass")
            if len(text) == 1 and not 0xD800 <= ord(text) < 0xE000 and made.decode(bytes.fromhex(stored)) != text:
                wrong.append((stored, text))
        assert wrong == []
        assert len(found) > 60


@pytest.mark.parametrize("mysql_server", ["mysql"], indirect=True)
def test_all_of_unicode_in_gb18030(server: Server) -> None:
    for plane in range(0, 0x110000, 0x10000):
        numbers(server, range(plane, plane + 0x10000))
        found = server.query(
            "select seq, hex(convert(convert(lpad(char(seq), 4, x'00') using utf32) using gb18030)) from codes"
            " where seq not between 0xd800 and 0xdfff"
        )
        made = CHARSETS["gb18030"]
        wrong = [(n, code) for n, code in found if code != "3F" and made.decode(bytes.fromhex(code)) != chr(n)]
        assert wrong == []
        assert len([code for _, code in found if code != "3F"]) > 60000
