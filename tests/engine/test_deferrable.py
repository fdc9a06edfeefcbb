"""A deferrable primary key is not unique at every moment of a transaction: such a table is never followed."""

from __future__ import annotations

import re

import pytest

from dblog.errors import PositionLost, PreconditionFailed
from tests.engine.conftest import MakeQuery, check, on_postgres
from tests.families import OnPostgres

pytestmark = [pytest.mark.server, on_postgres]

SWAP = "update swp set id = 3 - id where id in (1, 2)"
REPLACE = "begin; insert into swp values (3, 'new'); delete from swp where v = 'row3'; commit"
DEFER = "alter table swp drop constraint swp_pkey, add primary key (id) deferrable initially deferred"
CURE = 'ALTER TABLE "public"."swp" DROP CONSTRAINT "swp_pkey", ADD CONSTRAINT "swp_pkey" PRIMARY KEY (id);'


@pytest.fixture
def swp(database: OnPostgres) -> OnPostgres:
    database.execute(
        "create table swp (id int primary key, v text)",
        "insert into swp select i, 'row' || i from generate_series(1, 3) i",
    )
    return database


@pytest.mark.parametrize("identity", ["default", "full", "nothing"])
def test_a_stream_refuses_a_deferrable_key_whatever_the_replica_identity(
    swp: OnPostgres, query: MakeQuery, identity: str
) -> None:
    swp.execute(DEFER, f"alter table swp replica identity {identity}")
    with pytest.raises(PreconditionFailed, match=r"primary key of 'public\.swp' is deferrable") as refused:
        query("swp").step()
    assert CURE in str(refused.value)
    assert "FULL" not in str(refused.value)


@pytest.mark.parametrize("change", [SWAP, REPLACE], ids=["swap", "replace"])
def test_a_key_that_becomes_deferrable_stops_the_stream_before_a_row_is_lost(
    swp: OnPostgres, query: MakeQuery, change: str
) -> None:
    stream = query("swp")
    stream.catch_up()
    swp.execute(DEFER, "alter table swp replica identity full", change)
    with pytest.raises(PositionLost, match=r"primary key of table public\.swp is deferrable") as stopped:
        check(stream, swp, "swp")
    assert CURE in str(stopped.value)
    assert "pg_drop_replication_slot" in str(stopped.value)
    assert "new checkpoint" in str(stopped.value)


def test_an_insert_under_a_deferrable_key_is_not_cured_by_another_replica_identity(
    swp: OnPostgres, query: MakeQuery
) -> None:
    """With the default identity the log carries no key at all, and the server lets only inserts pass."""
    stream = query("swp")
    stream.catch_up()
    swp.execute(DEFER, "insert into swp values (4, 'row4')")
    with pytest.raises(PositionLost, match="is deferrable") as stopped:
        stream.catch_up()
    assert "full" not in str(stopped.value).lower().replace("full dump", "")


def test_a_key_that_becomes_deferrable_is_noticed_without_a_change(swp: OnPostgres, query: MakeQuery) -> None:
    stream = query("swp", heartbeatSeconds=1)
    stream.catch_up()
    swp.execute(DEFER)
    with pytest.raises(PositionLost, match=r"primary key of table public\.swp is deferrable"):
        stream.until(lambda: False)


def test_a_stream_that_goes_on_refuses_the_key_and_its_fix_ends_the_old_checkpoint(
    swp: OnPostgres, query: MakeQuery
) -> None:
    """The log has changes made under the key: after the cure they must not be read on in silence."""
    stream = query("swp")
    stream.catch_up()
    stream.stop()
    swp.execute(DEFER, "alter table swp replica identity full", SWAP)
    with pytest.raises(PositionLost, match="is deferrable") as refused:
        stream.step()
    for fix in re.findall(r"(?:fix: |^ {7})([A-Z].*)", str(refused.value), re.MULTILINE):
        swp.execute(fix)
    stream.stop()
    with pytest.raises(PositionLost, match="does not exist, but a checkpoint needs its log"):
        stream.step()
    anew = query("swp")
    check(anew, swp, "swp")


def test_a_partition_with_a_deferrable_key_is_refused_and_noticed(database: OnPostgres, query: MakeQuery) -> None:
    database.execute(
        "create table swp (id int primary key, v text) partition by range (id)",
        "create table low partition of swp for values from (0) to (10)",
    )
    stream = query("swp", heartbeatSeconds=1)
    stream.catch_up()
    database.execute(
        "create table high (id int primary key deferrable, v text)",
        "alter table swp attach partition high for values from (10) to (20)",
    )
    with pytest.raises(PositionLost, match=r"primary key of table public\.high is deferrable"):
        stream.until(lambda: False)
    stream.stop()
    with pytest.raises(PositionLost, match=r"the primary key of 'public\.high' is deferrable"):
        stream.step()
    with pytest.raises(PreconditionFailed, match=r"the primary key of 'public\.high' is deferrable"):
        query("swp", slot="another_slot", publication="another").step()
