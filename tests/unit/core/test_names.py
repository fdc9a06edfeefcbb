"""Table names and patterns as users write them."""

from __future__ import annotations

import pytest

from dblog.core.names import parse_patterns, parse_table, qualified, select_tables
from dblog.core.schema import TableName
from dblog.errors import ConfigError

TABLES = [
    TableName("public", "orders"),
    TableName("public", "order_items"),
    TableName("public", "tmp_1"),
    TableName("sales", "orders"),
    TableName("my.schema", 'a "b" c'),
]


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("orders", ("public", "orders")),
        ("sales.orders", ("sales", "orders")),
        (" sales . orders ", ("sales", "orders")),
        ('"my.schema"."a ""b"" c"', ("my.schema", 'a "b" c')),
        ('"a*b"', ("public", "a*b")),
        ("öffentlich.größe", ("öffentlich", "größe")),
    ],
)
def test_a_table_is_named_by_one_or_two_parts(text: str, table: tuple[str, str]) -> None:
    assert parse_table(text) == TableName(*table)


@pytest.mark.parametrize(
    "text", ["", " ", "a.b.c", "a.", ".a", "a b", "a,,b", "a,", "!a", "a,b", "a*", '"a', "public.*", "a!b"]
)
def test_what_does_not_name_one_table_is_refused_with_the_option_and_the_value(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_table(text, "table")
    assert "'table'" in caught.value.message
    assert repr(text) in caught.value.message


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ("public.*", ["public.order_items", "public.orders", "public.tmp_1"]),
        ("public.*, !public.tmp_*", ["public.order_items", "public.orders"]),
        ("*.orders", ["public.orders", "sales.orders"]),
        ("order?", ["public.orders"]),
        ("*.*, !sales.*, !public.*", ['my.schema.a "b" c']),
        ('"my.schema".*', ['my.schema.a "b" c']),
        ("public.order_items", ["public.order_items"]),
        ('"public"."order*"', []),
    ],
)
def test_patterns_include_and_exclude(patterns: str, names: list[str]) -> None:
    assert [str(t) for t in select_tables(parse_patterns(patterns), TABLES)] == names


@pytest.mark.parametrize(
    ("text", "schema", "full"),
    [
        ("orders", "shop", "shop.orders"),
        ("shop.orders", "shop", "shop.orders"),
        ("shop . orders ,other.*", "shop", "shop . orders ,other.*"),
        ("a, !b_*, other.c,d ", "shop", "shop.a, !shop.b_*, other.c,shop.d "),
        ('"a.b", "x"."y", "q""r"', "shop", 'shop."a.b", "x"."y", shop."q""r"'),
        ("orders", "odd name", '"odd name".orders'),
        ("orders", 'a"*', '"a""*".orders'),
        ("orders", "", '"".orders'),
    ],
)
def test_a_name_without_a_schema_is_given_one(text: str, schema: str, full: str) -> None:
    assert qualified(text, schema) == full
    tables = [TableName(s, t) for s in (schema, "other", "x") for t in ("orders", "a", "b_1", "c", "d", "y", "a.b")]
    given, same = (parse_patterns(each, default_schema=schema) for each in (text, full))
    assert [tuple(map(p.matches, tables)) for p in given] == [tuple(map(p.matches, tables)) for p in same]


def test_an_underscore_is_not_a_wildcard() -> None:
    assert select_tables(parse_patterns("public.order_"), TABLES) == ()
