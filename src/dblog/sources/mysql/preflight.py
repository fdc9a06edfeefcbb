"""The preflight: is the server set up for capture? One inspection finds every problem, each with its fix.

`check` changes nothing. `prepare` raises if a problem is fatal. Otherwise it creates the watermark table if that is
missing, with the statements that `check` prints as the fix. The single checks are in `preflight_checks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dblog.core.promised_keys import PromisedKeys
from dblog.core.schema import TableName
from dblog.databases.mysql.connect import Connection, Server, server, translating
from dblog.errors import PositionLost, PreconditionFailed
from dblog.sources.mysql import table_checks
from dblog.sources.mysql.cascade_tables import unclear_cascades
from dblog.sources.mysql.grants import User
from dblog.sources.mysql.preflight_checks import REPLICATION, WATERMARK_SQL, Inspection, Setup
from dblog.sources.mysql.statements import Definition
from dblog.sources.problems import Problem, for_later, paragraphs, refuse
from dblog.sources.relational import WATERMARK

__all__ = [
    "WATERMARK_SQL",
    "Problem",
    "Setup",
    "admin_sql",
    "altered",
    "check",
    "check_definition",
    "prepare",
    "unfit",
    "user",
]

AGAIN = "start with a new checkpoint, which dumps the tables again"
OLDEST = {"MariaDB": (10, 5, 0), "MySQL": (8, 0, 0)}
LOCK_SECONDS = 1
"""How long a query of the preflight waits for a table that is being altered, in seconds."""


def check(connection: Connection, setup: Setup) -> list[Problem]:
    """Find every problem, in the order in which to fix them. Changes nothing."""
    there = server(connection)
    if there.version < OLDEST[there.flavor.name]:  # the queries below would fail
        return [_too_old(there)]
    with translating("checking the server"), connection.cursor() as cursor:
        cursor.execute(f"set session lock_wait_timeout = {LOCK_SECONDS}")
        return [*Inspection(cursor, setup, there).problems(), *setup.left_out]


def unfit(
    connection: Connection, setup: Setup, kinds: Mapping[TableName, str], *, rights: bool
) -> dict[TableName, list[Problem]]:
    """The tables of the set-up that cannot be followed, and why. `kinds` are what the catalog says that they are. With
    `rights`, the user must be able to read them, too."""
    there = server(connection)
    if there.version < OLDEST[there.flavor.name]:
        return {}
    found = {table: list(table_checks.of_kind(table, kinds[table])) for table in setup.tables if kinds[table] == "VIEW"}
    tables = tuple(table for table in setup.tables if table not in found)
    with translating("looking at the tables"), connection.cursor() as cursor:
        inspection = Inspection(cursor, replace(setup, tables=tables), there)
        for table in tables:
            if table in inspection.tables:  # otherwise it was dropped after it was listed
                wrong = inspection.of_table(table) if rights else inspection.unfit(table)
                found[table] = [p for p in wrong if p.fatal]
    return {table: wrong for table, wrong in found.items() if wrong}


def prepare(connection: Connection, setup: Setup) -> None:
    """Create what is missing, if the user may; raise PreconditionFailed with every fatal problem."""
    problems = check(connection, setup)
    refuse(problems)
    with translating("setting up the server"), connection.cursor() as cursor:
        for problem in problems:
            for statement in problem.fix.splitlines() if problem.creatable else ():
                cursor.execute(statement)


def altered(
    connection: Connection,
    names: Iterable[TableName],
    cascades: str = table_checks.SKIP,
    keys: PromisedKeys | None = None,
) -> dict[TableName, PreconditionFailed]:
    """The errors of tables that a stream follows and that cannot be followed any more."""
    found, settings = _look_at(connection, names, keys)
    errors = {table.name: _altered(connection, [table], settings, cascades) for table in found}
    return {name: error for name, error in errors.items() if error is not None}


def check_definition(
    connection: Connection, said: Definition, cascades: str = table_checks.SKIP, keys: PromisedKeys | None = None
) -> None:
    """Raise PreconditionFailed if a table that a statement in the log has changed cannot be followed now. Raise
    PositionLost if it can be followed now but could not for a time: changes of that time are not in the log."""
    found, settings = _look_at(connection, [said.table], keys)
    if (error := _altered(connection, found, settings, cascades)) is not None:
        raise error
    wrong = table_checks.faults(said, settings, cascades)
    if wrong and found:  # a table that was dropped is emptied downstream when the log shows it
        raise PositionLost(
            f"a statement in the log made table {str(said.table)!r} {' and '.join(wrong)}; this was undone, but "
            "changes in between may be missing from the log",
            hint=AGAIN,
        )


def _look_at(
    connection: Connection, names: Iterable[TableName], keys: PromisedKeys | None
) -> tuple[list[table_checks.Table], dict[str, str]]:
    with translating("checking the tables"), connection.cursor() as cursor:
        settings = table_checks.read_settings(cursor)
        found = (table_checks.read_table(cursor, name, keys) for name in names)
        return [table for table in found if table is not None], settings


def _altered(
    connection: Connection, found: Iterable[table_checks.Table], settings: dict[str, str], cascades: str
) -> PreconditionFailed | None:
    wrong = [p for table in found for p in table_checks.problems(table, settings, cascades) if p.fatal]
    if cascades == table_checks.FOLLOW:
        flavor = server(connection).flavor
        with translating("checking the foreign keys"), connection.cursor() as cursor:
            wrong += [p for table in found for p in unclear_cascades(cursor, table, settings, flavor)]
    if not wrong:
        return None
    return PreconditionFailed(
        "a table was altered and cannot be followed any more; changes since then may be missing from the log:\n"
        + "\n".join(map(str, paragraphs(wrong))),
        hint=f"undo that, then {AGAIN}",
    )


def admin_sql(setup: Setup, account: str, problems: Sequence[Problem] = ()) -> str:
    """Return the whole set-up as a script for an administrator. Afterwards the account needs no further privilege. The
    script also has the fixes of `problems`, which `check` has found."""
    grantee = User.read(account)
    lines = [grantee.granted(", ".join(REPLICATION))]
    if setup.writes:
        lines += [*WATERMARK_SQL, grantee.granted("SELECT, UPDATE", WATERMARK)]
    lines += [grantee.granted("SELECT", table) for table in dict.fromkeys(setup.tables) if table != WATERMARK]
    needed = [statement for p in problems if p.fatal or p.creatable for statement in p.statements]
    lines += [statement for statement in needed if statement not in lines]
    return "\n".join([*lines, *for_later(problems)]) + "\n"


def user(connection: Connection) -> str:
    """The account of this session, to which privileges are granted, such as "cdc@%"."""
    with translating("asking for the user"), connection.cursor() as cursor:
        cursor.execute("select current_user()")
        return str(cursor.fetchone()[0])


def _too_old(there: Server) -> Problem:
    family = there.flavor.name
    shown, wanted = (".".join(map(str, version)) for version in (there.version, OLDEST[family][:2]))
    return Problem(f"the server is {family} {shown}", f"upgrade to {family} {wanted} or later")
