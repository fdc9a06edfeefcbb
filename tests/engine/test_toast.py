"""Large values that PostgreSQL leaves out of its log when they do not change."""

from __future__ import annotations

import pytest

from tests.engine.conftest import check, on_postgres
from tests.engine.query import Query
from tests.families import OnPostgres

pytestmark = [pytest.mark.server, on_postgres]


def test_a_large_value_that_the_log_leaves_out_is_taken_from_the_dropped_row(
    window: Query, database: OnPostgres
) -> None:
    database.execute("update t set n = 1 where id = 5")
    database.execute("update t set n = 2 where id = 5")
    check(window, database)
    first, second = window.history.of(5)
    assert first["_unchanged"] is second["_unchanged"] is None
    assert first["big"] == second["big"] == database.execute("select big from t where id = 5")[0][0]


def test_a_large_value_is_not_taken_from_a_row_that_might_be_older(window: Query, database: OnPostgres) -> None:
    """The chunk has the value from before: it must not be put into a change that came after the value changed."""
    database.execute(f"update t set big = {database.large} where id = 5")
    database.execute("update t set n = 2 where id = 5")
    check(window, database)
    assert [e["_unchanged"] for e in window.history.of(5)] == [None, ["big"]]


@pytest.mark.parametrize("dumped", [False, True], ids=["while dumping", "when dumped"])
def test_a_moved_row_whose_large_value_the_log_leaves_out_is_read_again(
    window: Query, database: OnPostgres, dumped: bool
) -> None:
    if dumped:
        window.catch_up()
    database.execute("update t set id = 105 where id = 5")
    check(window, database)
    create, read = window.history.of(105)
    assert (create["_op"], create["_unchanged"]) == ("create", ["big"])
    assert (read["_op"], read["_dump"]) == ("read", "repair")


def test_a_moved_row_that_moves_on_is_repaired_where_it_ends(window: Query, database: OnPostgres) -> None:
    window.catch_up()
    database.execute("update t set id = 105 where id = 5")
    database.execute("update t set id = 205 where id = 105")
    check(window, database)


def test_a_large_value_that_did_not_change_is_named_and_kept(window: Query, database: OnPostgres) -> None:
    window.catch_up()
    database.execute("update t set n = 1 where id = 5")
    check(window, database)
    assert window.history.of(5)[-1]["_unchanged"] == ["big"]
    assert window.history.of(5)[-1]["big"] is None
