"""Is the server set up for capture? One look finds every problem, each with the statement that cures it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from dblog.core.schema import TableName
from dblog.errors import PreconditionFailed
from dblog.sources.mysql.connect import Connection, Server, identifier, server, translating

WATERMARK = TableName("dblog", "watermark")
WATERMARK_SQL = (
    "CREATE DATABASE IF NOT EXISTS dblog",
    "CREATE TABLE IF NOT EXISTS dblog.watermark (id int PRIMARY KEY, token varchar(64) NOT NULL) ENGINE = InnoDB",
    "INSERT IGNORE INTO dblog.watermark (id, token) VALUES (1, '')",
)
OLDEST = {"MariaDB": (10, 5, 0), "MySQL": (8, 0, 0)}


@dataclass(frozen=True)
class Problem:
    """Something that is not as it must be, and the statement or setting that cures it."""

    what: str
    fix: str
    creatable: bool = False

    @property
    def fatal(self) -> bool:
        return not self.creatable

    def __str__(self) -> str:
        return f"- {self.what}\n    {self.fix}"


def check(connection: Connection, tables: Collection[TableName], *, writes: bool = True) -> list[Problem]:
    """Every problem at once, in the order in which to cure them. Changes nothing."""
    with translating("checking the server"):
        found = list(_problems(connection, server(connection), tables))
        return found if writes else [p for p in found if not p.creatable]


def prepare(connection: Connection, tables: Collection[TableName], *, writes: bool = True) -> None:
    """Create what is missing and allowed; else raise PreconditionFailed with every fatal problem."""
    problems = check(connection, tables, writes=writes)
    if fatal := [p for p in problems if p.fatal]:
        many = "1 problem" if len(fatal) == 1 else f"{len(fatal)} problems"
        raise PreconditionFailed(f"the server is not ready for capture, {many}:\n" + "\n".join(map(str, fatal)))
    with translating("setting up the server"), connection.cursor() as cursor:
        for problem in problems:
            cursor.execute(problem.fix)


def _problems(connection: Connection, there: Server, tables: Collection[TableName]) -> Iterator[Problem]:
    family = there.flavor.name
    if there.version < OLDEST[family]:
        wanted = ".".join(map(str, OLDEST[family][:2]))
        yield Problem(f"the server is {family} {'.'.join(map(str, there.version))}", f"upgrade to {wanted} or later")
        return
    settings = _variables(connection)
    if settings.get("log_bin") not in ("ON", "1"):
        yield Problem(
            "the server writes no binary log", "set log_bin = binlog and server_id in its configuration, restart it"
        )
    for name, wanted in {
        "binlog_format": "ROW",
        "binlog_row_image": "FULL",
        "binlog_row_metadata": "FULL",
        **({"binlog_order_commits": "ON"} if family == "MySQL" else {}),
    }.items():
        if settings.get(name, "").upper() != wanted:
            yield Problem(
                f"{name} is {settings.get(name, 'unknown')!r}",
                f"SET GLOBAL {name} = {wanted}; and in its configuration",
            )
    if settings.get("server_id", "0") == "0":
        yield Problem("server_id is 0", "SET GLOBAL server_id = 1; and in its configuration")
    yield from _of_tables(connection, tables)
    with connection.cursor() as cursor:
        cursor.execute(
            "select count(*) from information_schema.tables where table_schema = 'dblog' and table_name = 'watermark'"
        )
        if not cursor.fetchone()[0]:
            yield from (Problem("the table dblog.watermark is missing", sql, creatable=True) for sql in WATERMARK_SQL)


def _of_tables(connection: Connection, tables: Collection[TableName]) -> Iterator[Problem]:
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(
                "select t.engine, (select count(*) from information_schema.statistics s where s.index_name = 'PRIMARY' "
                "and s.table_schema = t.table_schema and s.table_name = t.table_name) from information_schema.tables t "
                "where t.table_schema = %s and t.table_name = %s",
                tuple(table),
            )
            found = cursor.fetchone()
            if found is None:
                yield Problem(f"table {table} does not exist", "correct the option table or tables")
            elif not found[1]:
                yield Problem(
                    f"table {table} has no primary key", f"ALTER TABLE {identifier(*table)} ADD PRIMARY KEY (...)"
                )
            elif (found[0] or "").upper() not in ("INNODB", "ROCKSDB"):
                yield Problem(
                    f"table {table} is of engine {found[0]}, which has no transactions",
                    f"ALTER TABLE {identifier(*table)} ENGINE = InnoDB",
                )


def _variables(connection: Connection) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "show global variables where variable_name like '%binlog%' or variable_name in ('log_bin', 'server_id')"
        )
        return {name.lower(): value for name, value in cursor.fetchall()}
