"""Table maps by hand: names, types, character sets, labels and keys."""

from __future__ import annotations

import struct

import pytest

from dblog.core.schema import TableName
from dblog.databases.mysql.flavor import MARIADB, MYSQL, Flavor, flavor_of
from dblog.errors import DecodeError, PreconditionFailed
from dblog.sources.mysql.codecs import table_schema
from dblog.sources.mysql.column_types import Code, TypeOptions
from dblog.sources.mysql.spelling import read_type
from dblog.sources.mysql.tablemap import TableMap
from tests.unit.sources.mysql.build import Field, blob, char, label, number, packed, sized, table_map, varchar

LATIN1, UCS2, BINARY = 8, 35, 63


def spelled(field: Field, flavor: Flavor = MYSQL, extra: bytes = b"") -> str:
    body = table_map([number("id", Code.int, nullable=False), field], extra=extra)
    return table_schema(TableMap.parse(body, flavor), flavor).column(field.name).type


@pytest.mark.parametrize(
    ("field", "sql"),
    [
        (number("c", Code.tinyint), "tinyint"),
        (number("c", Code.smallint, unsigned=True), "smallint unsigned"),
        (number("c", Code.mediumint), "mediumint"),
        (number("c", Code.int, unsigned=True), "int unsigned"),
        (number("c", Code.bigint, unsigned=True), "bigint unsigned"),
        (number("c", Code.float, meta=b"\4"), "float"),
        (number("c", Code.double, meta=b"\x08", unsigned=True), "double unsigned"),
        (number("c", Code.decimal, meta=b"\x41\x1e"), "decimal(65,30)"),
        (number("c", Code.year, unsigned=True), "year"),
        (Field("c", Code.bit, b"\x03\x02"), "bit(19)"),
        (Field("c", Code.date), "date"),
        (Field("c", Code.time, b"\0"), "time"),
        (Field("c", Code.time, b"\3"), "time(3)"),
        (Field("c", Code.datetime, b"\6"), "datetime(6)"),
        (Field("c", Code.timestamp, b"\0"), "timestamp"),
        (varchar("c", 800), "varchar(200)"),
        (varchar("c", 300, LATIN1), "varchar(300)"),
        (varchar("c", 300, BINARY), "varbinary(300)"),
        (char("c", 12), "char(3)"),
        (char("c", 1020), "char(255)"),
        (char("c", 510, UCS2), "char(255)"),
        (char("c", 255, BINARY), "binary(255)"),
        (blob("c", 1, LATIN1), "tinytext"),
        (blob("c", 2, 45), "text"),
        (blob("c", 3), "mediumblob"),
        (blob("c", 4), "longblob"),
        (label("c", Code.enum, 1, [b"a", "é".encode("latin-1"), b"it's"], LATIN1), "enum('a','é','it''s')"),
        (label("c", Code.set, 1, [b"x", b"y"]), "set('x','y')"),
        (Field("c", Code.json, b"\4"), "json"),
        (Field("c", 141, b"\xe9\x03", collation=LATIN1), "varchar(1000) /*M!100301 COMPRESSED*/"),
        (Field("c", 140, b"\2", collation=BINARY), "blob /*M!100301 COMPRESSED*/"),
    ],
)
def test_types_are_spelled_as_the_catalog_does(field: Field, sql: str) -> None:
    assert spelled(field) == sql


@pytest.mark.parametrize(
    ("shape", "flavor", "sql"),
    [(0, MYSQL, "geometry"), (3, MYSQL, "polygon"), (7, MYSQL, "geomcollection"), (7, MARIADB, "geometrycollection")],
)
def test_geometries_have_their_shape(shape: int, flavor: Flavor, sql: str) -> None:
    assert spelled(Field("c", Code.geometry, b"\4"), flavor, extra=b"\x07" + sized(packed(shape))) == sql


def test_a_vector_has_its_dimensions() -> None:
    assert spelled(Field("c", Code.vector, b"\4"), extra=b"\x0d" + sized(packed(300))) == "vector(300)"


def test_a_table_map_has_names_nullability_and_key() -> None:
    fields = [varchar("naïve"), number("a", Code.int, nullable=False), number("b", Code.int, nullable=False)]
    mapped = TableMap.parse(table_map(fields, key=[2, 1], schema="laden", name="größen"), MYSQL)
    assert mapped.table == TableName("laden", "größen")
    assert mapped.id == 77
    assert [(c.name, c.nullable) for c in mapped.columns] == [("naïve", True), ("a", False), ("b", False)]
    assert mapped.key == ("b", "a")
    assert table_schema(mapped, MYSQL).key == ("b", "a")


def test_a_key_of_prefixes_counts_its_columns_whole() -> None:
    mapped = TableMap.parse(table_map([varchar("a"), varchar("b")], key=[1, 0], prefixes=[0, 10]), MYSQL)
    assert mapped.key == ("b", "a")


def test_signs_are_those_of_the_numbers_only() -> None:
    fields = [
        varchar("v"),
        *(number(f"n{n}", Code.int, unsigned=n % 3 == 0) for n in range(9)),
        Field("bit", Code.bit, b"\1\0"),
        number("year", Code.year, unsigned=True),
        number("last", Code.decimal, meta=b"\5\2", unsigned=True),
    ]
    mapped = TableMap.parse(table_map(fields), MYSQL)
    assert [c.name for c in mapped.columns if c.type.unsigned] == ["n0", "n3", "n6", "last"]


def test_a_default_character_set_has_exceptions() -> None:
    fields = [Field(name, Code.varchar, struct.pack("<H", 20)) for name in "abcd"]
    extra = b"\x02" + sized(packed(45) + packed(1) + packed(LATIN1) + packed(3) + packed(UCS2))
    extra += b"\x04" + sized(b"".join(sized(name.encode()) for name in "abcd"))
    mapped = TableMap.parse(table_map(fields, full=False, extra=b"") + extra + b"\x08" + sized(b"\0"), MYSQL)
    assert [c.type.collation for c in mapped.columns] == [45, LATIN1, 45, UCS2]


def test_geometries_of_mariadb_have_a_character_set_too() -> None:
    shapes = b"\x07" + sized(packed(1))
    for flavor, collation in ((MYSQL, None), (MARIADB, BINARY)):
        point = Field("p", Code.geometry, b"\4", collation=collation)
        body = table_map([varchar("a", 20, LATIN1), point, varchar("b", 20, UCS2)], extra=shapes)
        assert [c.type.collation for c in TableMap.parse(body, flavor).columns] == [LATIN1, BINARY, UCS2]
        with pytest.raises(DecodeError):
            TableMap.parse(body, MYSQL if flavor is MARIADB else MARIADB)


def test_vectors_have_a_character_set_too() -> None:
    vector = Field("v", Code.vector, b"\4", collation=BINARY)
    dimensions = b"\x0d" + sized(packed(3))
    body = table_map([vector, varchar("a", 20, LATIN1), varchar("b", 20, UCS2)], extra=dimensions)
    assert [c.type.collation for c in TableMap.parse(body, MYSQL).columns] == [BINARY, LATIN1, UCS2]


def test_invisible_columns_are_known() -> None:
    fields = [number("id", Code.int), number("hidden", Code.int)]
    mapped = TableMap.parse(table_map(fields, extra=b"\x0c" + sized(b"\x80")), MYSQL)
    assert [c.visible for c in mapped.columns] == [True, False]


FIELDS = [
    number("id", Code.int, unsigned=True, nullable=False),
    varchar("v", 40),
    label("e", Code.enum, 1, [b"a", b"b"]),
    Field("y", Code.year, unsigned=True),
]


def test_a_map_without_names_takes_what_it_lacks_from_the_catalog() -> None:
    now = TableMap.parse(table_map(FIELDS), MYSQL)
    bare = TableMap.parse(table_map(FIELDS, full=False), MYSQL)
    assert now.named
    assert not bare.named
    assert {c.name for c in bare.columns} == {""}
    whole = bare.completed(now)
    assert (whole.columns, whole.key) == (now.columns, now.key)
    assert whole.columns[2].type.labels == ("a", "b")


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        (FIELDS[:3], "it has 4 columns in the log and 3 in the catalog"),
        ([number("id", Code.int, nullable=False), *FIELDS[1:]], "'id' differ"),
        ([number("id", Code.int, unsigned=True), *FIELDS[1:]], "'id' differ"),
        ([FIELDS[0], varchar("v", 41), *FIELDS[2:]], "'v' differ"),
        ([FIELDS[0], varchar("v", 40, LATIN1), *FIELDS[2:]], "'v' differ"),
        ([*FIELDS[:2], label("e", Code.enum, 2, [b"a", b"b"]), FIELDS[3]], "'e' differ"),
        ([FIELDS[1], FIELDS[0], *FIELDS[2:]], "'v', 'id' differ"),
    ],
)
def test_a_catalog_that_disagrees_with_the_log_is_refused(fields: list[Field], wrong: str) -> None:
    bare = TableMap.parse(table_map(FIELDS, full=False), MYSQL)
    with pytest.raises(DecodeError, match=wrong) as caught:
        bare.completed(TableMap.parse(table_map(fields), MYSQL))
    assert "binlog_row_metadata = FULL" in (caught.value.hint or "")


def test_a_map_of_a_table_that_is_gone_is_refused() -> None:
    with pytest.raises(DecodeError, match=r"table shop\.t.* the table does not exist any more"):
        TableMap.parse(table_map(FIELDS, full=False), MYSQL).completed(None)


def test_a_table_without_key_is_refused() -> None:
    with pytest.raises(PreconditionFailed, match=r"shop\.t has no primary key"):
        table_schema(TableMap.parse(table_map([number("id", Code.int)], key=None), MYSQL), MYSQL)


@pytest.mark.parametrize(("code", "hint"), [(12, "force"), (6, ""), (99, ""), (247, "")])
def test_an_unknown_type_is_refused(code: int, hint: str) -> None:
    with pytest.raises(DecodeError, match=f"type {code}") as caught:
        TableMap.parse(table_map([Field("c", code)]), MYSQL)
    assert hint in (caught.value.hint or "")


def test_every_shorter_table_map_is_refused() -> None:
    whole = table_map([number("id", Code.int), varchar("v"), label("e", Code.enum, 1, [b"a", b"b"])])
    TableMap.parse(whole, MYSQL)
    complete = {len(whole) - len(b"\x08" + sized(b"\0"))}  # without a key
    complete.add(min(complete) - len(b"\x0b" + sized(packed(45))))  # without the character sets of labels
    bare = len(table_map([number("id", Code.int), varchar("v"), label("e", Code.enum, 1, [b"a", b"b"])], full=False))
    complete |= {bare, bare - 3, bare - 6}  # without names; without character sets; without signs
    for size in range(len(whole)):
        if size not in complete:
            with pytest.raises((DecodeError, PreconditionFailed)):
                TableMap.parse(whole[:size], MYSQL)


def test_only_mariadb_has_uuids_and_only_the_catalog_knows() -> None:
    mapped = TableMap.parse(table_map([char("u", 16, BINARY), char("v", 16, BINARY), char("w", 15, BINARY)]), MYSQL)
    told = dict.fromkeys("uw", read_type("uuid", None, None, MARIADB))
    assert [c.type for c in table_schema(mapped, MARIADB, catalog=told).columns] == ["uuid", "binary(16)", "binary(15)"]
    with pytest.raises(DecodeError, match="unknown type 'uuid'"):
        read_type("uuid", None, None, MYSQL)
    assert table_schema(mapped, MARIADB).columns[0].type == "binary(16)"


def test_options_deliver_text() -> None:
    fields = [
        Field("d", Code.date),
        number("n", Code.decimal, meta=b"\5\2"),
        number("wide", Code.decimal, meta=b"\x27\2"),
    ]
    mapped = TableMap.parse(table_map(fields), MYSQL)
    usual = table_schema(mapped, MYSQL)
    assert [str(c.arrow) for c in usual.columns] == ["date32[day]", "decimal128(5, 2)", "string"]
    text = table_schema(mapped, MYSQL, TypeOptions(decimals="string", dates="string"))
    assert [str(c.arrow) for c in text.columns] == ["string"] * 3


def test_the_flavor_is_in_the_version() -> None:
    assert flavor_of("10.11.19-MariaDB-0+deb12u1-log") is MARIADB
    assert flavor_of("9.7.4") is MYSQL
