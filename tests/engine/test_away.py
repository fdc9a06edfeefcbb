"""Tables that have another name, or none, while a stream starts or dumps them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dblog.errors import PreconditionFailed
from tests.engine.conftest import MakeQuery, on_every, on_mysql, on_postgres
from tests.engine.query import Query
from tests.families import AnyDatabase, OnMySQL, OnPostgres

pytestmark = pytest.mark.server

Started = Callable[..., Query]


@pytest.fixture
def started(table: AnyDatabase, query: MakeQuery) -> Started:
    """A stream of all tables of the database but those called spare."""

    def start(**options: object) -> Query:
        table.execute("create table u (id int primary key, n int)")
        patterns = f"{table.schema}.*, !{table.schema}.spare*"
        return query(tables=patterns, key=("_table", "id"), parallelism=1, heartbeatSeconds=1, **options)

    return start


def rows(stream: Query) -> dict[int, int]:
    return {key[1]: row["n"] for key, row in stream.history.state().items() if key[0] == "t"}


def check(stream: Query, database: AnyDatabase) -> None:
    stream.catch_up()
    stream.history.check_order()
    assert rows(stream) == {row["id"]: row["n"] for row in database.rows("t")}


LEAVE = ("alter table t rename to spare_t", "update spare_t set n = 1 where id = 7", "delete from spare_t where id = 9")
RETURN = ("alter table spare_t rename to t", "update t set n = 2 where id = 8")
DROP = ("drop table t",)
CREATE = ("create table t (id int primary key, n int)", "insert into t values (1, 5), (99, 9)")
CREATE_UNLESS = (CREATE[0].replace("table", "table if not exists"), CREATE[1])
OTHER = ("create table spare_n (id int primary key, n int)", "insert into spare_n values (3, 3)")
COME = ("alter table spare_n rename to t",)


@on_every
@pytest.mark.parametrize("seen", ["before it stops", "when it starts"])
@pytest.mark.parametrize(
    ("goes", "comes"),
    [(LEAVE, RETURN), (DROP, CREATE), (DROP, CREATE_UNLESS), ((*OTHER, *DROP), COME), (LEAVE, CREATE)],
    ids=["there and back", "drop and create", "drop and create if not exists", "drop and rename", "leave and create"],
)
def test_a_stream_that_starts_while_a_table_is_away_follows_what_comes(
    table: AnyDatabase,
    started: Started,
    seen: str,
    goes: tuple[str, ...],
    comes: tuple[str, ...],
) -> None:
    if isinstance(table, OnPostgres) and goes == LEAVE:
        pytest.skip("a table that leaves its name stops the stream")
    stream = started()
    stream.catch_up()
    if seen == "when it starts":
        stream.stop()
    table.execute(*goes)
    if seen == "before it stops":
        stream.catch_up()
        stream.until(lambda: not rows(stream))
    stream.stop()
    stream.restart()
    stream.catch_up()
    table.execute(*comes)
    stream.until(lambda: rows(stream) == {row["id"]: row["n"] for row in table.rows("t")})
    check(stream, table)
    table.execute("update t set n = 12")
    check(stream, table)


@on_mysql
def test_a_table_that_is_away_when_the_stream_starts_is_named(table: OnMySQL, started: Started) -> None:
    stream = started()
    stream.catch_up()
    stream.stop()
    table.execute(*DROP)
    stream.restart()
    stream.catch_up()
    assert "its delivered rows stay" in stream.engine.status()["left_out"][f"{table.schema}.t"]
    table.execute(*CREATE)
    check(stream, table)
    stream.until(lambda: f"{table.schema}.t" in stream.engine.status()["tables"])
    assert stream.engine.status()["left_out"] == {}


@on_mysql
@pytest.mark.parametrize("away", [LEAVE, DROP])
def test_what_was_undone_while_the_stream_was_stopped_is_followed(
    table: OnMySQL, started: Started, away: tuple[str, ...]
) -> None:
    stream = started()
    stream.catch_up()
    stream.stop()
    table.execute(*away, *(RETURN if away == LEAVE else CREATE))
    stream.restart()
    check(stream, table)
    assert stream.history.count("truncate") >= 1


@on_mysql
def test_a_table_that_is_there_is_not_emptied_by_create_if_not_exists(table: OnMySQL, started: Started) -> None:
    stream = started()
    stream.catch_up()
    table.execute(*LEAVE)
    stream.stop()
    stream.restart()
    stream.catch_up()
    table.execute(*RETURN)
    check(stream, table)
    emptied = stream.history.count("truncate")
    stream.stop()
    stream.restart()  # in the same process, which knows the table by now
    table.execute(CREATE_UNLESS[0])
    check(stream, table)
    assert stream.history.count("truncate") == emptied


@on_every
@pytest.mark.parametrize("moment", ["before the first round", "in the first dump", "after it"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_table_that_is_away_during_its_first_dump_is_dumped_when_it_is_back(
    table: AnyDatabase, started: Started, moment: str, killed: bool
) -> None:
    stream = started()
    if moment == "before the first round":
        stream.step()
    elif moment == "in the first dump":
        stream.open_window()
    else:
        stream.catch_up()
    table.execute(*LEAVE)
    if killed:
        stream.stop()
        stream.restart()
    for _ in range(4):
        stream.step()
    table.execute(*RETURN)
    check(stream, table)


@on_postgres
@pytest.mark.parametrize("renamed", ["stop", "follow"])
@pytest.mark.parametrize("moment", ["before the first round", "in the first dump"])
def test_a_table_that_stays_away_during_its_first_dump_stops_the_stream(
    table: OnPostgres, started: Started, moment: str, renamed: str
) -> None:
    stream = started(renamed=renamed)
    if moment == "before the first round":
        stream.step()
    else:
        stream.open_window()
    table.execute(*LEAVE)
    with pytest.raises(PreconditionFailed, match=r"t was renamed to public\.spare_t"):
        stream.catch_up()
    stream.stop()
    table.execute(*RETURN)
    stream.restart()
    check(stream, table)


@on_postgres
def test_a_table_that_is_away_and_then_dropped_has_no_dump(table: OnPostgres, started: Started) -> None:
    stream = started()
    stream.open_window()
    table.execute(*LEAVE)
    for _ in range(3):
        stream.step()
    table.execute("drop table spare_t")
    stream.catch_up()
    assert rows(stream) == {}
    assert stream.dumped
