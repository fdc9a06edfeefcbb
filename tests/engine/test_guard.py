"""SQL that people write changes nothing in the source: every way out of the guard that is known is tried."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from dblog.errors import DBLogError
from dblog.state.requests import State
from tests.engine.conftest import MakeQuery, on_every, on_postgres
from tests.engine.control import Control
from tests.families import AnyDatabase, OnPostgres

pytestmark = pytest.mark.server

WRITES = (
    "delete from busy",
    "set transaction read write; delete from busy",
    "commit; delete from busy",
    "rollback; begin read write; delete from busy; commit",
    "select 1) as x; commit; delete from busy; select * from (select 1",
    "set session transaction read write",
    "set session characteristics as transaction read write",
    "set default_transaction_read_only = off",
    "set autocommit = 1",
    "with gone as (delete from busy returning n) select count(*) from gone",
    "select set_config('transaction_read_only', 'off', false)",
    "select set_config('default_transaction_read_only', 'off', false)",
    "select set_config('transaction_read_only', 'off', true), emptied()",
    "select emptied()",
    "select 0 from busy where emptied() = 0",
    "call emptying()",
    "select 1 into outfile '/tmp/dblog_probe'",
    "copy (select 1) to program 'touch /tmp/dblog_probe'",
    "select nextval('numbers')",
    "begin",
    "lock table busy in access exclusive mode",
    "create table made (n int)",
    "truncate busy",
)


@pytest.fixture
def probe(database: AnyDatabase, query: MakeQuery) -> Callable[[str], float]:
    """Asks a probe of a stream whose user may do everything, on a table `busy` with one row."""
    database.execute("create table t (id int primary key)", "create table busy (n int)", "insert into busy values (1)")
    if isinstance(database, OnPostgres):
        write = (
            "perform set_config('transaction_read_only', 'off', false); delete from busy; return 0; "
            "exception when others then delete from busy; return 0;"
        )
        database.execute(
            "create sequence numbers",
            f"create function emptied() returns int language plpgsql as $$ begin {write} end $$",
            "create procedure emptying() language plpgsql as "
            "$$ begin commit; set transaction read write; delete from busy; commit; end $$",
        )
    else:
        database.execute(
            "create function emptied() returns int deterministic modifies sql data "
            "begin delete from busy; return 0; end",
            "create procedure emptying() begin commit; set session transaction read write; delete from busy; end",
        )
    return query().engine._source.probe


def counted(database: AnyDatabase) -> list[tuple[object, ...]]:
    found = database.execute("select n from busy")
    if isinstance(database, OnPostgres):
        found += database.execute("select last_value, is_called from numbers")
    return found


@on_every
def test_no_probe_changes_anything(database: AnyDatabase, probe: Callable[[str], float]) -> None:
    before = counted(database)
    for first in WRITES:
        for text in (first, "delete from busy", "select emptied()"):  # the next probe runs in the same session
            with suppress(DBLogError):
                probe(text)
            assert counted(database) == before, f"{text} after {first}"
    tables = {"t", "busy"}
    listed = "select table_name from information_schema.tables where table_name in ('t', 'busy', 'made')"
    assert {row[0] for row in database.execute(f"{listed} and table_schema = '{database.schema}'")} == tables


@on_every
def test_a_probe_gives_its_number(probe: Callable[[str], float]) -> None:
    assert probe("select count(*) from busy;") == 1
    assert probe("with x as (select n + 1.5 as y from busy) select y from x") == 2.5
    assert probe("(select 3 union select 3) limit 1") == 3


@on_postgres
def test_no_setting_of_a_probe_meets_the_next(database: AnyDatabase, probe: Callable[[str], float]) -> None:
    probe("select length(set_config('search_path', 'pg_catalog', false))")
    assert probe("select count(*) from busy") == 1


@on_postgres
@pytest.mark.parametrize(
    "where", ["set_config('transaction_read_only', 'off', false) is not null and emptied() = 0", "emptied() = 0"]
)
def test_no_condition_changes_anything(
    database: AnyDatabase, query: MakeQuery, probe: Callable[[str], float], where: str
) -> None:
    database.execute("insert into t values (1)")
    stream = query()
    stream.catch_up()
    control = Control(stream)
    before = counted(database)
    done = control.finish(control.ask("t", where=where))
    assert done.state is State.failed
    assert "read-only" in (done.progress.reason or "") or "read-write" in (done.progress.reason or "")
    assert counted(database) == before
