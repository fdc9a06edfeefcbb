"""Problems of many tables are few paragraphs."""

from __future__ import annotations

import pytest

from dblog.core.names import shortened
from dblog.core.schema import TableName
from dblog.errors import PreconditionFailed
from dblog.sources.problems import Problem, left_out, paragraphs, refuse


def keyless(number: int, **more: bool) -> Problem:
    table = TableName("public", f"a_table_with_a_long_name_{number:04d}")
    fix = f"choose its columns: ALTER TABLE {table} ADD PRIMARY KEY (...);"
    return Problem(f"table {str(table)!r} has no key", fix, table=table, reason="no key", **more)


def test_a_name_list_ends_with_the_number_of_the_others() -> None:
    assert shortened(["a", "b"], 1) == "a, b"  # "and 1 more" is no shorter
    assert shortened(["a", "b", "c"], 1) == "a and 2 more"
    assert shortened(["a", "b", "c"], None) == "a, b, c"


def test_problems_of_one_reason_are_one_paragraph() -> None:
    server = Problem("the server is a standby", "connect to the primary")
    alone = Problem("table 's.t' is unlogged", "ALTER ...", table=TableName("s", "t"), reason="unlogged")
    found = paragraphs([keyless(1), server, keyless(2), alone, keyless(3, fatal=False), keyless(1)])
    assert [p.what for p in found] == ["2 tables: no key", server.what, alone.what, keyless(3).what]
    assert found[0].tables() == "public.a_table_with_a_long_name_0001, public.a_table_with_a_long_name_0002"
    assert found[0].fixes() == [keyless(1).fix, keyless(2).fix]
    assert found[1].tables() == ""


def test_a_fix_that_is_the_same_for_all_is_there_once() -> None:
    views = [
        Problem(f"'s.{n}' is a view", "capture the tables behind it", table=TableName("s", n), reason="views")
        for n in "abc"
    ]
    assert paragraphs(views)[0].fixes() == ["capture the tables behind it"]


def test_a_thousand_tables_are_readable_on_one_screen() -> None:
    with pytest.raises(PreconditionFailed) as caught:
        refuse([keyless(n) for n in range(1000)])
    said = str(caught.value)
    assert "1000 problems" in said
    assert "and 988 more\n" in said
    assert "-- and 996 more lines: dblog check --verbose prints all" in said
    assert len(said.splitlines()) < 10
    (paragraph,) = paragraphs([keyless(n) for n in range(1000)])
    assert len(paragraph.fixes(None)) == 1000
    assert paragraph.tables(None).count(",") == 999


def test_a_statement_about_a_thousand_tables_is_shortened() -> None:
    publication = Problem("publication 'p' does not exist", "CREATE PUBLICATION p FOR TABLE " + "t, " * 1000)
    (line,) = paragraphs([publication])[0].fixes()
    assert len(line) < 450
    assert line.endswith(" ...  -- dblog check --verbose prints all")
    assert paragraphs([publication])[0].fixes(None) == [publication.fix]


def test_what_is_left_out_does_not_refuse() -> None:
    marked = left_out({TableName("s", "t"): [keyless(1)]})
    assert [(p.fatal, p.left_out) for p in marked] == [(False, True)]
    refuse(marked)
