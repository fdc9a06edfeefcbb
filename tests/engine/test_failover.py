"""A stream that goes on with another server of a cluster finds its place by GTIDs; one that cannot says so."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog.errors import PositionLost
from dblog.sources.mysql.preflight import admin_sql
from dblog.sources.mysql.source import MySQL
from dblog.spark.options import read_options
from dblog.work.tasks import Emit, Log
from tests.conftest import MYSQL_SERVERS, MySQLDatabase
from tests.engine.cluster import Cluster
from tests.engine.query import Query
from tests.engine.test_passed_over import UNREADABLE
from tests.history import Row
from tests.proxy import Proxy

KINDS = [kind for kind in ("mariadb", "mysql") if kind in MYSQL_SERVERS]

pytestmark = [pytest.mark.server, pytest.mark.skipif(not KINDS, reason="no server is installed")]


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster = Cluster(request.param)
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(pair: Cluster) -> Cluster:
    pair.primary.execute("drop table if exists t", "create table t (id int primary key, n int)")
    pair.primary.execute("insert into t values " + ", ".join(f"({n}, 0)" for n in range(1, 61)))
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
        cluster.replica.server_execute("flush local binary logs")
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


def test_an_offset_of_an_earlier_version_is_understood(cluster: Cluster, stream: Query) -> None:
    stream.dump()
    stream.stop()
    stream.offsets[-1]["place"] = re.sub(r" seen=\S+", "", stream.offsets[-1]["place"])
    cluster.primary.execute("update t set n = 1 where id = 5")
    second = cluster.promote()
    stream.restart(url=second.url)
    second.execute("update t set n = 2 where id = 5")
    check(stream, second)
    assert [row["n"] for row in stream.history.of(5)] == [0, 1, 2]
    assert ("seen=" in stream.committed["place"]) == cluster.mariadb


def test_a_replicas_file_may_begin_just_where_the_stream_is(cluster: Cluster, stream: Query) -> None:
    stream.dump()
    stream.catch_up()
    cluster.caught_up()
    assert f"gtid={cluster.gtids(cluster.replica)} " in stream.committed["place"] + " "
    cluster.replica.server_execute("flush local binary logs")
    cluster.primary.execute("update t set n = 1 where id = 5")
    second = cluster.promote()
    stream.restart(url=second.url)
    check(stream, second)
    assert [row["n"] for row in stream.history.of(5)] == [0, 1]


def written(stream: Query) -> list[Row]:
    """The rows of the planned batch, as a sink has them that has written it, while Spark has not committed it."""
    rows = list(stream.rows(stream.work(), Log, Emit))
    assert rows
    return rows


def bounds(stream: Query) -> set[tuple[int, int]]:
    """What a sink tells the planned batch by."""
    work = [w for lane in stream.work() for w in lane.work if isinstance(w, Log | Emit)]
    return {(w.window.start, w.window.end) for w in work}


def as_planned(row: Row) -> Row:
    """What of a row does not depend on the server whose log it was read from."""
    return {name: value for name, value in row.items() if name != "_lsn"}


@pytest.mark.parametrize("spool", ["kept", "lost"])
def test_a_batch_that_a_sink_has_written_is_the_same_after_a_failover(
    cluster: Cluster, stream: Query, spool: str
) -> None:
    stream.dump()
    cluster.primary.execute("update t set n = 1 where id in (5, 6)", "update t set n = 2 where id = 5")
    stream.wait_captured()
    assert stream.plan()
    start, end = stream.committed["pos"], stream.offsets[-1]["pos"]
    before, identity = written(stream), bounds(stream)
    cluster.primary.execute("update t set n = 3 where id = 5")  # not in the batch
    second = cluster.promote()
    second.execute("update t set n = 4 where id = 5")
    stream.stop()
    if spool == "lost":
        shutil.rmtree(stream.given["spool"])
    stream.given["url"] = second.url
    assert bounds(stream) == identity == {(start, end)}
    after = written(stream)
    assert list(map(as_planned, after)) == list(map(as_planned, before))
    assert all(start <= row["_lsn"] < end for row in after)
    if spool == "kept":
        assert after == before
    stream.restart()  # again, with what the life before has left
    stream.history.check_order()
    assert stream.history.batches[stream.done - 1] == after
    assert [row["n"] for row in stream.history.of(5)] == [0, 1, 2]
    check(stream, second)
    assert [row["n"] for row in stream.history.of(5)] == [0, 1, 2, 3, 4]
    assert stream.committed["pos"] > end
    stream.restart()
    check(stream, second)


def test_a_batch_with_chunks_is_the_same_after_a_failover(cluster: Cluster, stream: Query) -> None:
    stream.open_window()
    cluster.primary.execute("update t set n = 1 where id in (2, 50)")
    stream.wait_captured()
    assert stream.plan()
    assert stream.offsets[-1]["emit"]
    before, identity = written(stream), bounds(stream)
    second = cluster.promote()
    second.execute("update t set n = 2 where id in (3, 50)")
    stream.stop()
    stream.given["url"] = second.url
    assert bounds(stream) == identity
    assert stream.finish() == before
    check(stream, second)


@pytest.mark.parametrize("lives", ["same", "next"])
def test_a_stream_that_is_led_to_another_server_while_it_runs_goes_on(
    cluster: Cluster, tmp_path: Path, lives: str
) -> None:
    """By a name or a proxy that leads to the new primary."""
    source = read_options({"url": cluster.primary.url, "table": "t"}).source
    assert isinstance(source, MySQL)
    source.prepare(followed=None)
    cluster.primary.execute("create user if not exists led@'%' identified by 'led'")
    cluster.primary.execute(*admin_sql(source.setup(), "led@%").splitlines())
    with Proxy(cluster.primary.server) as proxy:
        url = proxy.url("shop", "led", "led")
        stream = Query(url=url, spool=str(tmp_path / "led"), table="t", chunkRows=10)
        try:
            stream.dump()
            cluster.primary.execute("update t set n = 1 where id in (5, 6)")
            stream.wait_captured()
            assert stream.plan()
            before, identity = written(stream), bounds(stream)
            second = cluster.promote()
            proxy._target = ("127.0.0.1", second.server.port)
            proxy.cut()
            second.execute("update t set n = 2 where id = 5")
            if lives == "next":
                stream.stop()
                shutil.rmtree(stream.given["spool"])
            assert bounds(stream) == identity
            after = stream.finish()
            assert list(map(as_planned, after)) == list(map(as_planned, before))
            stream.until(lambda: stream.history.of(5)[-1]["n"] == 2)
            # this batch began on one server and ended on the other
            stream.restart()
            second.execute("update t set n = 3 where id = 5")
            check(stream, second)
            assert [row["n"] for row in stream.history.of(5)] == [0, 1, 2, 3]
        finally:
            stream.stop()


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
    cluster.stop_replication()
    try:
        cluster.primary.execute("update t set n = 1 where id = 5")
        stream.catch_up()
        stream.restart(url=cluster.replica.url)
        with pytest.raises(PositionLost, match="does not have all delivered transactions") as caught:
            stream.catch_up()
        assert "new checkpoint" in (caught.value.hint or "")
    finally:
        cluster.start()


def test_a_replica_whose_log_is_purged_is_refused(cluster: Cluster, stream: Query) -> None:
    stream.dump()
    cluster.primary.execute("update t set n = 1 where id = 5")
    cluster.caught_up()
    cluster.replica.server_execute("flush local binary logs")
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
