"""The state store in a database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dblog.databases.mysql.connect import identifier
from dblog.errors import StateError
from dblog.state import check_store, open_store
from dblog.state.sql.store import FORMAT
from tests.conftest import Database, MySQLDatabase
from tests.proxy import Proxy
from tests.state.shared import SECRET, SharedStoreSuite

pytestmark = pytest.mark.server


@pytest.mark.parametrize("postgres", ["pg18"], indirect=True)
class TestPostgres(SharedStoreSuite):
    @pytest.fixture
    def url(self, database: Database) -> str:
        role = f"{database.name}_state"
        database.execute(
            f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'; GRANT CREATE ON DATABASE {database.name} TO {role}"
        )
        return database.server.url(database.name, role, SECRET)

    @pytest.fixture
    def proxy(self, database: Database) -> Iterator[Proxy]:
        with Proxy(database.server) as between:
            yield between

    def test_a_user_that_may_create_nothing_is_told_so(self, database: Database) -> None:
        role = f"{database.name}_poor"
        database.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'")
        url = database.server.url(database.name, role, SECRET)
        for use in (check_store, open_store):
            with pytest.raises(StateError, match=r"cannot be (used|created)") as caught:
                use(url)
            assert SECRET not in str(caught.value)
        database.execute(f"CREATE SCHEMA dblog; GRANT CREATE, USAGE ON SCHEMA dblog TO {role}")
        check_store(url)
        store = open_store(url)
        assert store.put("a", {}) == 1
        store.close()

    def test_a_newer_format_is_refused(self, database: Database, url: str) -> None:
        open_store(url).close()
        database.execute(f"UPDATE dblog.state_store SET format = {FORMAT + 1}")
        for use in (check_store, open_store):
            with pytest.raises(StateError, match=f"has the format {FORMAT + 1}"):
                use(url)

    def test_a_store_that_was_removed_is_not_written_to(self, database: Database, url: str) -> None:
        store = open_store(url)
        database.execute("DELETE FROM dblog.state_store")
        for use in (store.stamp, lambda: store.put("a", {})):
            with pytest.raises(StateError, match="another one now"):
                use()


class MySQLSuite(SharedStoreSuite):
    @pytest.fixture
    def url(self, mysql_database: MySQLDatabase) -> Iterator[str]:
        user = mysql_database.name
        mysql_database.execute(
            f"CREATE USER {user}@'%' IDENTIFIED BY '{SECRET}'",
            f"GRANT ALL ON {identifier(mysql_database.name)}.* TO {user}@'%'",
        )
        yield mysql_database.server.url(mysql_database.name, user, SECRET)
        mysql_database.execute(f"DROP USER {user}@'%'")

    @pytest.fixture
    def proxy(self, mysql_database: MySQLDatabase) -> Iterator[Proxy]:
        with Proxy(mysql_database.server) as between:
            yield between


@pytest.mark.parametrize("mysql_server", ["mysql"], indirect=True)
class TestMySQL(MySQLSuite):
    pass


@pytest.mark.parametrize("mysql_server", ["mariadb"], indirect=True)
class TestMariaDB(MySQLSuite):
    pass
