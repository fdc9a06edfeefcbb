"""The lease over every state store."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dblog.testing.zookeeper_server import ZooKeeperEnsemble, ZooKeeperServer
from tests.conftest import Database, MySQLDatabase, in_memory
from tests.ha.suite import Candidate, LeaseSuite, SharedLeaseSuite, check_order
from tests.proxy import Proxy

pytestmark = pytest.mark.server


class TestSQLite(LeaseSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "state.db")


@pytest.mark.parametrize("postgres", ["pg18"], indirect=True)
class TestPostgres(SharedLeaseSuite):
    @pytest.fixture
    def url(self, database: Database) -> str:
        return database.url

    @pytest.fixture
    def proxy(self, database: Database) -> Iterator[Proxy]:
        with Proxy(database.server) as between:
            yield between


@pytest.mark.parametrize("mysql_server", ["mariadb"], indirect=True)
class TestMariaDB(SharedLeaseSuite):
    @pytest.fixture
    def url(self, mysql_database: MySQLDatabase) -> str:
        return mysql_database.url

    @pytest.fixture
    def proxy(self, mysql_database: MySQLDatabase) -> Iterator[Proxy]:
        with Proxy(mysql_database.server) as between:
            yield between


class TestZooKeeper(SharedLeaseSuite):
    @pytest.fixture
    def url(self, zookeeper: ZooKeeperServer) -> str:
        return zookeeper.url(f"tests/{uuid.uuid4().hex}", "dblog:Pa55word")

    @pytest.fixture
    def proxy(self, zookeeper: ZooKeeperServer) -> Iterator[Proxy]:
        with Proxy(zookeeper) as between:
            yield between


def test_an_ensemble_may_lose_one_server_and_without_a_majority_nobody_leads(tmp_path: Path) -> None:
    work = tmp_path / "work"
    with in_memory(), ZooKeeperEnsemble() as ensemble:
        candidates = [Candidate(ensemble.url(), 9.0, work)]
        try:
            first = candidates[0]
            assert first.until("leader")["epoch"] == 1
            lost = ensemble.leader
            lost.kill()
            ensemble.wait()
            assert "lost" not in first.said(), "a lease outlives the election of another server"
            last = next(server for server in ensemble.servers if server.running)
            last.kill()
            first.until("lost")
            candidates.append(Candidate(ensemble.url(), 9.0, work))
            second = candidates[1]
            second.until("error")
            assert "leader" not in first.said()
            first.send(signal.SIGKILL)
            lost.start()
            assert second.until("leader")["epoch"] > 1
        finally:
            for each in candidates:
                each.end()
    check_order(work)
