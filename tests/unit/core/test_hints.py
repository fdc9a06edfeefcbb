"""Hints name a setting as the user would write it."""

from __future__ import annotations

import pytest

from dblog.core.hints import as_flags, in_file

VALUES = """.option("values", '{"public.orders": {"price": "text", "a b": "stop"}}') delivers"""


@pytest.mark.parametrize(
    ("hint", "file", "flags"),
    [
        ('use .option("decimals", "string")', 'use options = { decimals = "string" } in [source]', "decimals=string"),
        ('.option("dump", "never") or not', 'dump = "never" in [source] or not', "--option dump=never or not"),
        ('.option("table", "public.t")', 'tables = ["public.t"] in [source]', "--option table=public.t"),
        ('.option("tables", "public.*")', 'tables = "public.*" in [source]', "--tables 'public.*'"),
        ('.option("values", "stop")', 'values = "stop" in [source]', "--option values=stop"),
        (
            VALUES,
            'values = { price = "text", "a b" = "stop" } in a [[table]] with match = "public.orders" delivers',
            """--option 'values={"public.orders": {"price": "text", "a b": "stop"}}' delivers""",
        ),
        ("nothing to translate", "nothing to translate", "nothing to translate"),
    ],
)
def test_a_hint_is_written_for_a_file_and_for_the_command_line(hint: str, file: str, flags: str) -> None:
    assert in_file(hint) == file
    assert flags in as_flags(hint)
