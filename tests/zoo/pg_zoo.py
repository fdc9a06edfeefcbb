"""The zoo of PostgreSQL: every type that the server has, as value and as key, and every shape of table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psycopg2

from tests.families import OnPostgres
from tests.zoo.pg_values import FAR, LONG, NO_INPUT, PROBES, UNFIT_KEYS, VALUES
from tests.zoo.tables import NUMBERS, Table, Zoo, quoted

ZOO = "zoo"
ODD = 'Odd "Schema". ü'
BOX = 'pg_catalog."box"'
"""A known gap: an array of two dimensions of a domain over box, whose items are separated by semicolons, cannot be
written to the text array that its column is in a target."""
EXTENSIONS = ("citext", "hstore", "ltree", "cube", "seg", "isn", "intarray", "lo", "vector", "btree_gist")
"""Those with types of their own; of them, those that are installed."""
PREPARE = (
    f"create schema {ZOO}",
    'create schema "Odd ""Schema"". ü"',
    "create schema ext",
    "create function zoo.own_function() returns int language sql as 'select 1'",
    "create table zoo.kept_table (id int primary key)",
    "create type zoo.own_enum as enum ('', 'a', 'A', 'it''s', 'ü \\ \"')",
    "create domain zoo.d_text as text check (length(value) < 2000)",
    "create domain zoo.dd_text as zoo.d_text not null",
    "create domain zoo.d_ints as int[]",
    "create type zoo.pair as (a int, b text)",
    "create type zoo.nested as (p zoo.pair, q zoo.pair[], e zoo.own_enum)",
    "create domain zoo.d_pair as zoo.pair",
    "create type zoo.own_range as range (subtype = text)",
)
COLLATIONS = (
    "create collation zoo.german (provider = icu, locale = 'de-u-co-phonebk')",
    "create collation zoo.no_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
)
"""For servers that are built with ICU."""
_COLLATIONS = """
select quote_ident(n.nspname) || '.' || quote_ident(c.collname), c.collname
from pg_collation c join pg_namespace n on n.oid = c.collnamespace
where collname in ('C', 'POSIX', 'german', 'no_case', 'und-x-icu', 'pg_c_utf8', 'pg_unicode_fast', 'ucs_basic', 'C.utf8')
and collencoding in (-1, 6)
"""
_TYPES = """
select t.typname, n.nspname, t.typtype, exists (
    select 1 from pg_opclass o join pg_am a on a.oid = o.opcmethod
    where a.amname = 'btree' and o.opcdefault and (o.opcintype = t.oid or (t.typtype = 'r' and o.opcintype = 'anyrange'::regtype)))
from pg_type t join pg_namespace n on n.oid = t.typnamespace
where n.nspname in ('pg_catalog', 'ext') and t.typtype in ('b', 'r', 'm')
  and not exists (select 1 from pg_type e where e.typarray = t.oid)
order by 2 desc, 1
"""


def prepare(database: OnPostgres) -> None:
    """Make what tables need, before the zoo is asked for."""
    for statement in PREPARE:
        database.execute(statement)
    for extension in EXTENSIONS:
        with suppress(psycopg2.Error):
            database.execute(f"create extension {extension} schema ext")
    for statement in COLLATIONS:
        with suppress(psycopg2.Error):
            database.execute(statement)


def zoo(database: OnPostgres) -> Zoo:
    """The zoo of a server, after `prepare`."""
    tables = [
        Table(ZOO, "kept_table", (), {"id": NUMBERS}, counter=None),
        *_type_tables(database),
        *_own_types(),
        *_key_tables(database),
        *_shapes(database),
        *_names(),
        *_cascades(),
    ]
    patterns = f'{ZOO}.*, "{ODD.replace(chr(34), chr(34) * 2)}".*'
    values = {f"{ZOO}.{table.name}": "text" for table in tables if table.name.startswith("unfit_key_")}
    finish, left_out = _left_out()
    return Zoo(patterns, (), tuple(tables), left_out, values, finish)


# -- types -----------------------------------------------------------------------------------------------------------


def _type_tables(database: OnPostgres) -> Iterator[Table]:
    unknown = set()
    for name, schema, _, ordered in database.execute(_TYPES):
        texts = [text for text in VALUES.get(name, PROBES) if _accepts(database, schema, name, text)]
        if not texts:
            unknown |= {name} - NO_INPUT
            continue
        spelled = f'{schema}."{name}"'
        yield _values_table(f"type_{name}", spelled, texts, other=True)
        if name in FAR:
            yield _values_table(f"far_{name}", spelled, FAR[name], other=False)
        if ordered:
            yield _key_table(f"key_{name}", spelled, texts)
            if name in ("float4", "float8", "date"):
                yield _key_table(f"key_far_{name}", spelled, FAR[name], other=False)
    assert not unknown, f"the server has types of which the zoo knows no value: {sorted(unknown)}"


def _accepts(database: OnPostgres, schema: str, name: str, text: str) -> bool:
    try:
        database.execute(f'select {quoted(text)}::{schema}."{name}" is null')
    except psycopg2.Error:
        return False
    return True


def _values_table(name: str, kind: str, texts: list[str], *, other: bool) -> Table:
    """A column of the type, an array, a domain, an array of the domain, and a composite."""
    one = [f"{quoted(text)}::{kind}" for text in texts]
    last = one[-1]
    arrays = [f"array[{', '.join(one)}]", f"'{{}}'::{kind}[]", f"array[null, {last}]"]
    arrays += [f"array[[{one[0]}], [{last}]]", f"('[3:3]=' || array[{last}]::text)::{kind}[]"]
    domain, pair = f'zoo."d_{name}"', f'zoo."c_{name}"'
    return Table(
        ZOO,
        name,
        (
            f"create domain {domain} as {kind}",
            f"create type {pair} as (a {kind}, b {kind}[])",
            f'create table zoo."{name}" (id int primary key, n int, v {kind}, a {kind}[], d {domain},'
            f" da {domain}[], c {pair})",
        ),
        {
            "id": NUMBERS,
            "n": ("0",),
            "v": [*one, "null"],
            "a": [*arrays, "null"],
            "d": [*(f"{text}::{domain}" for text in one), "null"],
            "da": [f"{array}::{domain}[]" for array in (arrays[:3] if kind == BOX else arrays)],
            "c": [f"row({text}, {array})::{pair}" for text, array in zip(one, arrays, strict=False)],
        },
        other=other,
    )


def _key_table(name: str, kind: str, texts: list[str], *, other: bool = True, collation: str = "") -> Table:
    keys = [f"{quoted(text)}::{kind}" for text in texts if len(text) < 700 and text not in LONG]
    create = f'create table zoo."{name}" (k {kind} {collation} primary key, n int, v text)'
    return Table(ZOO, name, (create,), {"k": keys, "n": ("0",), "v": ("'a'", "null")}, ("k",), other=other)


def _own_types() -> Iterator[Table]:
    kinds = {
        "own_enum": ["''", "'a'", "'A'", "'it''s'", "'ü \\ \"'"],
        "dd_text": ["''", "'a'", "'x'"],
        "d_ints": ["'{1,NULL}'", "'{}'", "'{{1},{2}}'"],
        "pair": ["'(1,\"a b\")'", "'(,)'", "'(2,\"\")'"],
        "nested": ["""row(row(1, 'a"')::zoo.pair, array[row(2, null)::zoo.pair], 'a')""", "'(,,)'"],
        "d_pair": ["'(1,a)'", "'(,)'"],
        "own_range": ["'empty'", "'[a,b)'", "'(,)'"],
        "own_multirange": ["'{}'", "'{[a,b),[c,d)}'"],
    }
    for name, texts in kinds.items():
        one = [f"{text}::zoo.{name}" for text in texts]
        create = f"create table zoo.own_{name}_values (id int primary key, n int, v zoo.{name}, a zoo.{name}[])"
        arrays = [f"array[{', '.join(one)}]", f"'{{}}'::zoo.{name}[]"]
        yield Table(ZOO, f"own_{name}_values", (create,), {"id": NUMBERS, "n": ("0",), "v": one, "a": arrays})
        if name not in ("d_ints",):
            yield _key_table(
                f"own_{name}_key", f"zoo.{name}", [t.strip("'").replace("''", "'") for t in texts if t[0] == "'"]
            )


def _key_tables(database: OnPostgres) -> Iterator[Table]:
    texts = ["a", "A", "b", "ä", "Ä", "ß", "ss", "z", " ", "", "\u00e4\U0001f418", "oe", "ö", "%", "\\"]
    for collation, name in database.execute(_COLLATIONS):
        yield _key_table(f"collated_{name}", "text", texts, collation=f"collate {collation}")
    yield _key_table("key_char_5", "char(5)", ["a", "ab", "", "äöü"])
    yield _key_table("key_varchar_9", "varchar(9)", ["a", "ab", "", "a ", "äöü"])
    yield _key_table("key_decimal", "numeric(10,3)", ["0", "-1.5", "9999999.999", "0.001"])
    yield _key_table("key_decimal_38", "numeric(38,0)", ["0", "9" * 38, "-" + "9" * 38])
    yield _key_table("key_decimal_50", "numeric(50,10)", ["0", "9" * 40, "-1.5"])
    yield _key_table("key_array", "int4[]", ["{}", "{1}", "{1,2}", "{NULL}", "{2,NULL}"])
    yield _key_table("key_array_text", "text[]", ["{}", "{a}", '{"a,b"}', "{NULL}", '{"NULL"}'])
    for number, (kind, values) in enumerate(UNFIT_KEYS.items()):
        yield _key_table(f"unfit_key_{number}", kind, values)
    two = {"a": NUMBERS[:4], "b": ("'x'", "'y'", "'X'"), "n": ("0",), "v": ("'1'",)}
    yield Table(
        ZOO,
        "key_two",
        ("create table zoo.key_two (n int, b text, v text, a int, primary key (b, a))",),
        two,
        ("b", "a"),
    )
    five = {f"k{i}": ("1", "2") for i in range(5)}
    yield Table(
        ZOO,
        "key_five",
        (
            "create table zoo.key_five (k4 int, n int, k0 bigint, k1 smallint, k2 int, k3 int, primary key (k3, k1, k0, k2, k4))",
        ),
        {**five, "n": ("0",)},
        ("k3", "k1", "k0", "k2", "k4"),
    )
    unique = {"id": NUMBERS, "u": ("'a'", "'b'", "'c'", "'d'"), "n": ("0",)}
    create = "create table zoo.{} (id int, u text not null unique, n int)"
    yield Table(
        ZOO,
        "unique_index",
        (create.format("unique_index"), "alter table zoo.unique_index replica identity using index unique_index_u_key"),
        unique,
        ("u",),
    )
    yield Table(
        ZOO,
        "unique_full",
        (create.format("unique_full"), "alter table zoo.unique_full replica identity full"),
        unique,
        ("u",),
    )
    yield Table(
        ZOO,
        "primary_full",
        (
            "create table zoo.primary_full (id int primary key, n int, v text)",
            "alter table zoo.primary_full replica identity full",
        ),
        {"id": NUMBERS, "n": ("0",), "v": ("repeat('long', 900)", "'x'", "null")},
    )
    yield Table(ZOO, "key_only", ("create table zoo.key_only (id int primary key)",), {"id": NUMBERS}, counter=None)


# -- shapes of tables ------------------------------------------------------------------------------------------------


def _shapes(database: OnPostgres) -> Iterator[Table]:
    plain = {"id": NUMBERS, "n": ("0",), "v": ("'a'", "'b'", "null")}
    many = [f"c{i:03}" for i in range(300)]
    kinds = [("int", "7"), ("text", "'x'"), ("numeric(9,2)", "1.25"), ("date", "'2024-01-01'"), ("bool", "true")]
    wide = ", ".join(f"{name} {kinds[i % 5][0]}" for i, name in enumerate(many))
    filled = {name: (kinds[i % 5][1], "null") for i, name in enumerate(many)}
    yield Table(
        ZOO,
        "wide",
        (f"create table zoo.wide (id int primary key, n int, {wide})",),
        {"id": NUMBERS, "n": ("0",), **filled},
    )
    yield Table(
        ZOO,
        "parted",
        (
            "create table zoo.parted (id int, d date, r text, n int, v text, primary key (id, d, r)) partition by range (d)",
            "create table zoo.parted_old partition of zoo.parted for values from (minvalue) to ('2024-01-01')",
            "create table zoo.parted_new partition of zoo.parted for values from ('2024-01-01') to ('2025-01-01')"
            " partition by list (r)",
            "create table zoo.parted_new_a partition of zoo.parted_new for values in ('a') partition by hash (id)",
            *(
                f"create table zoo.parted_new_a{i} partition of zoo.parted_new_a for values with (modulus 2, remainder {i})"
                for i in range(2)
            ),
            "create table zoo.parted_new_rest (v text, n int, junk int, r text not null, d date not null, id int not null)",
            "alter table zoo.parted_new_rest drop column junk, add primary key (id, d, r)",
            "alter table zoo.parted_new attach partition zoo.parted_new_rest default",
            "create table zoo.parted_rest partition of zoo.parted default",
        ),
        {
            "id": NUMBERS[:6],
            "d": ("'2023-05-05'", "'2024-05-05'", "'2030-01-01'"),
            "r": ("'a'", "'b'", "'ü'"),
            "n": ("0",),
            "v": ("'x'", "null"),
        },
        ("id", "d", "r"),
        truncate=False,
    )
    yield Table(
        ZOO,
        "child",
        (
            "create table zoo.ancestor (id int primary key, n int, v text)",
            "create table zoo.child (w text, primary key (id)) inherits (zoo.ancestor)",
        ),
        {**plain, "w": ("'w'",)},
    )
    yield Table(
        ZOO,
        "generated",
        (
            "create table zoo.generated (id int primary key, n int, v text, g text generated always as (v || '!') stored"
            + (", g2 int generated always as (n * 2))" if database.server.version.startswith("18") else ")"),
        ),
        plain,
    )
    yield Table(
        ZOO,
        "identities",
        (
            "create table zoo.identities (id int generated by default as identity primary key,"
            " a bigint generated always as identity, s bigserial, n int, v text)",
        ),
        plain,
    )
    yield Table(
        ZOO,
        "altered",
        (
            "create table zoo.altered (gone text, id int primary key, n int, also_gone int[])",
            "insert into zoo.altered select 'x', i, 0 from generate_series(20, 24) i",
            "alter table zoo.altered drop column gone, drop column also_gone, add v text, add d int default 7",
        ),
        {**plain, "d": ("1", "null")},
    )
    yield Table(
        ZOO,
        "large",
        (
            "create table zoo.large (id int primary key, n int, v text, a int[], j jsonb)",
            "alter table zoo.large alter v set storage external, alter a set storage external",
        ),
        {
            "id": NUMBERS[:6],
            "n": ("0",),
            "v": ("repeat('0123456789', 900)", "repeat('\u00e4', 5000)", "null", "'x'"),
            "a": ("array_fill(7, array[3000])", "array_fill(7, array[2, 2000])", "null"),
            "j": ("to_jsonb(repeat('j', 9000))", "'1'"),
        },
    )
    yield Table(
        ZOO,
        "of_type",
        (
            "create type zoo.row_type as (id int, n int, v text)",
            "create table zoo.of_type of zoo.row_type (primary key (id))",
        ),
        plain,
    )
    yield Table(
        ZOO,
        "secured",
        (
            "create table zoo.secured (id int primary key, n int, v text)",
            "alter table zoo.secured enable row level security",
        ),
        plain,
    )
    yield Table(
        ZOO,
        "of_extension",
        (
            "create table zoo.of_extension (id int primary key, n int, v text)",
            "alter extension citext add table zoo.of_extension",
        ),
        plain,
    )
    yield Table(
        ZOO,
        "triggered",
        (
            "create table zoo.triggered (id int primary key, n int, v text)",
            "create function zoo.shout() returns trigger language plpgsql as $$ begin new.v := upper(new.v); return new; end $$",
            "create trigger shout before insert or update on zoo.triggered for each row execute function zoo.shout()",
        ),
        plain,
    )
    yield Table(
        ZOO,
        "limited",
        (
            "create table zoo.limited (id int primary key, n int, c char(7), vc varchar(3), b bit(5),"
            " vb varbit(9), t time(2), ts timestamp(0), tz timestamptz(3), iv interval day to second(1), num numeric(5,2),"
            " neg numeric(3,-2), small numeric(3,5), big numeric(1000,500), nan numeric(4,1))",
        ),
        {
            "id": NUMBERS,
            "n": ("0",),
            "c": ("'a'", "''", "'äöüßxyz'"),
            "vc": ("'abc'", "''"),
            "b": ("B'10101'", "B'00000'"),
            "vb": ("B''", "B'101010101'"),
            "t": ("'23:59:59.994'",),
            "ts": ("'2024-01-01 00:00:00.6'",),
            "tz": ("'2024-01-01 00:00:00.0006Z'",),
            "iv": ("'3 days 04:05:06.78'",),
            "num": ("999.99", "-0.01", "null"),
            "neg": ("12300", "-99900"),
            "small": ("0.00999", "-0.00001"),
            "big": ("1e499", "-1e-500"),
            "nan": ("'NaN'", "999.9", "-0.1"),
        },
    )
    if database.server.version.startswith("18"):
        yield Table(
            ZOO,
            "not_enforced",
            ("create table zoo.not_enforced (id int primary key, n int, v text check (v <> 'a') not enforced)",),
            plain,
        )


NAMES = (
    "Upper Case",
    'quo"te',
    "dot.ted",
    "select",
    "table",
    "user",
    "x" * 63,
    "\U0001f418 elephant",
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
    "..",
    "`tick`",
    "a,b;c=(d)",
    "case",
    "CASE",
    "_lsn",
    "dblog",
    "s",
    "d",
)


def _names() -> Iterator[Table]:
    for number, name in enumerate(NAMES):
        schema = ODD if number % 2 else ZOO
        column = name if name != "_lsn" else "lsn"
        table, odd, home = (f'"{part.replace(chr(34), chr(34) * 2)}"' for part in (name, column, schema))
        value = ("'a'", "'b'", "null")
        if number % 3 == 0:
            create = f"create table {home}.{table} (id int primary key, n int, {odd} text)"
            yield Table(
                schema, name, (create,), {"id": NUMBERS, "n": ("0",), column: value}, other=max(name) < "\uffff"
            )
        else:
            create = f"create table {home}.{table} ({odd} int, n int, v text, primary key ({odd}))"
            rest = {column: NUMBERS, "n": ("0",), "v": value}
            yield Table(schema, name, (create,), rest, (column,), other=max(name) < "\uffff")  # MySQL has no such names


def _cascades() -> Iterator[Table]:
    yield Table(
        ZOO,
        "parent",
        ("create table zoo.parent (id int primary key, code text unique, n int)",),
        {"id": NUMBERS[:8], "code": ("null", *(f"'c{i}'" for i in range(6))), "n": ("0",)},
        truncate=False,
    )
    for rule in ("cascade", "set null", "set default", "restrict", "no action"):
        name = f"child_{rule.replace(' ', '_')}"
        create = f"create table zoo.{name} (id int primary key, n int, p int default 1 references zoo.parent on delete {rule} on update {rule}, code text references zoo.parent (code) on delete {rule} on update {rule})"
        yield Table(
            ZOO,
            name,
            (create,),
            {"id": NUMBERS, "n": ("0",), "p": ("null", *NUMBERS[:8]), "code": ("null", "'c1'", "'c2'")},
        )
    yield Table(
        ZOO,
        "grandchild",
        (
            "create table zoo.grandchild (id int primary key references zoo.child_cascade on delete cascade on update cascade, n int)",
        ),
        {"id": NUMBERS, "n": ("0",)},
    )
    yield Table(
        ZOO,
        "itself",
        (
            "create table zoo.itself (id int primary key, n int, p int references zoo.itself on delete cascade on update cascade)",
        ),
        {"id": NUMBERS, "n": ("0",), "p": ("null", *NUMBERS[:8])},
    )


# -- what is left out ------------------------------------------------------------------------------------------------


def _left_out() -> tuple[tuple[str, ...], dict[tuple[str, str], str]]:
    """Statements that make what cannot be followed, and the reasons."""
    no_key = "has no primary key"
    found = {
        "ancestor": ("", "has children by inheritance"),
        "no_key": ("create table zoo.no_key (id int, n int)", no_key),
        "no_columns": ("create table zoo.no_columns ()", no_key),
        "unique_null": ("create table zoo.unique_null (id int unique)", no_key),
        "unique_part": (
            "create table zoo.unique_part (id int not null); create unique index on zoo.unique_part (id) where id > 0",
            no_key,
        ),
        "unique_expression": (
            "create table zoo.unique_expression (id int not null); create unique index on zoo.unique_expression ((id + 1))",
            no_key,
        ),
        "unique_not_identity": ("create table zoo.unique_not_identity (id int not null unique)", "replica identity"),
        "deferred": ("create table zoo.deferred (id int primary key deferrable initially deferred)", "is deferrable"),
        "identity_nothing": (
            "create table zoo.identity_nothing (id int primary key); alter table zoo.identity_nothing replica identity nothing",
            "replica identity",
        ),
        "identity_other": (
            "create table zoo.identity_other (id int primary key, u int not null unique); alter table zoo.identity_other replica identity using index identity_other_u_key",
            "replica identity",
        ),
        "key_generated": (
            "create table zoo.key_generated (a int, g int generated always as (a + 1) stored primary key)",
            "generated",
        ),
        "parted_no_key": (
            "create table zoo.parted_no_key (id int) partition by range (id); create table zoo.parted_no_key_1 partition of zoo.parted_no_key default",
            no_key,
        ),
        "unlogged": ("create unlogged table zoo.unlogged (id int primary key)", "is unlogged"),
        "parted_unlogged": (
            "create table zoo.parted_unlogged (id int primary key) partition by range (id); create unlogged table zoo.parted_unlogged_1 partition of zoo.parted_unlogged default",
            "unlogged",
        ),
        "foreign_table": (
            "create foreign data wrapper none; create server none foreign data wrapper none; create foreign table zoo.foreign_table (id int) server none",
            "is a foreign table",
        ),
        "a_view": ("create view zoo.a_view as select * from zoo.parent", "is a view"),
        "updatable view": (
            'create view zoo."updatable view" as select id, n from zoo.itself with check option',
            "is a view",
        ),
        "kept_view": (
            "create materialized view zoo.kept_view as select * from zoo.parent; create unique index on zoo.kept_view (id)",
            "is a materialized view",
        ),
        "taken": ("create table zoo.taken (id int primary key, _lsn int, _op text)", "has columns named _lsn"),
    }
    unseen = ("create sequence zoo.a_sequence", "create index on zoo.parent (n)", "create type zoo.seen as (a int)")
    made = [sql for sql, _ in found.values() if sql]
    return (*made, *unseen), {(ZOO, name): words for name, (_, words) in found.items()}
