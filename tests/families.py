"""A database of any family that is one test's own, and the words in which families differ.

What a test does to its database it says in SQL that every family understands, one statement at a time. What cannot be
said so has a name here, the same for all.
"""

from __future__ import annotations

import signal
from contextlib import closing, suppress
from typing import Any, TypeAlias

import psycopg2.extras
import pymysql.cursors
import pymysql.err

from dblog.sources.mysql import source as mysql
from dblog.sources.postgres.source import Postgres
from tests.conftest import Database, MySQLDatabase
from tests.history import Row


class OnPostgres(Database):
    schema = "public"
    source = Postgres
    shutdown = signal.SIGINT
    large = "(select string_agg(md5(random()::text), '') from generate_series(1, 300))"
    """A text that does not compress below a page."""
    slow = "pg_sleep(0.002) is not null"
    """A condition that is true of every row, after two milliseconds."""

    def execute(self, *statements: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Run statements, each of which commits; the rows of the last one."""
        found: list[tuple[Any, ...]] = []
        for sql in statements:
            found = super().execute(sql, parameters)
        return found

    def transact(self, *statements: str) -> None:
        """Run statements as one transaction."""
        self.execute("begin; " + "; ".join(statements) + "; commit")

    def rows(self, table: str) -> list[Row]:
        session = self.connect(cursor_factory=psycopg2.extras.RealDictCursor)
        with closing(session), session.cursor() as cursor:
            cursor.execute(f"select * from {table}")
            return [dict(row) for row in cursor.fetchall()]

    def series(self, low: int, high: int) -> str:
        """What stands behind `from` for the numbers `i` from low to high."""
        return f"generate_series({low}, {high}) i"

    def noise(self, seed: str) -> str:
        """Some characters that look random."""
        return f"md5(({seed})::text)"

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def sibling(self) -> str:
        """Another schema on the same server."""
        self.execute("create schema other")
        return "other"

    def durable(self) -> None:
        """From now on what is committed survives a crash of the server."""

    def analyze(self, table: str) -> None:
        self.execute(f"analyze {table}")

    def rekey(self, table: str, columns: str) -> None:
        """Give a table another primary key."""
        self.execute(f"alter table {table} drop constraint {table}_pkey, add primary key ({columns})")

    def lock(self, table: str) -> Any:
        """Keep everybody else from a table, until the session is closed."""
        session = self.connect(autocommit=False)
        session.cursor().execute(f"lock table {table} in access exclusive mode")
        return session

    @property
    def reading(self) -> bool:
        """Whether somebody reads the log for us."""
        return bool(self.execute("select 1 from pg_replication_slots where active and database = current_database()"))

    def end_sessions(self) -> int:
        """End all sessions with this database, also those that read the log; how many there were."""
        return len(
            self.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
        )


class OnMySQL(MySQLDatabase):
    source = mysql.MySQL
    shutdown = signal.SIGTERM
    large = "repeat(sha2(rand(), 224), 200)"
    slow = "sleep(0.002) = 0"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._siblings: list[str] = []

    @property
    def schema(self) -> str:
        return self.name

    def transact(self, *statements: str) -> None:
        self.execute("begin", *statements, "commit")

    def rows(self, table: str) -> list[Row]:
        session = self.connect(cursorclass=pymysql.cursors.DictCursor)
        with closing(session), session.cursor() as cursor:
            cursor.execute("set time_zone = '+00:00'")
            cursor.execute(f"select * from {table}")
            return list(cursor.fetchall())

    def series(self, low: int, high: int) -> str:
        """A server goes through a recursion a thousand times and no more, so larger ones are multiplied."""
        count = high - low + 1
        ones, thousands = (_counted(n, most) for n, most in (("a", min(count, 1000)), ("b", (count + 999) // 1000)))
        number = f"{low} + a.i + 1000 * b.i"
        return f"(select {number} as i from {ones}, {thousands} where {number} <= {high}) s"

    def noise(self, seed: str) -> str:
        return f"sha2({seed}, 224)"

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def sibling(self) -> str:
        self._siblings.append(f"{self.name}_other")
        self.execute(f"create database {self._siblings[-1]}")
        return self._siblings[-1]

    def drop(self) -> None:
        super().drop()
        for name in self._siblings:
            MySQLDatabase(self.server, "mysql").execute(f"drop database {name}")

    @property
    def log_end(self) -> tuple[str, int]:
        """The file and the place in it that the next change will have in the log."""
        return self._either("show binary log status", "show master status")[0][:2]  # type: ignore[return-value]

    def reset_log(self) -> None:
        """Have the server begin a new log, and forget the old one."""
        self._either("reset binary logs and gtids", "reset master")

    def _either(self, *spellings: str) -> list[tuple[Any, ...]]:
        """Run a statement that servers spell differently."""
        for sql in spellings[:-1]:
            with suppress(pymysql.err.ProgrammingError):
                return self.execute(sql)
        return self.execute(spellings[-1])

    def durable(self) -> None:
        self.execute("set global innodb_flush_log_at_trx_commit = 2")

    def analyze(self, table: str) -> None:
        self.execute(f"analyze table {table}")

    def rekey(self, table: str, columns: str) -> None:
        self.execute(f"alter table {table} drop primary key, add primary key ({columns})")

    def lock(self, table: str) -> Any:
        session = self.connect()
        session.cursor().execute(f"lock tables {table} write")
        return session

    @property
    def reading(self) -> bool:
        return bool(self._sessions("command like 'Binlog Dump%'"))

    def end_sessions(self) -> int:
        found = self._sessions("user = substring_index(user(), '@', 1) and id <> connection_id()")
        for session in found:
            self.execute(f"kill {session}")
        return len(found)

    def _sessions(self, condition: str) -> list[int]:
        return [row[0] for row in self.execute(f"select id from information_schema.processlist where {condition}")]


AnyDatabase: TypeAlias = OnPostgres | OnMySQL


def _counted(name: str, count: int) -> str:
    """A table `name` of the numbers `i` from 0 on."""
    numbers = f"with recursive r (i) as (select 0 union all select i + 1 from r where i < {count - 1}) select i from r"
    return f"({numbers}) {name}"
