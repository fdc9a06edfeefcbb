"""The preflight of a source, whatever its family: what a stream would find wrong with the server and its tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dblog.core.schema import TableName
from dblog.sources.problems import Problem

if TYPE_CHECKING:
    from dblog.sources.mysql.source import MySQL
    from dblog.sources.postgres.source import Postgres

PROGRAM = "dblog check"
"""How the server's administrator sees the connection."""


@dataclass(frozen=True)
class Preflight:
    """The preflight of one family, over an open connection."""

    identity: Mapping[str, str | int]
    tables: Sequence[TableName]
    problems: Callable[[], Sequence[Problem]]
    admin_sql: Callable[[], str]


def preflight_of(
    source: MySQL | Postgres, *, followed: Collection[TableName] | None = None
) -> AbstractContextManager[Preflight]:
    """The preflight of a source. `followed` are the tables that a stream has followed so far; None for a new stream."""
    from dblog.sources.mysql.source import MySQL

    return _mysql(source) if isinstance(source, MySQL) else _postgres(source, followed)


@contextmanager
def _postgres(source: Postgres, followed: Collection[TableName] | None) -> Iterator[Preflight]:
    from dblog.databases.postgres.connect import connect
    from dblog.sources.postgres import preflight

    setup = source.setup(followed=followed)
    with closing(connect(source.address, application_name=PROGRAM)) as connection:
        yield Preflight(
            {"slot": setup.slot, "publication": setup.publication},
            setup.tables,
            lambda: preflight.check(connection, setup),
            lambda: preflight.admin_sql(setup, connection.info.user, preflight.check(connection, setup)),
        )


@contextmanager
def _mysql(source: MySQL) -> Iterator[Preflight]:
    from dblog.databases.mysql.connect import connect
    from dblog.sources.mysql import preflight

    setup = source.setup()
    with closing(connect(source.address, program=PROGRAM)) as connection:
        yield Preflight(
            {"server_id": setup.server_id},
            setup.tables,
            lambda: preflight.check(connection, setup),
            lambda: preflight.admin_sql(setup, preflight.user(connection), preflight.check(connection, setup)),
        )
