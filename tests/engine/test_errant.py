"""Logs of replicas that differ from their primary's: transactions of their own, and domains in another order."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import pytest

from dblog.databases.mysql.flavor import MARIADB as MARIADB_FLAVOR
from dblog.errors import PositionLost
from dblog.sources.mysql.stream import MySQLLog
from tests.conftest import EVERY_MYSQL_SERVER, MYSQL_SERVERS, MySQLDatabase
from tests.engine.cluster import Cluster
from tests.engine.conftest import wait_for
from tests.engine.query import Query
from tests.engine.test_failover import as_planned, bounds, check, written

pytestmark = pytest.mark.server

KINDS = [kind for kind in ("mariadb", "mysql") if kind in MYSQL_SERVERS]
MARIADB = [kind for kind in ("mariadb", "mariadb11") if kind in EVERY_MYSQL_SERVER]


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[str, Cluster]]:
    made: dict[str, Cluster] = {}
    yield made
    for cluster in made.values():
        cluster.stop()


@pytest.fixture(params=KINDS)
def cluster(request: pytest.FixtureRequest, clusters: dict[str, Cluster]) -> Cluster:
    """Its servers may differ in what earlier tests did. Each test has a table `t` of another database."""
    if request.param not in clusters:
        clusters[request.param] = Cluster(request.param)
    cluster = clusters[request.param]
    name = f"shop{next(_NUMBERS)}"
    cluster.primary.server_execute(f"create database {name}")
    cluster.primary, cluster.replica = (MySQLDatabase(d.server, name) for d in (cluster.primary, cluster.replica))
    cluster.primary.execute("create table t (id int primary key, n int)", "create table other (id int primary key)")
    cluster.primary.execute("insert into t values " + ", ".join(f"({n}, 0)" for n in range(1, 21)))
    cluster.caught_up()
    return cluster


_NUMBERS = count()
_DOMAINS = count(100)
"""GTID domains that no other test uses."""


@pytest.fixture
def stream(cluster: Cluster, tmp_path: Path) -> Iterator[Query]:
    query = Query(url=cluster.primary.url, spool=str(tmp_path / "spool"), table="t", chunkRows=10)
    yield query
    query.stop()


def written_to_replica(cluster: Cluster, stream: Query, *statements: str) -> None:
    """Run statements on the replica alone, then one on the primary, which the stream delivers and the replica gets."""
    stream.dump()
    cluster.stop_replication()
    cluster.replica.execute(*statements)
    cluster.primary.execute("update t set n = 7 where id = 5")
    stream.catch_up()
    assert stream.history.of(5)[-1]["n"] == 7
    cluster.start()
    cluster.caught_up()


@pytest.mark.parametrize("rotated", [False, True])
def test_a_change_that_only_the_replica_had_does_not_replace_a_later_one(
    cluster: Cluster, stream: Query, rotated: bool
) -> None:
    written_to_replica(cluster, stream, "update t set n = -1 where id = 5")
    assert cluster.replica.execute("select n from t where id = 5") == [(7,)]
    if rotated:  # the last file begins after it
        cluster.replica.server_execute("flush local binary logs")
    second = cluster.promote()
    second.execute("update t set n = 8 where id = 6")
    stream.restart(url=second.url)
    with pytest.raises(PositionLost, match="changed captured tables on this server only") as caught:
        stream.until(lambda: False)
    assert (f"0-{name_of(second)}-" if cluster.mariadb else name_of(second)) in caught.value.message
    assert "new checkpoint" in (caught.value.hint or "")
    assert stream.history.of(5)[-1]["n"] == 7  # nothing of it was delivered before it was recognised


def test_what_the_replica_did_to_other_tables_does_not_matter(cluster: Cluster, stream: Query) -> None:
    statements = ("insert into other values (1)", "flush tables", "analyze table t", "create table more (id int)")
    written_to_replica(cluster, stream, *statements, "insert into more values (1)")
    second = cluster.promote()
    stream.restart(url=second.url)
    second.execute("update t set n = 8 where id = 6")
    check(stream, second)
    stream.restart()
    second.execute("update t set n = 9 where id = 6")
    check(stream, second)
    assert [row["n"] for row in stream.history.of(5)] == [0, 7]
    assert [row["n"] for row in stream.history.of(6)] == [0, 8, 9]


def test_what_the_replica_wrote_last_is_delivered(cluster: Cluster, stream: Query) -> None:
    """Nothing that was delivered comes after it: it is what the new primary has."""
    stream.dump()
    cluster.primary.execute("update t set n = 7 where id = 5")
    stream.catch_up()
    cluster.caught_up()
    cluster.stop_replication()
    cluster.replica.execute("update t set n = -1 where id = 5")
    stream.restart(url=cluster.replica.url)
    check(stream, cluster.replica)
    assert [row["n"] for row in stream.history.of(5)] == [0, 7, -1]
    cluster.promote()


@pytest.mark.parametrize("cluster", MARIADB, indirect=True)
@pytest.mark.parametrize("domain", ["new", "known", "written by the replica before"])
def test_a_change_of_another_domain_that_only_the_replica_had_does_not_replace_a_later_one(
    cluster: Cluster, stream: Query, domain: str
) -> None:
    other = next(_DOMAINS)
    if domain == "written by the replica before":
        in_domain(cluster, other, "update t set n = 1 where id = 9")
        stream.given["url"] = cluster.promote().url
    if domain != "new":
        in_domain(cluster, other, "update t set n = 2 where id = 9")
    errant = "update t set n = -1 where id = 5"
    written_to_replica(cluster, stream, f"set session gtid_domain_id = {other}", errant)
    assert cluster.replica.execute("select n from t where id = 5") == [(7,)]
    second = cluster.promote()
    stream.restart(url=second.url)
    with pytest.raises(PositionLost, match="changed captured tables on this server only") as caught:
        stream.until(lambda: False)
    assert f"{other}-{name_of(second)}-" in caught.value.message
    assert [row["n"] for row in stream.history.of(5)] == [0, 7]


@pytest.mark.parametrize("cluster", MARIADB, indirect=True)
@pytest.mark.parametrize("domain", ["new", "known"])
def test_what_the_replica_did_to_other_tables_in_another_domain_does_not_matter(
    cluster: Cluster, stream: Query, domain: str
) -> None:
    other = next(_DOMAINS)
    if domain == "known":
        in_domain(cluster, other, "update t set n = 2 where id = 9")
    statements = (f"set session gtid_domain_id = {other}", "insert into other values (1)", "create table more (id int)")
    written_to_replica(cluster, stream, *statements)
    second = cluster.promote()
    stream.restart(url=second.url)
    second.execute("update t set n = 8 where id = 6")
    check(stream, second)
    stream.restart()  # by the position, whose GTIDs must be those that the server names
    second.execute(f"set session gtid_domain_id = {other}", "update t set n = 9 where id = 6")
    check(stream, second)
    first = cluster.promote()  # which now has what the replica did, in another place
    stream.restart(url=first.url)
    first.execute("update t set n = 10 where id = 6")
    check(stream, first)
    assert [row["n"] for row in stream.history.of(5)] == [0, 7]
    assert [row["n"] for row in stream.history.of(6)] == [0, 8, 9, 10]


@pytest.mark.parametrize("cluster", MARIADB[:1], indirect=True)
def test_what_the_replica_wrote_last_in_another_domain_is_delivered(cluster: Cluster, stream: Query) -> None:
    written_to_replica(cluster, stream, "select 1")
    cluster.replica.execute(f"set session gtid_domain_id = {next(_DOMAINS)}", "update t set n = -1 where id = 5")
    second = cluster.promote()
    stream.restart(url=second.url)
    check(stream, second)
    assert [row["n"] for row in stream.history.of(5)] == [0, 7, -1]


@pytest.mark.parametrize("cluster", MARIADB, indirect=True)
@pytest.mark.parametrize("spool", ["kept", "lost"])
def test_a_batch_of_several_domains_is_the_same_set_in_another_order(
    cluster: Cluster, stream: Query, spool: str
) -> None:
    stream.dump()
    stream.catch_up()
    with second_domain_first(cluster):
        in_domain(cluster, 0, "update t set n = 1 where id = 5")
        in_domain(cluster, 1, "update t set n = 1 where id = 6")
        stream.wait_captured()
        assert stream.plan()
        before, identity = written(stream), bounds(stream)
        assert [row["id"] for row in before] == [5, 6]
        in_domain(cluster, 0, "update t set n = 2 where id = 5")
        in_domain(cluster, 1, "update t set n = 2 where id = 6")
        wait_for(lambda: cluster.replica.execute("select n from t where id = 6") == [(2,)])
    second = cluster.promote()
    stream.stop()
    if spool == "lost":
        shutil.rmtree(stream.given["spool"])
    stream.given["url"] = second.url
    assert bounds(stream) == identity
    after = stream.finish()
    assert sorted(map(as_planned, after), key=lambda row: str(row["id"])) == list(map(as_planned, before))
    assert after == before if spool == "kept" else [row["id"] for row in after] == [6, 5]
    stream.step()
    stream.restart()  # by the position, which has all delivered transactions before it
    check(stream, second)
    assert [row["n"] for row in stream.history.of(5)] == [0, 1, 2]
    assert [row["n"] for row in stream.history.of(6)] == [0, 1, 2]


@pytest.mark.parametrize("cluster", MARIADB[:1], indirect=True)
@pytest.mark.parametrize("domain", ["new", "known", "of another server"])
def test_what_is_new_in_one_domain_may_lie_in_front_of_what_was_delivered_of_another(
    cluster: Cluster, stream: Query, domain: str
) -> None:
    other = next(_DOMAINS)
    if domain != "new":
        in_domain(cluster, other, "update t set n = 1 where id = 9")
    if domain == "of another server":
        stream.given["url"] = cluster.promote().url
    stream.dump()
    with second_domain_first(cluster):
        in_domain(cluster, 0, "update t set n = 1 where id = 5")
        stream.catch_up()
        stream.stop()
        in_domain(cluster, other, "update t set n = 1 where id = 6")
        wait_for(lambda: cluster.replica.execute("select n from t where id = 6") == [(1,)])
    second = cluster.promote()
    stream.restart(url=second.url)
    check(stream, second)
    assert [row["n"] for row in stream.history.of(5)] == [0, 1]
    assert [row["n"] for row in stream.history.of(6)] == [0, 1]


def test_rows_that_were_selected_on_the_lost_server_are_not_delivered(cluster: Cluster, stream: Query) -> None:
    """They may show a transaction that no server has any more."""
    while not (stream.plan() and stream.offsets[-1].get("read")):
        stream.finish()
    cluster.caught_up()
    cluster.stop_replication()
    cluster.primary.execute("update t set n = 99")
    stream.finish()  # which selects the chunks
    second = cluster.replica
    stream.restart(url=second.url)
    check(stream, second)
    assert not any(row["n"] == 99 for row in stream.history.events)
    cluster.start()


def test_a_position_belongs_to_the_server_that_counts_it(
    cluster: Cluster, stream: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the next server has been reached and nothing of its log has been read yet."""
    stream.dump()
    stream.catch_up()
    cluster.caught_up()
    second = cluster.promote()
    read = MySQLLog.read
    monkeypatch.setattr(MySQLLog, "read", lambda self, timeout, eager=False: time.sleep(0.01) or [])
    monkeypatch.setattr("dblog.planning.planner.Planner._overdue", lambda *args: True)
    stream.restart(url=second.url)
    before = stream.committed
    assert not stream.plan() or stream.offsets[-1]["place"] == before["place"]
    if len(stream.offsets) > stream.done:
        stream.finish()
    monkeypatch.setattr(MySQLLog, "read", read)
    second.execute("update t set n = 1 where id = 5")
    stream.until(lambda: stream.history.of(5)[-1]["n"] == 1)
    assert f"server={name_of(second)} " in stream.committed["place"]


@contextmanager
def second_domain_first(cluster: Cluster) -> Iterator[None]:
    """Keep the replica from applying changes of row 5, so that those of other rows in another domain overtake them."""
    cluster.caught_up()
    session = cluster.replica.connect(autocommit=False)
    with closing(session), session.cursor() as cursor:
        cursor.execute("select n from t where id = 5 for update")
        yield


def name_of(database: MySQLDatabase) -> str:
    """What GTIDs call a server."""
    variable = "@@server_id" if database.flavor is MARIADB_FLAVOR else "@@server_uuid"
    return str(database.server_execute(f"select {variable}")[0][0])


def in_domain(cluster: Cluster, domain: int, statement: str) -> None:
    cluster.primary.execute(f"set session gtid_domain_id = {domain}", statement)


def test_a_replica_whose_log_was_reset_is_refused(
    cluster: Cluster, stream: Query, clusters: dict[str, Cluster]
) -> None:
    written_to_replica(cluster, stream, "select 1")
    cluster.stop_replication()
    cluster.replica.server_execute("reset master" if cluster.mariadb else "reset binary logs and gtids")
    cluster.replica.execute("update t set n = 1 where id = 9")
    stream.restart(url=cluster.replica.url)
    with pytest.raises(PositionLost) as caught:
        stream.until(lambda: False)
    assert "was the log reset" in (caught.value.hint or "")
    assert "expire" not in str(caught.value)
    clusters.pop(next(kind for kind, known in clusters.items() if known is cluster)).stop()  # it is one no more
