"""The sink `sql` does what every sink does, on servers of each family."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dblog.testing.mysql_server import MySQLServer
from dblog.testing.postgres_server import PostgresServer
from tests.conftest import EVERY_MYSQL_SERVER, Database, MySQLDatabase
from tests.proxy import Proxy
from tests.sinks import suite
from tests.sinks.sql_targets import MySQLTarget, PostgresTarget, fresh_name
from tests.sinks.suite import AwaySuite, SinkSuite


class TestPostgres(SinkSuite, AwaySuite):
    @pytest.fixture
    def target(self, servers: dict[str, PostgresServer]) -> Iterator[PostgresTarget]:
        made = Database(servers["pg18"].start(), fresh_name())
        made.create()
        with Proxy(made.server) as proxy:
            yield PostgresTarget(made, proxy)
        made.drop()


class OnMySQL(SinkSuite, AwaySuite):
    server: str

    @pytest.fixture(autouse=True)
    def _finite(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Floats of MySQL are numbers."""
        ordinary = suite._ordinary
        odd = ("NaN", "Infinity")
        monkeypatch.setattr(suite, "_ordinary", lambda vs: [v for v in ordinary(vs) if not any(o in v for o in odd)])

    @pytest.fixture
    def target(self, mysql_servers: dict[str, MySQLServer]) -> Iterator[MySQLTarget]:
        if self.server not in mysql_servers:
            pytest.skip(f"{self.server} is not installed: scripts/{self.server}.sh")
        made = MySQLDatabase(mysql_servers[self.server].start(), fresh_name())
        made.create()
        with Proxy(made.server) as proxy:
            target = MySQLTarget(made, proxy)
            yield target
        target.drop()


@pytest.mark.skipif("mysql" not in EVERY_MYSQL_SERVER, reason="MySQL is not installed: scripts/mysql.sh")
class TestMySQL(OnMySQL):
    server = "mysql"


@pytest.mark.skipif("mariadb" not in EVERY_MYSQL_SERVER, reason="MariaDB is not installed: scripts/mariadb.sh")
class TestMariaDB(OnMySQL):
    server = "mariadb"
