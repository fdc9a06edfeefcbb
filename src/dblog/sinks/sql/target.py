"""What the sink needs from a database. A target has no connection, so it can be sent to the executors; each of them
opens its own connection.

Statements contain all values as literals: numbers, names and a few texts of our own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from dblog.core.schema import TableName, TableSchema
from dblog.errors import ConnectionLost, DBLogError, SinkError, SinkUnreachable, TableLocked
from dblog.sinks.sql.shape import Found

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression

ORDER = {"_lsn": "bigint", "_seq": "int"}
"""Columns of every table: the order of the row's last change in the source's log."""
GONE = "_deleted"
"""A column of tables with soft deletes: whether the source has deleted the row."""
STAGED = ("_gone", "_lsn", "_seq", "_unchanged", "_whole", "_task")
"""Columns of a staging table after the table's own columns."""


class Session:
    """A connection on which every statement commits, except inside of a `transaction`."""

    def __init__(self, target: Target, connection: Any) -> None:
        self.target = target
        self.connection = connection

    def run(self, sql: str, doing: str = "writing to the target") -> list[tuple[Any, ...]]:
        """Run a statement and return its rows. Raises SinkError."""
        with self.target.errors(doing), self.connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.run("begin")
        try:
            yield
            self.run("commit")
        except BaseException:
            with suppress(SinkError):
                self.run("rollback")
            raise

    def close(self) -> None:
        with suppress(Exception):
            self.connection.close()


@dataclass(frozen=True)
class StagedRows:
    """Rows of a staging table that are to be applied to a table. All names are quoted."""

    stage: str
    table: str
    deleted: str
    """The ledger's table of deleted keys."""
    key: tuple[str, ...]
    signed: tuple[str, ...]
    """Key columns that are written even if the key is equal: -0 equals 0 and must replace it."""
    columns: tuple[str, ...]
    """All written columns, with the key."""
    names: Mapping[str, str]
    """The unquoted names of the columns, as in `_unchanged`."""
    types: Mapping[str, str]
    """The columns' types, as the server spells them."""
    incomplete: bool
    """Whether some rows leave columns unchanged."""
    tasks: tuple[int, ...]
    """The Spark tasks whose rows count: Spark may have run a task twice."""

    def matching(self, one: str, other: str) -> str:
        return " and ".join(f"{one}.{name} = {other}.{name}" for name in self.key)

    @property
    def counted(self) -> str:
        return f"s._task in ({', '.join(map(str, self.tasks))})"


def newer(one: str, other: str) -> str:
    return f"({one}._lsn, {one}._seq) > ({other}._lsn, {other}._seq)"


class Target(ABC):
    """A target database of one family, by its URL."""

    any_text: ClassVar[str]
    """A text type that can hold every value."""
    scratch: ClassVar[str]
    """The start of CREATE TABLE for a table that a server crash may empty."""
    moment: ClassVar[str]
    """The type of timestamps."""
    short_text: ClassVar[str]
    """The type of names."""
    schema: str
    """The schema of tables that are named without one."""

    @abstractmethod
    def connect(self) -> Session:
        """Open a session. Raises SinkError."""

    @abstractmethod
    def errors(self, doing: str) -> AbstractContextManager[None]:
        """Raise the driver's errors of the block as SinkError."""

    @abstractmethod
    def quoted(self, *names: str) -> str:
        """Names quoted for SQL and joined with dots."""

    @abstractmethod
    def literal(self, text: str) -> str:
        """Text as a SQL literal."""

    @abstractmethod
    def types(self, schema: TableSchema) -> dict[str, str]:
        """The type of each column in a new table. Raises SinkError."""

    @abstractmethod
    def found(self, session: Session, table: TableName) -> Found | None:
        """An existing table; None if there is none."""

    @abstractmethod
    def create_schema(self, session: Session, name: str) -> None:
        """Create a schema unless it exists."""

    @abstractmethod
    def table_options(self, session: Session) -> str:
        """The options after the columns of CREATE TABLE."""

    @abstractmethod
    def alter(self, column: str, kind: str, *, key: bool) -> str:
        """The clause of ALTER TABLE that changes a column's type."""

    def staged_type(self, kind: str) -> str:
        """The type in a staging table of a column of this type that is not in the key."""
        return kind

    @abstractmethod
    def alone(self, session: Session) -> AbstractContextManager[None]:
        """Hold the lock under which all sinks change table definitions."""

    @abstractmethod
    def tables_like(self, session: Session, schema: str, prefix: str) -> list[str]:
        """The names of the schema's tables that start with `prefix`."""

    @abstractmethod
    def cell(self, name: str, kind: pa.DataType) -> Expression:
        """The expression by which Spark passes a column to `load`."""

    @property
    @abstractmethod
    def unchanged(self) -> str:
        """The type of the staging table's column `_unchanged`."""

    @abstractmethod
    def load(self, session: Session, stage: str, rows: pa.RecordBatch) -> None:
        """Insert rows into a staging table, all or none. Raises SinkError."""

    @abstractmethod
    def deletes(self, staged: StagedRows) -> str:
        """The statement that deletes the rows that are older than their staged deletion."""

    @abstractmethod
    def tombstones(self, staged: StagedRows, least: int, after: tuple[int, int]) -> str:
        """The statement that records deletions for which a pipeline may still bring an older state."""

    @abstractmethod
    def upserts(self, staged: StagedRows, where: str) -> Sequence[str]:
        """The statements that insert or update rows, except where the table has a newer state."""

    def alive(self, staged: StagedRows, after: tuple[int, int], *, soft: bool) -> str:
        """A condition on staged rows: not deleted later."""
        rows = [staged.counted, f"(s._lsn, s._seq) > ({after[0]}, {after[1]})"]
        if not soft:
            older = f"(d._lsn, d._seq) >= (s._lsn, s._seq) and {staged.matching('d', 's')}"
            rows += ["not s._gone", f"not exists (select 1 from {staged.deleted} as d where {older})"]
        return " and ".join(rows)


def refused(error: DBLogError, hint: str | None = None) -> SinkError:
    """The sink's error for an error of a connection."""
    away = isinstance(error, (ConnectionLost, TableLocked))
    return (SinkUnreachable if away else SinkError)(error.message, hint=hint or error.hint)
