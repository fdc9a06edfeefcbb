"""What a family of databases has to offer to the sink. A target has no connection of its own: it goes to the executors
as it is, and each of them connects by itself.

Statements have all their values within, as literals: those are numbers, names and a few texts of our own.
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
"""Columns of every table: where in the source's log the row's state comes from."""
GONE = "_deleted"
"""A column of tables with soft deletes: whether the source has deleted the row."""
STAGED = ("_gone", "_lsn", "_seq", "_unchanged", "_whole", "_task")
"""What stands behind the columns of a table in its staging table."""


class Session:
    """A connection in which every statement commits by itself, unless it is within a `transaction`."""

    def __init__(self, target: Target, connection: Any) -> None:
        self.target = target
        self.connection = connection

    def run(self, sql: str, doing: str = "writing to the target") -> list[tuple[Any, ...]]:
        """Run a statement; its rows. Raises SinkError."""
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
    """Rows that wait in a staging table to be applied to a table. All names are quoted."""

    stage: str
    table: str
    deleted: str
    """The table that remembers keys which were deleted."""
    key: tuple[str, ...]
    signed: tuple[str, ...]
    """The columns of the key that are written although the key is equal: it may have another sign."""
    columns: tuple[str, ...]
    """All that are written, the key included."""
    names: Mapping[str, str]
    """The columns' names, not quoted, as they stand in `_unchanged`."""
    types: Mapping[str, str]
    """The columns' types, as the server spells them."""
    incomplete: bool
    """Whether some rows leave columns as they are."""
    tasks: tuple[int, ...]
    """Whose rows count: Spark may have run a task twice."""

    def matching(self, one: str, other: str) -> str:
        return " and ".join(f"{one}.{name} = {other}.{name}" for name in self.key)

    @property
    def counted(self) -> str:
        return f"s._task in ({', '.join(map(str, self.tasks))})"


def newer(one: str, other: str) -> str:
    return f"({one}._lsn, {one}._seq) > ({other}._lsn, {other}._seq)"


class Target(ABC):
    """One family of databases, at an address."""

    any_text: ClassVar[str]
    """The type that holds whatever can be written."""
    scratch: ClassVar[str]
    """How a table is created that need not survive the server's crash."""
    moment: ClassVar[str]
    """A type for points in time."""
    short_text: ClassVar[str]
    """A type for names."""
    schema: str
    """Where tables go that have no schema."""

    @abstractmethod
    def connect(self) -> Session:
        """Raises SinkError."""

    @abstractmethod
    def errors(self, doing: str) -> AbstractContextManager[None]:
        """Raises the driver's errors of the block as SinkError."""

    @abstractmethod
    def quoted(self, *names: str) -> str:
        """Names as SQL has them."""

    @abstractmethod
    def literal(self, text: str) -> str:
        """Text as SQL has it."""

    @abstractmethod
    def types(self, schema: TableSchema) -> dict[str, str]:
        """For each column the type that it has in a new table. Raises SinkError."""

    @abstractmethod
    def found(self, session: Session, table: TableName) -> Found | None:
        """A table as it is."""

    @abstractmethod
    def create_schema(self, session: Session, name: str) -> None:
        """Unless it is there."""

    @abstractmethod
    def table_options(self, session: Session) -> str:
        """What stands behind the columns of a new table."""

    @abstractmethod
    def alter(self, column: str, kind: str, *, key: bool) -> str:
        """What changes a column's type, after `alter table ...`."""

    def staged_type(self, kind: str) -> str:
        """The type that a column of this type, which is not of the key, has in a staging table."""
        return kind

    @abstractmethod
    def alone(self, session: Session) -> AbstractContextManager[None]:
        """Within the block nobody else of us changes definitions."""

    @abstractmethod
    def tables_like(self, session: Session, schema: str, prefix: str) -> list[str]:
        """The names of tables that begin so."""

    @abstractmethod
    def cell(self, name: str, kind: pa.DataType) -> Expression:
        """A column as Spark is to hand it to `load`."""

    @property
    @abstractmethod
    def unchanged(self) -> str:
        """The type of the staging table's column of that name."""

    @abstractmethod
    def load(self, session: Session, stage: str, rows: pa.RecordBatch) -> None:
        """Put rows into a staging table, all or nothing. Raises SinkError."""

    @abstractmethod
    def deletes(self, staged: StagedRows) -> str:
        """The statement that deletes rows of the table that are older than their deletion."""

    @abstractmethod
    def tombstones(self, staged: StagedRows, least: int, after: tuple[int, int]) -> str:
        """The statement that remembers deletions, as far as somebody may still come with an older state."""

    @abstractmethod
    def upserts(self, staged: StagedRows, where: str) -> Sequence[str]:
        """The statements that write rows unless the table has a newer state of them."""

    def alive(self, staged: StagedRows, after: tuple[int, int], *, soft: bool) -> str:
        """Which staged rows are to be in the table: those that nobody has deleted since."""
        rows = [staged.counted, f"(s._lsn, s._seq) > ({after[0]}, {after[1]})"]
        if not soft:
            older = f"(d._lsn, d._seq) >= (s._lsn, s._seq) and {staged.matching('d', 's')}"
            rows += ["not s._gone", f"not exists (select 1 from {staged.deleted} as d where {older})"]
        return " and ".join(rows)


def refused(error: DBLogError, hint: str | None = None) -> SinkError:
    """What an error of a connection means to a sink."""
    away = isinstance(error, (ConnectionLost, TableLocked))
    return (SinkUnreachable if away else SinkError)(error.message, hint=hint or error.hint)
