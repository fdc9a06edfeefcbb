"""A stream that goes on with another server of a cluster finds its place by GTIDs; one that cannot says so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog.errors import PositionLost
from dblog.sources.mysql.connect import parse
from tests.conftest import MYSQL_SERVERS, MySQLDatabase, mysql_server_of
from tests.engine.query import Query
from tests.engine.test_passed_over import UNREADABLE

pytestmark = [pytest.mark.server, pytest.mark.skipif("mariadb" not in MYSQL_SERVERS, reason="mariadb is not installed")]


class Cluster:
    """A primary and a replica of it, each with a log of its own."""

    def __init__(self) -> None:
        settings = {"log_slave_updates": "ON", "gtid_strict_mode": "ON"}
        servers = [mysql_server_of("mariadb", **settings, server_id=str(n)).start() for n in (1, 2)]
        self.primary, self.replica = (MySQLDatabase(server, "shop") for server in servers)
        # the replica's files have other numbers, and other sizes
        self.replica.server_execute("flush binary logs", "flush binary logs", "flush binary logs")
        self._follow(self.replica, self.primary)
        self.primary.server_execute("create database shop")

    def _follow(self, replica: MySQLDatabase, primary: MySQLDatabase) -> None:
        at = parse(primary.url)
        replica.server_execute(
            f"change master to master_host = '{at.host}', master_port = {at.port}, master_user = '{at.user}', "
            f"master_password = '{at.password}', master_use_gtid = current_pos, master_connect_retry = 1",
            "start slave",
        )

    def promote(self) -> MySQLDatabase:
        """The replica becomes the primary, and the other way round."""
        self.caught_up()
        self.replica.server_execute("stop slave")
        self.primary, self.replica = self.replica, self.primary
        self._follow(self.replica, self.primary)
        return self.primary

    def caught_up(self) -> None:
        """Wait until both have the same transactions."""
        deadline = time.monotonic() + 20
        while len({d.server_execute("select @@gtid_current_pos")[0] for d in (self.primary, self.replica)}) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self) -> None:
        for database in (self.primary, self.replica):
            database.server.stop()


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(pair: Cluster) -> Cluster:
    pair.primary.execute("drop table if exists t", "create table t (id int primary key, n int)")
    pair.primary.execute("insert into t select seq, 0 from seq_1_to_60")
    pair.caught_up()
    return pair


@pytest.fixture
def stream(cluster: Cluster, tmp_path: Path) -> Iterator[Query]:
    query = Query(url=cluster.primary.url, spool=str(tmp_path / "spool"), table="t", chunkRows=10)
    yield query
    query.stop()


def rows_of(database: MySQLDatabase) -> list[dict[str, Any]]:
    return [dict(zip(("id", "n"), row, strict=True)) for row in database.execute("select id, n from t")]


def check(stream: Query, database: MySQLDatabase) -> None:
    stream.step()  # from here on positions are those of the server
    stream.catch_up()
    stream.history.check_order()
    stream.history.check_state(rows_of(database))


@pytest.mark.parametrize("rotated", [False, True])
def test_a_stream_goes_on_with_a_replica_and_back(cluster: Cluster, stream: Query, rotated: bool) -> None:
    stream.open_window()  # in the middle of a dump
    cluster.primary.execute("update t set n = 1 where id in (5, 55)", "delete from t where id = 7")
    before = stream.committed["pos"]
    if rotated:
        cluster.replica.server_execute("flush binary logs")
    second = cluster.promote()
    stream.restart(url=second.url)
    second.execute("update t set id = 700 where id = 8", "update t set n = 2 where id = 5")
    check(stream, second)
    assert stream.committed["pos"] > before
    assert "shift" in stream.committed["place"]
    stream.restart()  # with the same server, by the position
    second.execute("insert into t values (1000, 5)")
    check(stream, second)
    shifted = stream.committed["pos"]
    first = cluster.promote()
    stream.restart(url=first.url)
    first.execute("update t set n = 9 where id = 1000")
    check(stream, first)
    assert stream.committed["pos"] > shifted
    assert [row["n"] for row in stream.history.of(1000)] == [5, 9]  # nothing came twice


def test_a_replicas_file_may_begin_just_where_the_stream_is(cluster: Cluster, stream: Query) -> None:
    stream.dump()
    stream.catch_up()
    cluster.caught_up()
    (last,) = cluster.replica.server_execute("select @@gtid_current_pos")[0]
    assert f"gtid={last} " in stream.committed["place"] + " "
    cluster.replica.server_execute("flush binary logs")
    cluster.primary.execute("update t set n = 1 where id = 5")
    second = cluster.promote()
    stream.restart(url=second.url)
    check(stream, second)
    assert [row["n"] for row in stream.history.of(5)] == [0, 1]


def test_a_batch_that_was_planned_before_the_failover_is_repeated_after_it(cluster: Cluster, stream: Query) -> None:
    stream.dump()
    cluster.primary.execute("update t set n = 1 where id = 5", "update t set n = 2 where id = 5")
    stream.wait_captured()
    assert stream.plan()
    cluster.primary.execute("update t set n = 3 where id = 5")  # not in the batch
    second = cluster.promote()
    second.execute("update t set n = 4 where id = 5")
    stream.restart(url=second.url)
    assert [row["n"] for row in stream.history.of(5)] == [0, 1, 2]
    check(stream, second)
    assert [row["n"] for row in stream.history.of(5)] == [0, 1, 2, 3, 4]
    stream.restart()
    check(stream, second)


def test_a_window_that_was_open_at_the_failover_is_closed_after_it(cluster: Cluster, stream: Query) -> None:
    stream.open_window()
    cluster.primary.execute("update t set n = 1 where id <= 60")
    stream.wait_captured()
    assert stream.plan()
    assert stream.offsets[-1]["emit"]
    second = cluster.promote()
    stream.restart(url=second.url)
    second.execute("update t set n = 2 where id = 1")
    check(stream, second)


def test_a_server_that_lacks_what_was_delivered_is_refused(cluster: Cluster, stream: Query) -> None:
    stream.dump()
    cluster.replica.server_execute("stop slave")
    try:
        cluster.primary.execute("update t set n = 1 where id = 5")
        stream.catch_up()
        stream.restart(url=cluster.replica.url)
        with pytest.raises(PositionLost, match="does not have the transactions") as caught:
            stream.catch_up()
        assert "new checkpoint" in (caught.value.hint or "")
    finally:
        cluster.replica.server_execute("start slave")


def test_a_replica_whose_log_is_purged_is_refused(cluster: Cluster, stream: Query) -> None:
    stream.dump()
    cluster.primary.execute("update t set n = 1 where id = 5")
    cluster.caught_up()
    cluster.replica.server_execute("flush binary logs")
    while len(files := cluster.replica.server_execute("show binary logs")) > 1:  # those that a crash would need stay
        cluster.replica.server_execute(f"purge binary logs to '{files[-1][0]}'")
        time.sleep(0.05)
    stream.restart(url=cluster.replica.url)
    with pytest.raises(PositionLost, match="no longer reaches back"):
        stream.catch_up()


def test_what_lies_before_the_place_is_passed_over_whatever_it_is(cluster: Cluster, tmp_path: Path) -> None:
    for statements in UNREADABLE.values():
        cluster.primary.execute("update t set n = null", *statements)
    stream = Query(url=cluster.primary.url, spool=str(tmp_path / "spool"), table="t")
    try:
        stream.catch_up()
        second = cluster.promote()
        second.execute("update t set n = 4 where id = 5")
        stream.restart(url=second.url)
        check(stream, second)
    finally:
        stream.stop()
        cluster.primary.execute("drop table t, p")
