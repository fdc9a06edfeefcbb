"""The checks of the preflight: query the server, find the problems, and give the statements that fix them.

A privilege is checked by running a statement that needs it and changes nothing. So roles, patterns and grants on single
columns count too. Only privileges that no harmless statement needs are read from `SHOW GRANTS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pymysql.err

from dblog.core.event import RESERVED
from dblog.core.promised_keys import PromisedKeys
from dblog.core.schema import TableName
from dblog.databases.mysql.connect import GONE, RIGHTS, Server, identifier
from dblog.sources.mysql import table_checks
from dblog.sources.mysql.cascade_tables import unclear_cascades
from dblog.sources.mysql.grants import Grants, User
from dblog.sources.problems import Problem
from dblog.sources.relational import WATERMARK

WATERMARK_SQL = (
    "CREATE DATABASE IF NOT EXISTS dblog;",
    "CREATE TABLE IF NOT EXISTS dblog.watermark (id int PRIMARY KEY, token varchar(64) NOT NULL) ENGINE = InnoDB;",
    "INSERT IGNORE INTO dblog.watermark (id, token) VALUES (1, '');",
)
REPLICATION = ("REPLICATION SLAVE", "REPLICATION CLIENT")
DAY = 86400
_RDS = "on Amazon RDS and Aurora: in the parameter group"
_SYNTAX, _NO_DATABASE, _LOCKED, _READ_ONLY = 1064, 1049, 1205, {1290, 1792, 1836}


@dataclass(frozen=True)
class Setup:
    """What a pipeline needs from its server."""

    tables: tuple[TableName, ...]
    server_id: int
    columns: tuple[str, ...] | None = None
    """The columns to capture of every table, beside the key; None for all."""
    writes: bool = True
    """Whether the stream writes watermarks to `dblog.watermark`."""
    cascades: str = table_checks.SKIP
    """The option `cascades`."""
    keys: PromisedKeys = field(default_factory=PromisedKeys)
    """The keys that users promise for tables without one."""
    left_out: tuple[Problem, ...] = ()
    """Why other tables that the patterns bring are left out."""


_ALIKE = """
select table_schema, table_name from information_schema.tables
where lower(table_schema) = lower(%s) and lower(table_name) = lower(%s)
"""


class Inspection:
    """Reads the server's settings, grants and tables once, and finds the problems in them."""

    def __init__(self, cursor: Any, setup: Setup, there: Server) -> None:
        self.cursor, self.setup, self.flavor = cursor, setup, there.flavor
        self.settings = {name.lower(): value for name, value in self._all("show global variables")}
        self.user = User.read(self._all("select current_user()")[0][0])
        self.grants = Grants([line for (line,) in self._all("show grants")])
        self.log = self._ask("show binary log status", "show master status")
        described = {name: table_checks.read_table(cursor, name, setup.keys) for name in (*setup.tables, WATERMARK)}
        self.tables = {name: table for name, table in described.items() if table is not None}

    def problems(self) -> Iterator[Problem]:
        yield from self._of_log()
        yield from self._of_rights()
        yield from self._of_ids()
        yield from self._of_replica()
        yield from self._of_filters()
        if WATERMARK in self.setup.tables:
            yield Problem(f"the watermark table '{WATERMARK}' cannot be captured", "leave it out of the tables")
        for name in dict.fromkeys(self.setup.tables):
            if name != WATERMARK:
                yield from self.of_table(name)
        if self.setup.writes:
            yield from self._of_watermark()
        yield from self._of_retention()

    # -- queries ---------------------------------------------------------------------------------------------

    def _all(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        self.cursor.execute(query, parameters or None)
        return list(self.cursor.fetchall())

    def _ask(self, *statements: str) -> list[dict[str, Any]] | None:
        """Run the first of the statements that this version knows. None if the user lacks the privilege."""
        for statement in statements:
            try:
                rows = self._all(statement)
            except pymysql.err.MySQLError as error:
                if error.args[0] == _SYNTAX:
                    continue
                if error.args[0] in RIGHTS:
                    return None
                raise
            names = [column[0].lower() for column in self.cursor.description]
            return [dict(zip(names, row, strict=True)) for row in rows]
        return None

    def _try(self, statement: str) -> int:
        """Run a statement; return the number of its error, or 0."""
        try:
            self._all(statement)
        except pymysql.err.MySQLError as error:
            if error.args[0] not in RIGHTS | GONE | _READ_ONLY | {_NO_DATABASE, _LOCKED}:
                raise
            return int(error.args[0])
        return 0

    # -- the server ------------------------------------------------------------------------------------------

    def _set(self, name: str, value: str) -> str:
        persist = "PERSIST" if self.flavor.persists else "GLOBAL"
        kept = _RDS if self.flavor.persists else f"and in the server's configuration; {_RDS}"
        return f"SET {persist} {name} = {value};  -- {kept}"

    def _of_log(self) -> Iterator[Problem]:
        settings = self.settings
        if settings.get("log_bin") != "ON":
            aws = "on Amazon RDS: turn on backups; on Aurora: binlog_format = ROW in the cluster's parameter group"
            fix = f"log_bin = binlog in the server's configuration, then restart it; {aws}"
            yield Problem("the server does not write a binary log (log_bin is OFF)", fix)
        needed = {
            "binlog_format": ("ROW", "the log would have statements instead of rows"),
            "binlog_row_image": ("FULL", "the log would have incomplete rows"),
            "binlog_order_commits": ("ON", "commits could become visible in another order than in the log"),
        }
        for name, (wanted, why) in needed.items():
            if settings.get(name, wanted).upper() != wanted:  # a setting that the server lacks is fine
                yield Problem(f"{name} is {settings[name]}: {why}", self._set(name, wanted))
        metadata = settings.get("binlog_row_metadata", "")
        if metadata.upper() != "FULL":
            what = f"binlog_row_metadata is {metadata}: the log does not name columns. After an ALTER, older changes "
            what += "cannot be read, or get wrong column names if columns of equal types changed places"
            yield Problem(what, self._set("binlog_row_metadata", "FULL"), fatal=False)
        if settings.get("gtid_mode", "ON") != "ON":
            writes = self.setup.writes
            why = "after a failover a stream must start anew" if writes else "only GTIDs show what selects can see"
            fix = "gtid_mode = ON and enforce_gtid_consistency = ON in the server's configuration, or step by step"
            yield Problem(f"gtid_mode is {settings['gtid_mode']}: {why}", fix, fatal=not writes)

    def _of_rights(self) -> Iterator[Problem]:
        lacks = [] if self.grants.has(REPLICATION[0]) else [REPLICATION[0]]
        lacks += [REPLICATION[1]] if self.log is None else []
        if lacks:
            rights = ", ".join(lacks)
            yield Problem(f"user {self.user} may not read the log (no {rights})", self.user.granted(rights))

    def _of_ids(self) -> Iterator[Problem]:
        own, other = self.setup.server_id, "set the option serverId to a number that no server or reader has"
        if self.settings.get("server_id") == "0":
            yield Problem("server_id is 0: the server does not send its log", self._set("server_id", "1"))
        elif self.settings.get("server_id") == str(own):
            yield Problem(f"serverId {own} is the server's own server_id", other)
        # The statement of MySQL, and both names of MariaDB's. A replica reports its port; a plain log reader does not.
        for reader in self._ask("show replicas", "show replica hosts", "show slave hosts") or ():
            if reader["server_id"] == own:
                what = f"a replica ({reader['host'] or 'unknown'}:{reader['port']}) has serverId {own}"
                if reader["port"]:
                    yield Problem(f"{what}: the server would end its session", other)
                else:
                    what = f"another reader of the log has serverId {own}: the server will end its session"
                    yield Problem(what, f"if it is not this pipeline, {other}", fatal=False)

    def _of_replica(self) -> Iterator[Problem]:
        """Check that a replica writes the changes that it replicates to its own log, in its source's commit order."""
        status = self._ask("show all replicas status", "show replica status", "show slave status")
        if status is None:
            running = dict(self._all("show global status like 'slaves_running'"))
            replicates = any(int(count) for count in running.values())
        else:
            replicates = bool(status)
        if not replicates:
            return
        logs, preserves, workers = (
            next((name for name in names if name in self.settings), names[0])
            for names in (
                ("log_replica_updates", "log_slave_updates"),
                ("replica_preserve_commit_order", "slave_preserve_commit_order"),
                ("replica_parallel_workers", "slave_parallel_workers"),
            )
        )
        if self.settings.get(logs, "ON") != "ON":
            fix = f"{logs} = ON in the server's configuration, then restart it; or connect to the primary"
            yield Problem(f"the server is a replica and does not log the replicated changes ({logs} is OFF)", fix)
        if self.settings.get(preserves, "ON") != "ON" and int(self.settings.get(workers, "0")) > 1:
            what = f"the server is a replica and may commit in another order than its source ({preserves} is OFF)"
            yield Problem(what, self._set(preserves, "ON"))

    def _of_filters(self) -> Iterator[Problem]:
        status = (self.log or [{}])[0]
        only, never = (_names(status.get(column)) for column in ("binlog_do_db", "binlog_ignore_db"))
        needed = {table.schema for table in self.setup.tables} | ({WATERMARK.schema} if self.setup.writes else set())
        for schema in sorted(needed):
            if (only and schema not in only) or schema in never:
                name = "binlog_ignore_db" if schema in never else "binlog_do_db"
                what = f"changes of database {schema!r} are not logged ({name})"
                fix = f"correct {name} in the server's configuration, then restart it"
                yield Problem(what, fix)

    def _of_retention(self) -> Iterator[Problem]:
        why = "a stream that is stopped for longer loses its position"
        if self._all(
            "select 1 from information_schema.routines where routine_schema = 'mysql' and "
            "routine_name = 'rds_show_configuration'"
        ):
            rows = self._all("call mysql.rds_show_configuration()")
            while self.cursor.nextset():
                pass
            (hours,) = [value for name, value, *_ in rows if name == "binlog retention hours"] or [None]
            seconds = int(hours or 0) * 3600
            fix = "CALL mysql.rds_set_configuration('binlog retention hours', 72);"
        else:
            days = float(self.settings.get("expire_logs_days") or 0) * DAY
            seconds = (
                int(float(self.settings.get("binlog_expire_logs_seconds") or 0) or days) or DAY
            )  # 0: kept for ever
            fix = self._set("binlog_expire_logs_seconds", str(3 * DAY))
        if seconds < DAY:
            kept = f"for only {seconds / 3600:.3g} h" if seconds else "only as long as it needs it itself"
            yield Problem(f"the server keeps its log {kept}: {why}", fix, fatal=False)

    # -- tables ----------------------------------------------------------------------------------------------

    def of_table(self, name: TableName) -> Iterator[Problem]:
        table = self.tables.get(name)
        if table is None:
            yield self._unseen(name)
            return
        if table.kind == "BASE TABLE":
            wanted = {*(self.setup.columns or ()), *(column for column, _ in table.key), *table.promised}
            some = [identifier(column) for column in table.columns if column in wanted]
            columns = "*" if self.setup.columns is None else ", ".join(some) or "1"
            if self._try(f"select {columns} from {identifier(*name)} limit 0") in RIGHTS:
                what, reason = f"user {self.user} lacks SELECT on {str(name)!r}", f"user {self.user} lacks SELECT"
                yield Problem(what, self.user.granted("SELECT", name), table=name, reason=reason)
        yield from self.unfit(name)

    def unfit(self, name: TableName) -> Iterator[Problem]:
        """Why a table that exists cannot be followed, whatever the user may do."""
        yield from table_checks.problems(self.tables[name], self.settings, self.setup.cascades)
        if self.setup.cascades == table_checks.FOLLOW:
            yield from unclear_cascades(self.cursor, self.tables[name], self.settings, self.flavor)
        if self.setup.columns is None and (taken := sorted(RESERVED & set(self.tables[name].columns))):
            why = f"columns named {', '.join(taken)}, which dblog uses for itself"
            yield Problem(f"table {str(name)!r} has {why}", "rename the columns", table=name, reason=why)

    def _unseen(self, name: TableName) -> Problem:
        shown = repr(str(name))
        if others := sorted(str(TableName(*other)) for other in self._all(_ALIKE, *name)):
            fix = f"write it as the server does: {', '.join(others)}"
            return Problem(f"table {shown} exists only in another letter case", fix, table=name)
        if self._try(f"select 1 from {identifier(*name)} limit 0") in RIGHTS:
            what = f"table {shown} does not exist, or user {self.user} may not read it"
            return Problem(what, self.user.granted("SELECT", name), table=name)
        return Problem(f"table {shown} does not exist", "correct the option table or tables", table=name)

    def _of_watermark(self) -> Iterator[Problem]:
        *create, fill = WATERMARK_SQL
        read_only = [n for n in ("read_only", "super_read_only", "innodb_read_only") if self._is_on(n)]
        refused = Problem(
            f"the server is read-only ({', '.join(read_only)}), so watermarks cannot be written",
            "connect to the primary, or set the option watermark to none",
        )
        table = self.tables.get(WATERMARK)
        denied = self._try(f"update {WATERMARK} set token = token where id = 1 and false")
        rights = self.user.granted("SELECT, UPDATE", WATERMARK)
        if denied in _READ_ONLY:
            yield refused
        elif table is None:
            may = all(self.grants.has(right, WATERMARK) for right in ("CREATE", "INSERT", "SELECT", "UPDATE"))
            fix = "\n".join([*create, fill, *([] if may else [rights])])
            unseen = f", or user {self.user} may not see it" if denied in RIGHTS else ""
            yield Problem(f"the watermark table '{WATERMARK}' does not exist{unseen}", fix, not may, may)
        elif denied in RIGHTS:
            # Without SELECT we cannot check that the row exists, so the fix inserts it.
            yield Problem(f"user {self.user} lacks SELECT, UPDATE on '{WATERMARK}'", f"{rights}\n{fill}")
        elif (
            sorted(table.columns) != ["id", "token"]
            or [column for column, *_ in table.key] != ["id"]
            or (table.engine or "").upper() not in table_checks.TRANSACTIONAL
        ):
            yield Problem(f"'{WATERMARK}' does not have the form of a watermark table", "drop or rename it")
        elif not self._all(f"select 1 from {WATERMARK} where id = 1"):
            may = self.grants.has("INSERT", WATERMARK)
            yield Problem(f"the watermark table '{WATERMARK}' has no row", fill, fatal=not may, creatable=may)

    def _is_on(self, name: str) -> bool:
        return self.settings.get(name, "OFF") not in ("OFF", "0")


def _names(listed: str | None) -> set[str]:
    return {name.strip() for name in (listed or "").split(",") if name.strip()}
