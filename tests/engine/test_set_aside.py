"""One table that fails is set aside, and the others go on: by a value, by its definition, in a dump and in the log."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dblog.errors import DecodeError
from dblog.work.tasks import Emit, Log
from tests.engine.conftest import MakeQuery, on_families, on_postgres
from tests.engine.control import Control
from tests.engine.query import Query
from tests.engine.test_new_tables import agree, follow, state_of, status
from tests.families import AnyDatabase, OnPostgres
from tests.history import Row

pytestmark = pytest.mark.server

CREATE = "create table u (id int primary key, n int, small numeric(3, 0))"
BAD = "insert into u values ({}, 7, 'NaN')"


_WORK = (Log, Emit)


def _lose_the_log(stream: Query) -> None:
    """Remove the files of the planned batch: a new life reads the log again."""
    for path in Path(stream.given["spool"], "log").iterdir():
        path.unlink()


def _shown(rows: Iterable[Row]) -> list[str]:
    return sorted(str({k: v for k, v in row.items() if k != "_committed_at"}) for row in rows)


def set_aside(stream: Query, database: AnyDatabase) -> dict[str, Any]:
    """Go on until table u is set aside; what the status says of it."""
    name = f"{database.schema}.u"
    stream.until(lambda: name in status(stream)["failed_tables"], seconds=30)
    return dict(status(stream)["failed_tables"][name])


def retry(stream: Query, database: AnyDatabase) -> None:
    """Ask for table u, and go on until it is followed again."""
    stream.step()
    control = Control(stream)
    name = f"{database.schema}.u"
    stream.engine.sync.exchange(10.0)  # type: ignore[union-attr]
    stream.until(lambda: name in control.pipeline.status().get("failed_tables", {}))
    assert control.pipeline.status()["state"] == "degraded"
    control.pipeline.retry("u")
    control.noticed()
    stream.until(lambda: not stream.committed.get("aside"))
    agree(stream, database)
    stream.until(lambda: control.pipeline.status()["state"] == "running")


@on_postgres
def test_a_value_in_the_log_sets_its_table_aside(
    table: AnyDatabase, query: MakeQuery, caplog: pytest.LogCaptureFixture
) -> None:
    table.execute(CREATE, "insert into u values (1, 1, 1)")
    stream = follow(table, query, onTableError="set-aside", values="stop")
    agree(stream, table)
    table.execute("update u set n = 2", BAD.format(2), "update u set n = 3 where id = 1", "update t set n = 1")
    found = set_aside(stream, table)
    assert found["reason"] == "value"
    assert "small" in found["message"]
    agree(stream, table, "t")
    assert state_of(stream) == {1: 2}  # what was committed before the value
    assert sum("is set aside" in message for message in caplog.messages) == 1

    stream.restart()
    table.execute("update u set n = 4 where id = 1", "update t set n = 2 where id < 9", "delete from u where id = 2")
    agree(stream, table, "t")
    assert state_of(stream) == {1: 2}
    assert status(stream)["failed_tables"][f"{table.schema}.u"] == found

    retry(stream, table)
    table.execute("update u set n = 5", "insert into u values (9, 9, 9)")
    agree(stream, table)
    agree(stream, table, "t")
    assert not status(stream)["failed_tables"]


@on_postgres
def test_a_value_in_a_dump_sets_its_table_aside(table: AnyDatabase, query: MakeQuery) -> None:
    table.execute(CREATE, "insert into u values (1, 1, 1)", BAD.format(2))
    stream = follow(table, query, onTableError="set-aside", values="stop")
    found = set_aside(stream, table)
    assert found["reason"] == "value"
    agree(stream, table, "t")
    assert stream.committed["aside"]
    table.execute("update u set small = 0")
    retry(stream, table)


@on_postgres
def test_a_repeated_batch_sets_the_same_table_aside(table: AnyDatabase, query: MakeQuery) -> None:
    table.execute(CREATE, "insert into u values (1, 1, 1)")
    stream = follow(table, query, onTableError="set-aside", values="stop")
    agree(stream, table)
    table.execute("update u set n = 2", BAD.format(2), "update u set n = 3 where id = 1", "update t set n = 1")
    while not (stream.plan() and stream.offsets[-1].get("aside")):
        if len(stream.offsets) > stream.done:
            stream.finish()
    first = list(stream.rows(stream.work(), *_WORK))
    stream.stop()
    _lose_the_log(stream)
    assert _shown(stream.rows(stream.work(), *_WORK)) == _shown(first)
    stream.finish()
    assert state_of(stream) == {1: 2}
    agree(stream, table, "t")


@on_families
def test_a_definition_sets_its_table_aside(table: AnyDatabase, query: MakeQuery) -> None:
    postgres = isinstance(table, OnPostgres)
    table.execute(CREATE, "insert into u values (1, 1, 1)")
    stream = follow(table, query, onTableError="set-aside", values="stop")
    agree(stream, table)
    key = "alter table u drop constraint u_pkey, add constraint u_pkey primary key (id)"
    table.execute(f"{key} deferrable" if postgres else "alter table u engine = MyISAM")
    table.execute("insert into u values (2, 2, 2)", "update t set n = 1 where id < 5")
    assert set_aside(stream, table)["reason"] == "definition"
    agree(stream, table, "t")
    stream.restart()
    table.execute("update t set n = 2 where id < 5")
    agree(stream, table, "t")
    table.execute(key if postgres else "alter table u engine = InnoDB", "delete from u where id = 1")
    retry(stream, table)
    table.execute("insert into u values (3, 3, 3)")
    agree(stream, table)


@on_postgres
def test_a_table_that_is_still_unfit_stays_set_aside(table: AnyDatabase, query: MakeQuery) -> None:
    table.execute(CREATE, "insert into u values (1, 1, 1)")
    stream = follow(table, query, onTableError="set-aside", values="stop")
    agree(stream, table)
    table.execute("create table heir (primary key (id)) inherits (u)")
    before = set_aside(stream, table)
    stream.step()
    control = Control(stream)
    stream.until(lambda: f"{table.schema}.u" in control.pipeline.status().get("failed_tables", {}))
    control.pipeline.retry(f"{table.schema}.u")
    control.noticed()
    stream.until(lambda: set_aside(stream, table)["at"] != before["at"])
    assert "inheritance" in set_aside(stream, table)["message"]
    agree(stream, table, "t")


@on_postgres
def test_a_stream_that_must_stop_stops(table: AnyDatabase, query: MakeQuery) -> None:
    table.execute(CREATE, "insert into u values (1, 1, 1)")
    stream = follow(table, query, values="stop")
    agree(stream, table)
    table.execute(BAD.format(2))
    with pytest.raises(DecodeError, match="small"):
        stream.until(lambda: False)
