from __future__ import annotations

import pytest

from dblog.core.condition import check_condition, probe_statement
from dblog.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    [
        "n > 1",
        "state = 'it''s; done' AND (a OR b)",
        '"odd;name" = 7',
        "doc ->> '$.a' = '--'",
        "name like '%(%'",
        "id in (select id from other)",
        "doc #>> '{a,b}' = 'x'",
        "name = '#\n'",
    ],
)
def test_an_expression_passes(text: str) -> None:
    check_condition(text)


@pytest.mark.parametrize(
    "text",
    [
        "true); drop table t; --",
        "n > 1; select 1",
        "n > 1 -- and more",
        "n > 1 /* and more */",
        "true) or (true",
        "(n > 1",
        "n > 1)",
        "name = 'open",
        '"open',
        r"name = E'\' or 1=1'",
        "name = $$x$$",
        " ",
        "",
        "a\0b",
        "1 # '\n) into outfile '/tmp/x' # '",
    ],
)
def test_what_could_leave_its_parentheses_does_not(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_condition(text)
    assert repr(text) in refused.value.message


def test_a_probe_is_a_subquery_of_one_statement() -> None:
    assert probe_statement(" select count(*) from t;\n") == "select * from (select count(*) from t) as probe"


@pytest.mark.parametrize(
    "text", ["commit; delete from t", "select 1) x; set transaction read write; select (1", ";", ""]
)
def test_a_probe_cannot_leave_its_parentheses(text: str) -> None:
    with pytest.raises(ConfigError, match="the probe"):
        probe_statement(text)
