"""The zoo of MySQL and MariaDB: every type with its extreme values, as value and as key, and every shape of table."""

from __future__ import annotations

from collections.abc import Iterator

from tests.families import OnMySQL
from tests.zoo.tables import NUMBERS, Table, Zoo, quoted

TEXTS = [
    "''",
    "' '",
    "'a'",
    "'A'",
    "'ä'",
    "'a '",
    "'\\t\\r\\n'",
    "'\\\\'",
    "'NULL'",
    "''''",
    "'\"'",
    "'\U0001f418'",
    "repeat('x', 200)",
]
NARROW = ["''", "'a'", "'A'", "'ä'", "'ß'", "'z '"]
"""Texts that every character set below has."""
BYTES = ["x''", "x'00'", "x'ff00fe'", "x'5c27'", "repeat(x'ab', 200)"]
DATES = [
    "'2024-02-29'",
    "'0001-01-01'",
    "'9999-12-31'",
    "'1582-10-10'",
    "'0000-00-00'",
    "'2024-02-31'",
    "'2024-00-00'",
    "'0000-05-01'",
]
MOMENTS = [
    "'2024-02-29 12:00:00'",
    "'0001-01-01 00:00:00'",
    "'9999-12-31 23:59:59'",
    "'0000-00-00 00:00:00'",
    "'2024-02-31 01:02:03'",
]
STAMPS = ["'2024-02-29 12:00:00'", "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'0000-00-00 00:00:00'"]
TIMES = ["'00:00:00'", "'838:59:59'", "'-838:59:59'", "'-00:00:01'", "'23:59:59'"]
WHOLE = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}


def _types(mariadb: bool, version: tuple[int, ...]) -> Iterator[tuple[str, str, list[str]]]:
    """Names, types and SQL expressions of their values."""
    for name, bits in WHOLE.items():
        yield name, name, ["0", str(-(2 ** (bits - 1))), str(2 ** (bits - 1) - 1)]
        yield f"{name}_unsigned", f"{name} unsigned", ["0", str(2**bits - 1)]
        yield f"{name}_zerofill", f"{name}(9) unsigned zerofill", ["0", "7", str(2**bits - 1)]
    yield "boolean", "boolean", ["true", "false"]
    yield "decimal", "decimal(10,2)", ["0", "-99999999.99", "0.01"]
    yield "decimal_38", "decimal(38,30)", ["0", "99999999.999999999999999999999999999999", "-1e-30"]
    yield "decimal_65", "decimal(65,30)", ["0", "-" + "9" * 35 + "." + "9" * 30]
    yield "decimal_unsigned", "decimal(5,1) unsigned zerofill", ["0", "9999.9", "1.5"]
    yield "float", "float", ["0", "3.402823466e38", "-1.17549e-38", "0.1", "16777216"]
    yield "float_7_3", "float(7,3)", ["0", "1.125", "-9999.5"]
    yield "double", "double", ["0", "1.7976931348623157e308", "2.2250738585072014e-308", "0.1"]
    yield "double_unsigned", "double unsigned", ["0", "1e300", "0.1"]
    for bits in (1, 7, 8, 33, 63, 64):
        yield f"bit_{bits}", f"bit({bits})", ["0", "1", str(2**bits - 1)]
    yield "year", "year", ["0", "1901", "2155", "2024"]
    yield "date", "date", DATES
    for digits in (0, 1, 3, 6):
        part = "." + "9" * digits if digits else ""
        yield f"datetime_{digits}", f"datetime({digits})", [*MOMENTS, f"'2024-01-01 00:00:00{part}'"]
        yield f"timestamp_{digits}", f"timestamp({digits}) null", [*STAMPS, f"'2024-01-01 00:00:00{part}'"]
        yield f"time_{digits}", f"time({digits})", [*TIMES, f"'-01:02:03{part}'"]
    for kind in ("char(255)", "varchar(300)", "tinytext", "text", "mediumtext", "longtext"):
        yield kind.replace("(", "_").rstrip(")"), kind, TEXTS
    for charset in (
        "latin1",
        "utf8mb3",
        "utf16",
        "utf32",
        "cp1250",
        "koi8r",
        "ucs2",
        "utf16le",
        "latin2",
        "ascii",
        "binary",
    ):
        texts = NARROW if charset not in ("koi8r", "ascii") else ["''", "'a'", "'A'"]
        yield f"in_{charset}", f"varchar(60) character set {charset}", texts
    for kind in ("binary(9)", "varbinary(300)", "tinyblob", "blob", "mediumblob", "longblob"):
        size = 9 if kind == "binary(9)" else 300
        yield kind.replace("(", "_").rstrip(")"), kind, [b for b in BYTES if size > 9 or "repeat" not in b]
    yield "enum", "enum('a','B','it''s','ü,','')", ["'a'", "'B'", "'it''s'", "'ü,'", "''"]
    yield "enum_error", "enum('a','b')", ["'a'", "'b'", "'wrong'"]
    many = ",".join(f"'m{i}'" for i in range(300))
    yield "enum_300", f"enum({many})", ["'m0'", "'m255'", "'m299'"]
    members = ",".join(f"'{chr(97 + i % 26)}{i}'" for i in range(64))
    yield "set", "set('a','b','ü')", ["''", "'a'", "'a,ü'", "'a,b,ü'"]
    yield "set_64", f"set({members})", ["''", "'a0,l63'", "18446744073709551615"]
    yield (
        "json",
        "json",
        [quoted(text) for text in ('{"a": 1.0,  "b": [null, "ä"]}', "1", "null", '"x"', "[]", "-0.5", "1e300", "true")],
    )
    for kind, wkt in {
        "point": "POINT(1 -2.5)",
        "linestring": "LINESTRING(0 0,1 1)",
        "polygon": "POLYGON((0 0,1 1,1 0,0 0))",
        "multipoint": "MULTIPOINT(0 0,1 1)",
        "multilinestring": "MULTILINESTRING((0 0,1 1),(2 2,3 3))",
        "multipolygon": "MULTIPOLYGON(((0 0,1 1,1 0,0 0)))",
        "geometrycollection": "GEOMETRYCOLLECTION(POINT(1 1),LINESTRING(0 0,1 1))",
    }.items():
        yield kind, kind, [f"st_geomfromtext('{wkt}')"]
        yield f"geometry_{kind}", "geometry", [f"st_geomfromtext('{wkt}')", f"st_geomfromtext('{wkt}', 3857)"]
    if mariadb:
        yield (
            "uuid",
            "uuid",
            ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"]
            if version >= (10, 7)
            else [],
        )
        yield "inet6", "inet6", ["'::'", "'ffff::1'", "'::ffff:1.2.3.4'"]
        yield "inet4", "inet4", ["'0.0.0.0'", "'255.255.255.255'"] if version >= (10, 10) else []
        yield "compressed", "text compressed", TEXTS
        yield "vector", "vector(3)", ["vec_fromtext('[1,2,3]')"] if version >= (11, 7) else []
    else:
        yield "vector", "vector(3)", ["string_to_vector('[1,2,3]')"] if version >= (9, 0) else []


KEYS = {
    "tinyint",
    "smallint_unsigned",
    "int_zerofill",
    "mediumint",
    "bigint",
    "bigint_unsigned",
    "decimal",
    "decimal_38",
    "decimal_65",
    "float",
    "double",
    "bit_7",
    "bit_64",
    "year",
    "datetime_6",
    "timestamp_3",
    "time_6",
    "char_255",
    "varchar_300",
    "in_latin1",
    "in_utf16",
    "in_binary",
    "binary_9",
    "varbinary_300",
    "enum",
    "set",
    "uuid",
    "inet6",
    "inet4",
}
"""Types that are also tried as keys. Dates that do not exist need `values = "text"` there: `unfit_key`."""
COLLATIONS = (
    "utf8mb4_general_ci",
    "utf8mb4_bin",
    "utf8mb4_unicode_ci",
    "latin1_german2_ci",
    "latin1_bin",
    "utf8mb4_unicode_520_ci",
)
OTHER_REFUSES: set[str] = set()
"""Types with values that PostgreSQL cannot store."""


FIT_DATES = DATES[:5]
"""A known gap: the sink `sql` takes a table for one of PostgreSQL if every type of it is spelled the same there, like
bigint and date. A date that does not exist is then NULL in a target of MySQL, and ends the pipeline into PostgreSQL. So
the table `bigint_date` has dates that exist."""


def zoo(database: OnMySQL) -> Zoo:
    """The zoo of a server."""
    home = database.name
    said = database.execute("select version()")[0][0]
    mariadb = "maria" in said.lower()
    version = tuple(int(n) for n in said.split("-")[0].split(".")[:2])
    tables = [*_type_tables(home, mariadb, version), *_key_tables(home), *_shapes(home, mariadb), *_names(home)]
    tables += _cascades(home, acts=mariadb or version < (9, 6))
    finish, left_out = _left_out(home, mariadb)
    values = {f"{home}.{table.name}": "text" for table in tables if table.name.startswith("unfit_key_")}
    return Zoo(f"{home}.*", (), tuple(tables), left_out, values, finish)


def _type_tables(home: str, mariadb: bool, version: tuple[int, ...]) -> Iterator[Table]:
    for name, kind, values in _types(mariadb, version):
        if not values:
            continue
        create = f"create table type_{name} (id int primary key, n int, v {kind}, w {kind})"
        columns = {"id": NUMBERS, "n": ("0",), "v": [*values, "null"], "w": list(reversed(values))}
        yield Table(home, f"type_{name}", (create,), columns, other=name not in OTHER_REFUSES)
        if name in KEYS:
            fit = [v for v in values if not v.startswith(("'2024-02-31", "'0000-0"))]
            yield _key_table(home, f"key_{name}", kind.removesuffix(" null"), fit)


def _key_table(home: str, name: str, kind: str, keys: list[str]) -> Table:
    create = f"create table {name} (k {kind} not null primary key, n int, v text)"
    return Table(home, name, (create,), {"k": keys, "n": ("0",), "v": ("'a'", "null")}, ("k",))


def _key_tables(home: str) -> Iterator[Table]:
    texts = [
        "'a'",
        "'A'",
        "'b'",
        "'ä'",
        "'Ä'",
        "'ß'",
        "'ss'",
        "'z'",
        "' '",
        "''",
        "'oe'",
        "'ö'",
        "'%'",
        "'\\\\'",
        "'a '",
    ]
    for collation in COLLATIONS:
        charset = collation.partition("_")[0]
        yield _key_table(
            home, f"collated_{collation}", f"varchar(50) character set {charset} collate {collation}", texts
        )
    yield _key_table(home, "unfit_key_date", "date", DATES)
    yield _key_table(home, "unfit_key_datetime", "datetime", MOMENTS)
    prefix = "create table key_prefix (k varchar(500) not null, n int, v text, primary key (k(5)))"
    yield Table(home, "key_prefix", (prefix,), {"k": texts, "n": ("0",), "v": ("'a'",)}, ("k",))
    two = {"a": NUMBERS[:4], "b": ("'x'", "'y'", "'X'", "'y '"), "n": ("0",), "v": ("'1'",)}
    create = "create table key_two (n int, b varchar(9) not null, v text, a int not null, primary key (b, a))"
    yield Table(home, "key_two", (create,), two, ("b", "a"))
    five = ", ".join(
        f"k{i} {kind} not null" for i, kind in enumerate(("bigint", "smallint", "date", "binary(2)", "int unsigned"))
    )
    pools = {
        "k0": ("1", "2"),
        "k1": ("1", "2"),
        "k2": ("'2024-01-01'",),
        "k3": ("x'00'", "x'ff'"),
        "k4": ("0", "4294967295"),
    }
    yield Table(
        home,
        "key_five",
        (f"create table key_five (n int, {five}, primary key (k3, k1, k0, k2, k4))",),
        {**pools, "n": ("0",)},
        ("k3", "k1", "k0", "k2", "k4"),
    )
    unique = {"id": NUMBERS, "u": ("'a'", "'b'", "'c'", "'d'"), "n": ("0",)}
    yield Table(
        home,
        "unique_key",
        ("create table unique_key (id int, u varchar(9) not null, n int, unique (u))",),
        unique,
        ("u",),
    )
    yield Table(home, "key_only", ("create table key_only (id int primary key)",), {"id": NUMBERS}, counter=None)
    yield Table(
        home,
        "bigint_date",
        ("create table bigint_date (id bigint primary key, n bigint, d date)",),
        {"id": NUMBERS, "n": ("0",), "d": FIT_DATES},
    )
    yield Table(
        home,
        "same_spelled",
        ("create table same_spelled (id bigint primary key, n bigint, t text, j json, b bit(3))",),
        {"id": NUMBERS, "n": ("0",), "t": ("'a'",), "j": ("'1'", "'{\"a\":[]}'"), "b": ("5", "null")},
    )


def _shapes(home: str, mariadb: bool) -> Iterator[Table]:
    plain = {"id": NUMBERS, "n": ("0",), "v": ("'a'", "'b'", "null")}
    base = "id int primary key, n int, v varchar(20)"
    kinds = [
        ("int", "7"),
        ("varchar(20)", "'x'"),
        ("decimal(9,2)", "1.25"),
        ("date", "'2024-01-01'"),
        ("boolean", "true"),
    ]
    wide = ", ".join(f"c{i:03} {kinds[i % 5][0]}" for i in range(300))
    filled = {f"c{i:03}": (kinds[i % 5][1], "null") for i in range(300)}
    yield Table(
        home,
        "wide",
        (f"create table wide (id int primary key, n int, {wide})",),
        {"id": NUMBERS, "n": ("0",), **filled},
    )
    parts = {
        "hash": "partition by hash (id) partitions 3",
        "range": "partition by range (id) (partition p0 values less than (10), partition p1 values less than maxvalue)",
        "list": "partition by list (id % 2) (partition p0 values in (0), partition p1 values in (1))",
        "key": "partition by key () partitions 2",
        "levels": "partition by range (id) subpartition by hash (id) subpartitions 2"
        " (partition p0 values less than (10), partition p1 values less than maxvalue)",
    }
    for kind, clause in parts.items():
        if kind == "list":
            clause = (
                "partition by list (id) ("
                + ", ".join(f"partition p{i} values in ({', '.join(NUMBERS[i::2])})" for i in range(2))
                + ")"
            )
        yield Table(home, f"parted_{kind}", (f"create table parted_{kind} ({base}) {clause}",), plain)
    generated = f"create table generated_columns ({base}, g varchar(30) as (concat(v, '!')) stored, g2 int as (char_length(v)) virtual, after_g int)"
    yield Table(home, "generated_columns", (generated,), {**plain, "after_g": ("1", "null")})
    yield Table(home, "numbered", ("create table numbered (id int auto_increment primary key, n int, v text)",), plain)
    for format_ in ("compact", "redundant", "dynamic", "compressed"):
        yield Table(
            home, f"format_{format_}", (f"create table format_{format_} ({base}) row_format = {format_}",), plain
        )
    altered = (
        "create table altered (gone text, id int primary key, n int)",
        "insert into altered values ('x', 20, 0), ('y', 21, 0)",
        "alter table altered drop column gone, add v varchar(9) first, add d int default 7",
    )
    yield Table(home, "altered", altered, {**plain, "d": ("1", "null")})
    large = {
        "id": NUMBERS[:6],
        "n": ("0",),
        "v": ("repeat('0123456789', 900)", "repeat('ä', 5000)", "null"),
        "b": ("repeat(x'00ff', 9000)", "null"),
    }
    yield Table(home, "large", ("create table large (id int primary key, n int, v longtext, b longblob)",), large)
    defaults = "create table defaults (id int primary key, n int, d datetime(6) default current_timestamp(6) on update current_timestamp(6), t timestamp default current_timestamp on update current_timestamp)"
    yield Table(home, "defaults", (defaults,), {"id": NUMBERS, "n": ("0",)}, counter=None)
    shout = "create trigger shout before insert on triggered for each row set new.v = upper(new.v)"
    yield Table(home, "triggered", (f"create table triggered ({base})", shout), plain)
    yield Table(home, "checked", (f"create table checked ({base}, check (n >= 0))",), plain)
    yield Table(
        home, "text_index", ("create table text_index (id int primary key, n int, v text, fulltext (v))",), plain
    )
    if mariadb:
        yield Table(
            home,
            "periods",
            (
                "create table periods (id int primary key, n int, v text, a date not null, b date not null, period for p (a, b))",
            ),
            {**plain, "a": ("'2024-01-01'",), "b": ("'2025-01-01'", "'9999-12-31'")},
        )
        yield Table(
            home,
            "invisible_column",
            ("create table invisible_column (id int primary key, n int, v int invisible)",),
            {**plain, "v": ("1", "null")},
        )
    else:
        yield Table(
            home,
            "invisible_column",
            ("create table invisible_column (id int primary key, n int, v int invisible)",),
            {**plain, "v": ("1", "null")},
        )
        yield Table(
            home,
            "expression_index",
            ("create table expression_index (id int primary key, n int, v text, key ((n + 1)))",),
            plain,
        )


NAMES = (
    "Upper Case",
    'quo"te',
    "dot.ted",
    "select",
    "table",
    "user",
    "x" * 64,
    "nai\u0308ve",
    "%s %(x)s %",
    "back\\slash",
    "tab\tname",
    "line\nbreak",
    "it's",
    "$1",
    "; drop table x; --",
    "{a}",
    "a*b?[c]",
    "!not",
    "slash/name",
    "`tick`",
    "a,b;c=(d)",
    "case",
    "CASE",
    "_lsn",
    "dblog",
    "s",
    "d",
    "漢字",
)
"""Names of tables and columns. MySQL has no characters above U+FFFF in names."""


def _names(home: str) -> Iterator[Table]:
    for number, name in enumerate(NAMES):
        column = name if name != "_lsn" else "lsn"
        table, odd = (f"`{part.replace('`', '``')}`" for part in (name, column))
        value = ("'a'", "'b'", "null")
        if number % 3 == 0:
            create = f"create table {table} (id int primary key, n int, {odd} varchar(9))"
            yield Table(home, name, (create,), {"id": NUMBERS, "n": ("0",), column: value}, other=len(name) < 64)
        else:
            create = f"create table {table} ({odd} int, n int, v varchar(9), primary key ({odd}))"
            yield Table(home, name, (create,), {column: NUMBERS, "n": ("0",), "v": value}, (column,))


def _cascades(home: str, *, acts: bool) -> Iterator[Table]:
    """Foreign keys of every rule. A lake does not get those whose rows the server changes without a record."""
    yield Table(
        home,
        "parent",
        ("create table parent (id int primary key, code int unique, n int)",),
        {"id": NUMBERS[:8], "code": ("null", *NUMBERS[10:16]), "n": ("0",)},
        truncate=False,
    )
    for rule in ("cascade", "set null", "restrict", "no action"):
        name = f"child_{rule.replace(' ', '_')}"
        create = f"create table {name} (id int primary key, n int, p int, code int, foreign key (p) references parent (id) on delete {rule} on update {rule}, foreign key (code) references parent (code) on delete {rule} on update {rule})"
        yield Table(
            home,
            name,
            (create,),
            {"id": NUMBERS, "n": ("0",), "p": ("null", *NUMBERS[:8]), "code": ("null", "11", "12")},
            truncate=False,
            lake=not (acts and rule in ("cascade", "set null")),
        )
    grand = "create table grandchild (id int primary key, n int, foreign key (id) references child_cascade (id) on delete cascade on update cascade)"
    yield Table(home, "grandchild", (grand,), {"id": NUMBERS, "n": ("0",)}, lake=not acts)


def _left_out(home: str, mariadb: bool) -> tuple[tuple[str, ...], dict[tuple[str, str], str]]:
    no_key = "has no primary key"
    found = {
        "no_key": ("create table no_key (id int, n int)", no_key),
        "unique_null": ("create table unique_null (id int, unique (id))", no_key),
        "unique_prefix": ("create table unique_prefix (v varchar(99) not null, unique (v(5)))", no_key),
        "in_myisam": ("create table in_myisam (id int primary key) engine = MyISAM", "has the engine MyISAM"),
        "in_memory": ("create table in_memory (id int primary key) engine = MEMORY", "has the engine MEMORY"),
        "in_csv": ("create table in_csv (id int not null) engine = CSV", no_key),
        "a_view": ("create view a_view as select * from parent", "is a view"),
        "`updatable view`": ("create view `updatable view` as select id, n from altered", "is a view"),
        "taken": ("create table taken (id int primary key, _lsn int, _op text)", "has columns named _lsn"),
    }
    if mariadb:
        found["in_aria"] = ("create table in_aria (id int primary key) engine = Aria", "has the engine Aria")
        found["versioned"] = (
            "create table versioned (id int primary key) with system versioning",
            "is system-versioned",
        )
    unseen = (
        "create temporary table passing (id int primary key)",
        *(["create sequence a_sequence"] if mariadb else []),
    )
    made = tuple(sql for sql, _ in found.values())
    return (*made, *unseen), {(home, name.strip("`")): words for name, (_, words) in found.items()}
