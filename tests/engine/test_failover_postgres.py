"""A PostgreSQL standby is promoted: the stream goes on there, and takes back what the promoted server does not have."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from dblog.databases.postgres.connect import connect
from dblog.errors import PositionLost, SourceError
from dblog.sources.postgres.failover_checks import standby_problems
from dblog.sources.postgres.preflight import check as preflight
from dblog.sources.postgres.slot_creation import _holders_seen_by
from dblog.sources.postgres.source import Postgres
from dblog.sources.problems import Problem
from dblog.spark.options import read_options
from tests.engine.query import Query
from tests.engine.standby import FOLLOWED, Pair, wait_until
from tests.families import OnPostgres

pytestmark = pytest.mark.server

TABLE = "create table t (id int primary key, n int, big text)"


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.stop()


@pytest.fixture
def shop(pair: Pair) -> Pair:
    """A primary with a standby and a table of 60 rows."""
    primary = pair.primary
    primary.execute("drop table if exists t, other", TABLE, "create table other (id int primary key, n int)")
    primary.execute("alter table t alter big set storage external")
    primary.execute(f"insert into t select i, 0, {primary.large} from generate_series(1, 60) i")
    if pair.standby is None:
        pair.follow()
    return pair


@contextmanager
def stream_of(shop: Pair, tmp_path: Path, **options: Any) -> Iterator[Query]:
    given = {"table": "t", "heartbeatSeconds": 1, **options}
    stream = Query(url=shop.url, spool=str(tmp_path / "spool"), slot=f"dblog_{tmp_path.name[-40:].lower()}", **given)
    try:
        yield stream
    finally:
        stream.stop()
        primary = shop.primary
        slots = "select slot_name from pg_replication_slots where slot_type = 'logical'"
        wait_until(lambda: not primary.execute(f"{slots} and active"))
        for (slot,) in primary.execute(slots):
            primary.execute(f"select pg_drop_replication_slot('{slot}')", f"drop publication if exists {slot}")


def wait_synchronized(shop: Pair, stream: Query) -> None:
    """Go on until the standby has the slot. The standby gets it when the slot has passed the standby's own position."""
    standby, primary, slot = shop.standby, shop.primary, stream.given["slot"]
    assert standby is not None

    def synchronized() -> bool:
        primary.execute("select pg_log_standby_snapshot()", "insert into other select max(id) + 1, 0 from other")
        stream.step()
        there = f"select 1 from pg_replication_slots where slot_name = '{slot}' and synced and not temporary"
        return bool(standby.execute(there))

    primary.execute("insert into other values (0, 0) on conflict do nothing")
    wait_until(synchronized)


def check(stream: Query, database: OnPostgres) -> None:
    stream.catch_up()
    stream.history.check_order()
    stream.history.check_state(database.rows("t"))


def place(stream: Query) -> dict[str, str]:
    return dict(part.split("=") for part in stream.committed["place"].split())


def test_a_stream_goes_on_with_a_standby_that_has_everything(shop: Pair, tmp_path: Path) -> None:
    """Within a dump, in the same process: the URL names both servers. The standby has all that is delivered."""
    with stream_of(shop, tmp_path) as stream:
        stream.open_window()
        wait_synchronized(shop, stream)
        stream.dump()
        primary = shop.primary
        primary.execute("update t set n = 1 where id in (5, 55)", "delete from t where id = 7")
        stream.catch_up()
        shop.caught_up()
        before, timeline = stream.committed["pos"], int(place(stream)["timeline"])
        promoted = shop.promote()
        promoted.execute("update t set n = 2 where id = 5", "insert into t values (100, 1, 'x')")
        check(stream, promoted)
        assert [row["n"] for row in stream.history.of(5)] == [0, 1, 2]
        assert stream.committed["pos"] > before
        assert int(place(stream)["timeline"]) == timeline + 1
        assert "shift" not in place(stream)
        stream.restart()
        promoted.execute("update t set n = 3 where id = 5")
        check(stream, promoted)


@pytest.mark.parametrize("lives", ["same", "next"])
def test_what_the_promoted_server_lacks_is_taken_back(shop: Pair, tmp_path: Path, lives: str) -> None:
    with stream_of(shop, tmp_path) as stream:
        stream.dump()
        wait_synchronized(shop, stream)
        shop.caught_up()
        shop.cut()
        primary = shop.primary
        primary.execute(
            "update t set n = 9 where id in (1, 2, 3)",
            "insert into t values (200, 9, 'lost'), (201, 9, 'lost')",
            "delete from t where id in (10, 11)",
            "update t set id = 300 where id = 20",
        )
        stream.catch_up()
        assert stream.history.of(200)
        delivered = stream.committed["pos"]
        promoted = shop.promote()
        promoted.execute(
            "update t set n = 5 where id = 2",  # its big value is not in the log
            "insert into t values (201, 5, 'other')",
            "delete from t where id = 11",
        )
        if lives == "next":
            stream.restart()
        check(stream, promoted)
        assert stream.committed["pos"] > delivered
        assert int(place(stream)["shift"]) > 0
        assert stream.history.of(1)[-1]["n"] == 0
        assert stream.history.of(200)[-1]["_op"] == ("delete" if lives == "same" else "create")
        if lives == "same":  # other rows are not read again
            assert [row["_op"] for row in stream.history.of(40)] == ["read"]
        status = stream.engine.status()
        assert "rows of public.t are read again" in status["lost_commits"]
        assert re.match(r"commits from 0/\w+ to 0/\w+, from timeline \d+ to timeline \d+: ", status["lost_commits"])
        stream.restart()
        promoted.execute("update t set n = 7 where id in (1, 300)", "insert into t values (400, 1, 'y')")
        check(stream, promoted)


def test_no_commit_of_the_new_timeline_is_passed_over(shop: Pair, tmp_path: Path) -> None:
    """The stream was ahead of the standby, but only by log without changes of its tables."""
    with stream_of(shop, tmp_path) as stream:
        stream.dump()
        wait_synchronized(shop, stream)
        stream.catch_up()
        shop.caught_up()
        shop.cut()
        shop.primary.execute(
            "insert into other select i + 1000000, 0 from generate_series(1, 2000) i on conflict do nothing"
        )
        stream.catch_up()
        stream.until(lambda: stream.committed["pos"] >= stream.engine._source.latest() - 1000)
        promoted = shop.promote()
        promoted.execute("update t set n = 4 where id = 4")
        check(stream, promoted)
        assert [row["_op"] for row in stream.history.of(40)] == ["read"]
        assert stream.engine.status().get("lost_commits") is None


class Writers:
    """Sessions that write to the primary that the URL leads to, until they are stopped."""

    def __init__(self, url: str, count: int = 3) -> None:
        self._url, self._stopped, self.commits = url, threading.Event(), 0
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, seed: int) -> None:
        dice, session = random.Random(seed), None
        while not self._stopped.is_set():
            try:
                session = session or psycopg2.connect(self._url, target_session_attrs="primary", connect_timeout=5)
                session.autocommit = True
                key = dice.randint(1, 120)
                statement = dice.choice(
                    (
                        f"insert into t values ({key}, 1, 'w') on conflict (id) do update set n = t.n + 1",
                        f"update t set n = n + 1 where id between {key} and {key + 2}",
                        f"delete from t where id = {key}",
                        f"update t set id = {key + 1000 * dice.randint(1, 99)} where id = {key}",
                    )
                )
                with session.cursor() as cursor:
                    cursor.execute(statement)
                self.commits += 1
            except psycopg2.errors.UniqueViolation:
                pass
            except psycopg2.Error:
                session = None
                self._stopped.wait(0.05)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(30)


@pytest.mark.parametrize("standbys", ["synchronous", "asynchronous"])
def test_a_promotion_under_load(shop: Pair, tmp_path: Path, standbys: str) -> None:
    """With `synchronized_standby_slots` nothing is ever delivered that the standby lacks."""
    primary = shop.primary
    if standbys == "synchronous":
        primary.execute(f"alter system set synchronized_standby_slots = '{shop.slot}'", "select pg_reload_conf()")
    with stream_of(shop, tmp_path, chunkRows=5, parallelism=1) as stream:
        stream.open_window()
        wait_synchronized(shop, stream)
        stream.dump()
        writers = Writers(shop.url)
        try:
            wait_until(lambda: stream.step() and writers.commits > 200)
            if standbys == "asynchronous":
                shop.cut()
            before = writers.commits
            wait_until(lambda: stream.step() and writers.commits > before + 100)
            promoted = shop.promote()
            promoted.execute("alter system reset synchronized_standby_slots", "select pg_reload_conf()")
            after = writers.commits
            wait_until(lambda: stream.step() is not None and writers.commits > after + 100)
        finally:
            writers.stop()
        check(stream, promoted)
        lost = stream.engine.status().get("lost_commits")
        assert (lost is None) == (standbys == "synchronous"), lost


def test_the_slot_has_the_property_failover(shop: Pair, tmp_path: Path) -> None:
    def failover() -> list[tuple[Any, ...]]:
        return shop.primary.execute("select failover from pg_replication_slots where slot_type = 'logical'")

    with stream_of(shop, tmp_path, failover="off") as stream:
        stream.dump()
        assert failover() == [(False,)]
        stream.restart(failover="auto")  # an existing slot gets it at the next start
        shop.primary.execute("update t set n = 1 where id = 5")
        check(stream, shop.primary)
        assert failover() == [(True,)]


def test_the_checks_say_what_a_failover_needs(shop: Pair, tmp_path: Path) -> None:
    options = read_options({"url": shop.url, "table": "t", "slot": "not_there"})
    source = options.source
    assert isinstance(source, Postgres)
    standby = shop.standby
    assert standby is not None

    def found() -> list[Problem]:
        with closing(connect(source.address)) as connection:
            problems = [*preflight(connection, source.setup()), *standby_problems(source.address, source.setup())]
        assert not any(p.fatal for p in problems)
        return problems

    (empty,) = (p for p in found() if p.what.startswith("synchronized_standby_slots is empty"))
    assert f"= '{shop.slot}';" in empty.fix
    create = next(p.fix for p in found() if p.creatable and "slot" in p.what)
    assert create == "SELECT pg_create_logical_replication_slot('not_there', 'pgoutput', failover => true);"
    standby.execute("alter system set primary_slot_name = ''", "select pg_reload_conf()")
    try:
        wait_until(lambda: any("1 standby follows this server without" in p.what for p in found()))
        assert "primary_slot_name is empty" in found()[-1].what
    finally:
        standby.execute(f"alter system set primary_slot_name = '{shop.slot}'", "select pg_reload_conf()")
        wait_until(lambda: shop.primary.execute(FOLLOWED))


def test_a_server_that_cannot_go_on_is_refused(shop: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with stream_of(shop, tmp_path) as stream:
        stream.dump()
        stream.stop()
        true = dict(stream.offsets[-1])
        # another cluster, for example a restored one
        stream.offsets[-1] = {**true, "place": true["place"].replace("system=", "system=1")}
        with pytest.raises(PositionLost, match="another cluster"):
            stream.check_position()
        with pytest.raises(PositionLost, match="another cluster") as caught:
            stream.step()
        assert "new checkpoint" in (caught.value.hint or "")
        stream.stop()
        # a server that was restored from an older copy
        stream.offsets[-1] = {**true, "pos": true["pos"] + (1 << 30)}
        with pytest.raises(PositionLost, match="the server's log ends at"):
            stream.check_position()
        with pytest.raises(PositionLost, match="the server's log ends at"):
            stream.step()
        stream.stop()
        # an earlier primary that is still there
        timeline = int(place(stream)["timeline"])
        later = true["place"].replace(f"timeline={timeline}", f"timeline={timeline + 1}")
        stream.offsets[-1] = {**true, "place": later}
        stream.given["patienceSeconds"] = "1"
        with pytest.raises(SourceError):  # after `patienceSeconds`
            stream.step()
        assert f"on timeline {timeline}, but the stream has read timeline {timeline + 1}" in caplog.text
        stream.stop()
        stream.offsets[-1] = true
        check(stream, shop.primary)


def test_a_standby_is_a_source(shop: Pair, tmp_path: Path) -> None:
    standby, primary = shop.standby, shop.primary
    assert standby is not None
    primary.execute("create publication of_standby for table t")
    shop.caught_up()
    given = {"watermark": "none", "publication": "of_standby"}
    with stream_of(shop, tmp_path, **given) as stream:
        stream.given["url"] = standby.url
        with closing(connect(standby.url)) as session, _holders_seen_by(session) as holders:
            assert "pg_log_standby_snapshot" in holders()
        done = threading.Event()

        def log_snapshots() -> None:
            while not done.wait(0.5):
                primary.execute("select pg_log_standby_snapshot()")

        thread = threading.Thread(target=log_snapshots)
        thread.start()
        try:
            stream.dump()
        finally:
            done.set()
            thread.join(30)
        primary.execute("update t set n = 1 where id in (5, 55)", "delete from t where id = 7")
        shop.caught_up()
        check(stream, primary)
        stream.restart()
        primary.execute("update t set n = 2 where id = 5")
        shop.caught_up()
        check(stream, primary)
        stream.stop()
        standby.execute(f"select pg_drop_replication_slot('{stream.given['slot']}')")
    primary.execute("drop publication of_standby")
