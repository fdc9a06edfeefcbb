"""A log of MySQL or MariaDB that was reset has other transactions at our positions."""

from __future__ import annotations

import time

import pytest

from dblog.errors import PositionLost
from tests.conftest import EVERY_MYSQL_SERVER
from tests.engine.conftest import MakeQuery, on
from tests.engine.query import Query
from tests.families import OnMySQL

pytestmark = [pytest.mark.server, on(EVERY_MYSQL_SERVER)]


@pytest.mark.parametrize("files", [0, 1, 3])
def test_a_log_that_was_reset_is_a_lost_position(table: OnMySQL, query: MakeQuery, files: int) -> None:
    """Our file is missing, or is another one that is shorter, and perhaps not the last."""
    table.reset_log()
    table.execute(*["flush binary logs"] * (files != 1), "update t set n = 3 where id = 9")
    stream = query()
    stream.catch_up()
    stream.stop()
    table.reset_log()
    table.execute("select 1", *["flush binary logs"] * files)
    reset(stream)


@pytest.mark.parametrize("rotated", [False, True])
def test_a_log_that_is_reset_under_a_running_stream_is_a_lost_position(
    table: OnMySQL, query: MakeQuery, rotated: bool
) -> None:
    table.execute(*["flush binary logs"] * rotated, "update t set n = 3 where id = 9")
    stream = query(heartbeatSeconds=1)
    stream.catch_up()
    table.reset_log()
    table.execute("update t set n = 1 where id = 5")
    reset(stream)


def test_a_log_that_was_reset_and_has_grown_to_our_place_again_is_a_lost_position(
    table: OnMySQL, query: MakeQuery
) -> None:
    """The worst case: what is at our place is the beginning of an event, and no file is missing."""
    table.reset_log()
    table.execute("create table pad (t text)", f"insert into pad values ('{'x' * 20_000}')")
    stream = query()
    stream.catch_up()
    stream.stop()
    file, place = table.log_end
    time.sleep(1)  # a file says the second in which it was begun
    table.reset_log()
    table.execute("update t set n = 1 where id = 5")
    grow(table, place)
    assert table.log_end == (file, place)
    table.execute("update t set n = 2 where id = 6")
    reset(stream)


def grow(table: OnMySQL, place: int) -> None:
    """Have the log end at this very place of its file."""
    sizes = []
    for length in (300, 300):
        before = table.log_end[1]
        table.execute(f"insert into pad values ('{'x' * length}')")
        sizes.append(table.log_end[1] - before)
    assert sizes[0] == sizes[1]
    left = place - table.log_end[1] - 2 * sizes[0]
    # A row is in the log twice where the statement is noted beside it.
    twice = table.execute("select @@version like '%MariaDB%'")[0][0]
    if twice and left % 2:
        table.execute("insert into pad values (repeat('x', 301))")
        left = place - table.log_end[1] - 2 * sizes[0]
    first = 300 + left // (2 if twice else 1)
    table.execute(f"insert into pad values ('{'x' * first}')", f"insert into pad values ('{'x' * 300}')")


def reset(stream: Query) -> None:
    """The stream ends, with the advice for a log that was reset and not for one that has expired."""
    with pytest.raises(PositionLost) as caught:
        stream.until(lambda: False, seconds=10)
    assert "the log was reset" in (caught.value.hint or "")
    assert "start with a new checkpoint" in (caught.value.hint or "")
    assert "expire" not in str(caught.value)
