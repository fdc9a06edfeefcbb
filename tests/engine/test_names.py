"""PostgreSQL: tables that leave their name, come to one, or get and lose rows without a word in the log."""

from __future__ import annotations

from typing import Any

import pytest

from dblog.errors import PreconditionFailed
from tests.engine.conftest import MakeQuery, on_postgres
from tests.engine.query import Query
from tests.families import OnPostgres

pytestmark = [pytest.mark.server, on_postgres]


def follow(query: MakeQuery, **options: Any) -> Query:
    """A stream of all tables of the schema that looks at the catalog every second."""
    return query(**{"tables": "public.*", "key": ("_table", "id"), "heartbeatSeconds": 1, **options})


def state_of(stream: Query, table: str = "t") -> dict[int, int]:
    return {row["id"]: row.get("n") for (name, _), row in stream.history.state().items() if name == table}


def rows_of(database: OnPostgres, table: str = "t") -> dict[int, int]:
    return dict(database.execute(f"select id, n from {table}"))  # type: ignore[arg-type]


def agree(stream: Query, database: OnPostgres, *tables: str) -> None:
    """Go on until the delivered state of the tables is the database's; every event is in its order."""

    def agreed() -> bool:
        return stream.dumped and all(state_of(stream, t) == rows_of(database, t) for t in tables or ("t",))

    try:
        stream.until(agreed, seconds=20)
    except AssertionError:
        for table in tables or ("t",):
            assert state_of(stream, table) == rows_of(database, table)
        raise
    stream.catch_up()
    assert agreed()
    stream.history.check_order()


def truncates(stream: Query, table: str = "t") -> int:
    return sum(e["_op"] == "truncate" and e["_table"] == table for e in stream.history.events)


def looked(stream: Query) -> None:
    """Go on until the tables have been looked at once more."""
    following = stream.engine._planner._following
    before = following._looked
    stream.until(lambda: following._looked != before)


AWAY_AND_BACK = {
    "rename": ("alter table t rename to t_tmp", "t_tmp", "alter table t_tmp rename to t"),
    "schema": ("alter table t set schema other", "other.t", "alter table other.t set schema public"),
}


@pytest.mark.parametrize("moment", ["followed", "stopped", "window"])
@pytest.mark.parametrize("how", AWAY_AND_BACK)
def test_what_is_done_under_another_name_is_delivered(
    table: OnPostgres, query: MakeQuery, how: str, moment: str
) -> None:
    away, name, back = AWAY_AND_BACK[how]
    table.execute("create schema other")
    stream = follow(query)
    stream.open_window() if moment == "window" else stream.catch_up()
    if moment == "stopped":
        stream.stop()
    table.execute("update t set n = 1 where id in (1, 2)", away)
    table.execute(f"update {name} set n = 2 where id in (2, 3)", f"delete from {name} where id = 4")
    table.execute(back, "update t set n = 3 where id in (3, 5)", "insert into t values (4, 9)")
    agree(stream, table)
    assert stream.history.count("truncate") == 0
    changed = [op for op in stream.history.ops("t", 4) if op != "read"]
    assert changed in (["delete", "create"], []) if moment == "window" else changed == ["delete", "create"]
    values = [e["n"] for e in stream.history.of("t", 3) if e["_op"] == "update"]
    assert values == [2, 3]


@pytest.mark.parametrize("moment", ["followed", "stopped"])
@pytest.mark.parametrize("how", AWAY_AND_BACK)
def test_a_table_that_leaves_its_name_stops_the_stream(
    table: OnPostgres, query: MakeQuery, how: str, moment: str
) -> None:
    table.execute("create schema other", "create table u (id int primary key, n int)")
    stream = follow(query, tables="public.t, public.u")
    stream.catch_up()
    if moment == "stopped":
        stream.stop()
    away, name, back = AWAY_AND_BACK[how]
    table.execute(away)
    new = name if "." in name else f"public.{name}"
    with pytest.raises(PreconditionFailed, match=rf"table public\.t was renamed to {new}") as stopped:
        stream.until(lambda: False, seconds=15)
    assert "renamed" in str(stopped.value)
    stream.stop()
    table.execute(f"update {name} set n = 5 where id = 5", back)
    agree(stream, table)
    assert stream.history.ops("t", 5) == ["read", "update"]


def test_a_rename_in_the_log_is_noticed_at_once(table: OnPostgres, query: MakeQuery) -> None:
    stream = follow(query, tables="public.t", heartbeatSeconds=3600)
    stream.catch_up()
    table.execute("alter table t rename to u", "update u set n = 1 where id = 1")
    with pytest.raises(PreconditionFailed, match=r"table public\.t was renamed to public\.u"):
        stream.until(lambda: False, seconds=15)


@pytest.mark.parametrize("moment", ["followed", "stopped"])
def test_a_renamed_table_can_be_followed_under_its_old_name(table: OnPostgres, query: MakeQuery, moment: str) -> None:
    stream = follow(query, tables="public.t, public.other", renamed="follow")
    table.execute("create table other (id int primary key)")
    stream.catch_up()
    if moment == "stopped":
        stream.stop()
    table.execute("alter table t rename to u", "update u set n = 1 where id = 1", "delete from u where id = 2")
    stream.until(lambda: stream.history.ops("t", 2) == ["read", "delete"], seconds=15)
    stream.restart()
    table.execute("update u set n = 2 where id = 3", "alter table u add more int", "update u set more = 7 where id = 4")
    stream.until(lambda: stream.history.ops("t", 4) == ["read", "update"], seconds=15)
    assert stream.history.of("t", 4)[-1]["more"] == 7
    assert state_of(stream) == rows_of(table, "u")
    stream.history.check_order()


REPLACED: dict[str, tuple[str, ...]] = {
    "made again": (
        "drop table t",
        "create table t (id int primary key, n int)",
        "insert into t values (5, 5), (99, 1)",
    ),
    "made again at once": (
        "begin; drop table t; create table t (id int primary key, n int); insert into t values (5, 5); commit",
    ),
    "another takes the name": (
        "create table t_new (id int primary key, n int)",
        "insert into t_new values (5, 5), (99, 1)",
        "begin; alter table t rename to t_old; alter table t_new rename to t; commit",
        "update t set n = 6 where id = 99",
        "update t_old set n = 8 where id = 7",
    ),
    "swapped": ("begin; alter table t rename to x; alter table u rename to t; alter table x rename to u; commit",),
    "removed from the publication": (
        "alter publication {publication} drop table t",
        "update t set n = 4 where id = 1",
        "delete from t where id = 2",
    ),
    "out and in again": (
        "alter publication {publication} drop table t",
        "update t set n = 4 where id = 1",
        "delete from t where id = 2",
        "alter publication {publication} add table t",
    ),
    "another primary key": (
        "alter table t drop constraint t_pkey, alter n set not null, add primary key (id, n)",
        "update t set n = 4 where id = 1",
    ),
}
FILTERED = {
    "a row filter": "where (id > 30)",
    "a column list": "(id)",
}


@pytest.mark.parametrize("moment", ["followed", "stopped"])
@pytest.mark.parametrize("what", REPLACED)
def test_rows_that_the_log_does_not_show_are_dumped(
    table: OnPostgres, query: MakeQuery, what: str, moment: str
) -> None:
    table.execute("create table u (id int primary key, n int)", "insert into u values (1, 100), (2, 200)")
    stream = follow(query)
    stream.catch_up()
    publication = stream.engine._source.publication  # type: ignore[attr-defined]
    if moment == "stopped":
        stream.stop()
    table.execute(*(sql.format(publication=publication) for sql in REPLACED[what]))
    stream.until(lambda: truncates(stream) == 1)
    agree(stream, table, "t", "u")
    table.execute("update t set n = 77 where id = 5", "delete from t where id = 1", "insert into t values (1000, 1)")
    agree(stream, table, "t", "u")
    stream.restart()
    table.execute("update t set n = 78 where id = 5")
    agree(stream, table, "t", "u")
    assert truncates(stream) == 1


@pytest.mark.parametrize("what", FILTERED)
def test_a_publication_that_leaves_something_out_stops_the_stream_and_the_table_is_dumped_again(
    table: OnPostgres, query: MakeQuery, what: str
) -> None:
    stream = follow(query)
    stream.catch_up()
    publication = stream.engine._source.publication  # type: ignore[attr-defined]
    table.execute(f"alter publication {publication} set table dblog.watermark, t {FILTERED[what]}")
    table.execute("update t set n = 1 where id in (2, 32)", "delete from t where id = 3")
    with pytest.raises(PreconditionFailed, match=what) as stopped:
        stream.until(lambda: False, seconds=15)
    stream.stop()
    fix = str(stopped.value).partition("fix: ")[2].splitlines()[0]
    table.execute(fix)
    agree(stream, table)


PARTED = (
    "create table p (id int primary key, n int) partition by range (id)",
    "create table p1 partition of p for values from (0) to (100)",
    "create table p2 partition of p for values from (100) to (200)",
    "insert into p select i, i from generate_series(50, 149) i",
)
PARTITIONS: dict[str, tuple[str, ...]] = {
    "attach": (
        "create table p3 (id int primary key, n int)",
        "insert into p3 select i, i from generate_series(200, 230) i",
        "alter table p attach partition p3 for values from (200) to (300)",
    ),
    "create, fill and attach in one transaction": (
        "begin; create table p3 (id int primary key, n int); insert into p3 values (250, 1);"
        "alter table p attach partition p3 for values from (200) to (300); commit",
    ),
    "detach": ("alter table p detach partition p1", "drop table p1"),
    "drop": ("drop table p1",),
    "truncate one": ("truncate p1",),
    "attach parts of parts": (
        "create table p3 (id int primary key, n int) partition by range (id)",
        "create table p31 partition of p3 for values from (200) to (250)",
        "insert into p3 values (222, 1)",
        "alter table p attach partition p3 for values from (200) to (300)",
    ),
}


@pytest.mark.parametrize("moment", ["followed", "stopped"])
@pytest.mark.parametrize("what", PARTITIONS)
def test_rows_that_come_and_go_with_a_partition_are_followed(
    database: OnPostgres, query: MakeQuery, what: str, moment: str
) -> None:
    database.execute(*PARTED)
    stream = follow(query, tables="public.p")
    stream.catch_up()
    if moment == "stopped":
        stream.stop()
    database.execute(*PARTITIONS[what])
    agree(stream, database, "p")
    database.execute("insert into p values (120, 7) on conflict (id) do update set n = 7")
    agree(stream, database, "p")


def test_a_partition_that_is_made_empty_is_no_reason_to_dump_the_table(database: OnPostgres, query: MakeQuery) -> None:
    database.execute(*PARTED)
    stream = follow(query, tables="public.p")
    stream.catch_up()
    before = stream.history.count("read")
    database.execute("create table p3 partition of p for values from (200) to (300)", "insert into p values (250, 1)")
    agree(stream, database, "p")
    looked(stream)
    stream.restart()
    database.execute("create table p4 partition of p for values from (300) to (400)", "insert into p values (350, 1)")
    agree(stream, database, "p")
    looked(stream)
    assert (stream.history.count("read"), stream.history.count("truncate")) == (before, 0)
    database.execute("drop table p3")
    agree(stream, database, "p")
    assert stream.history.count("truncate") == 1


UNUSABLE = {
    "replica identity": ("alter table t replica identity nothing", "alter table t replica identity default"),
    "an identity without the key": (
        "alter table t add more serial;"
        "create unique index more on t (more); alter table t replica identity using index more;"
        "delete from t where id = 9; update t set id = 2000 where id = 10",
        "alter table t replica identity default",
    ),
    "no primary key": (
        "alter table t drop constraint t_pkey",
        "alter table t add primary key (id)",
    ),
    "inheritance": ("create table child () inherits (t)", "alter table child no inherit t"),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_a_table_whose_log_becomes_incomplete_stops_the_stream(table: OnPostgres, query: MakeQuery, what: str) -> None:
    stream = follow(query, tables="public.t")
    stream.catch_up()
    broken, repaired = UNUSABLE[what]
    table.execute(broken, "insert into t values (1000, 1)")
    with pytest.raises(PreconditionFailed, match=r"public\.t"):
        stream.until(lambda: False, seconds=15)
    stream.stop()
    table.execute(repaired)
    agree(stream, table)


@pytest.mark.parametrize("watermark", ["table", "none"])
def test_a_dropped_table_is_emptied(table: OnPostgres, query: MakeQuery, watermark: str) -> None:
    table.execute("create table u (id int primary key, n int)", "insert into u values (1, 1)")
    stream = follow(query, watermark=watermark)
    stream.catch_up()
    table.execute("drop table u")
    stream.until(lambda: not state_of(stream, "u"), seconds=15)
    assert stream.history.count("truncate") == 1
    table.execute("create table u (id int primary key, n int)", "insert into u values (2, 2)")
    agree(stream, table, "t", "u")
    assert stream.history.count("truncate") == 1
    table.execute("drop table t", "create table t (id int primary key, n int)", "insert into t values (3, 3)")
    agree(stream, table, "t", "u")


def test_a_batch_in_which_a_table_was_replaced_is_repeated_as_it_was(table: OnPostgres, query: MakeQuery) -> None:
    stream = follow(query)
    stream.catch_up()
    table.execute("update t set n = 1 where id = 1", "drop table t", "create table t (id int primary key, n int)")
    table.execute("insert into t values (5, 5)")

    def planned() -> bool:
        if len(stream.offsets) > stream.done:
            return bool(stream.offsets[-1].get("emptied"))
        return False

    for _ in range(200):
        if stream.plan():
            if planned():
                break
            stream.finish()
    assert planned()
    rows = list(stream.rows(stream.work(), *_kinds()))
    stream.restart()  # runs the batch in another life
    assert list(stream.history.batches[stream.done - 1]) == rows
    agree(stream, table)


def _kinds() -> tuple[Any, ...]:
    from dblog.work.tasks import Emit, Log

    return Log, Emit


def test_a_transaction_that_wrote_before_its_table_was_published_is_not_lost(
    table: OnPostgres, query: MakeQuery
) -> None:
    """It commits after the table was added to the publication, and the log does not show what it did before that."""
    stream = follow(query, tables="public.t, public.u", heartbeatSeconds=3600)
    table.execute("create table u (id int primary key, n int)")
    stream.given["tables"] = "public.t"
    stream.given["slot"] = "of_" + table.name
    stream.catch_up()
    stream.stop()
    session = table.connect(autocommit=False)
    session.cursor().execute("insert into u values (1, 1)")
    stream.restart(tables="public.t, public.u")
    for _ in range(10):
        stream.step()
    session.commit()
    session.close()
    table.execute("insert into u values (2, 2)")
    agree(stream, table, "t", "u")
    assert state_of(stream, "u") == {1: 1, 2: 2}


def test_a_checkpoint_of_an_earlier_version_goes_on(table: OnPostgres, query: MakeQuery) -> None:
    """It does not say what its tables are known by."""
    table.execute("create table u (id int primary key, n int)", "insert into u values (1, 1)")
    stream = follow(query)
    stream.catch_up()
    publication = stream.engine._source.publication  # type: ignore[attr-defined]
    stream.stop()
    for offset in stream.offsets:
        del offset["followed"]
    table.execute(
        "update t set n = 1 where id = 1", "create table v (id int primary key, n int)", "insert into v values (1, 1)"
    )
    table.execute(f"alter publication {publication} drop table u", "insert into u values (2, 2)")
    agree(stream, table, "t", "u", "v")
    assert stream.history.ops("t", 1) == ["read", "update"]
    assert (truncates(stream), truncates(stream, "u"), truncates(stream, "v")) == (0, 1, 0)
    assert {name for _, name, *_ in stream.committed["followed"]} == {"t", "u", "v"}


def test_a_table_that_is_dropped_while_the_stream_is_stopped_is_named(table: OnPostgres, query: MakeQuery) -> None:
    table.execute("create table u (id int primary key, n int)", "insert into u values (1, 1)")
    stream = follow(query)
    stream.catch_up()
    stream.stop()
    table.execute("drop table u", "update t set n = 1 where id = 1")
    agree(stream, table)
    looked(stream)
    assert "dropped" in stream.engine._planner.status()["left_out"]["public.u"]
    table.execute("create table u (id int primary key, n int)", "insert into u values (2, 2)")
    stream.until(lambda: stream.history.ops("u", 2) == ["read"])
    assert [key for key in stream.history.state() if key[0] == "u"] == [("u", 2)]
    assert stream.engine._planner.status()["left_out"] == {}


def test_a_role_that_may_not_publish_is_told_what_to_run(table: OnPostgres, query: MakeQuery) -> None:
    """Without ownership a replaced table stops the stream with the statement to run; a new one is left out with it."""
    stream = follow(query)
    stream.catch_up()
    publication = stream.engine._source.publication  # type: ignore[attr-defined]
    role = f"cdc_{table.name}"
    table.execute(
        f"create role {role} login replication password 'secret'; grant usage on schema public, dblog to {role};"
    )
    table.execute(f"grant select on t to {role}; grant select, update on dblog.watermark to {role}")
    stream.restart(url=table.server.url(table.name, role, "secret"))
    try:
        table.execute("create table u (id int primary key, n int)", f"grant select on u to {role}")
        stream.until(lambda: "public.u" in stream.engine._planner.status()["left_out"])
        why = stream.engine._planner.status()["left_out"]["public.u"]
        statement = f'ALTER PUBLICATION "{publication}" ADD TABLE "public"."u";'
        assert statement in why
        table.execute(statement, "insert into u values (1, 1)")
        agree(stream, table, "u")
        table.execute(f"alter publication {publication} drop table t", "update t set n = 3 where id = 3")
        with pytest.raises(PreconditionFailed, match="ADD TABLE") as stopped:
            stream.until(lambda: False, seconds=15)
        stream.stop()
        table.execute(str(stopped.value).partition("fix: ")[2].splitlines()[0])
        agree(stream, table, "t", "u")
    finally:
        stream.stop()
        table.end_sessions()
        table.execute(f"drop owned by {role}; drop role {role}")
