"""What the sink needs from a database. A target has no connection, so it can be sent to the executors; each of them
opens its own connection.

Statements contain all values as literals.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from dblog.core.schema import TableName, TableSchema
from dblog.errors import ConnectionLost, DBLogError, SinkError, SinkUnreachable, TableLocked, TargetRefused
from dblog.sinks.sql.shape import Found
from dblog.sinks.sql.staged import Inline, StagedRows

ORDER = {"_lsn": "bigint", "_seq": "int"}
"""Columns of every table: the order of the row's last change in the source's log."""
GONE = "_deleted"
"""A column of tables with soft deletes: whether the source has deleted the row."""
TEXT_SIZE = 1 << 20
"""Statements are sent together in texts of about this many characters."""


class Statement(NamedTuple):
    """A statement, and what it does: a phrase like "writing table public.orders"."""

    sql: str
    doing: str
    table: tuple[str, ...] = ()
    """The source's table that it is for; empty if it is for several."""


class Session:
    """A connection on which every statement commits, except inside of a `transaction`."""

    def __init__(self, target: Target, connection: Any) -> None:
        self.target = target
        self.connection = connection
        self.together = True
        """Whether `run_all` sends many statements in one text. The error of a text does not say which statement has
        failed."""
        self.text_size = TEXT_SIZE

    def run(self, sql: str, doing: str = "writing to the target") -> list[tuple[Any, ...]]:
        """Run a statement, or several in one text, and return the rows of the last one. Raises SinkError."""
        with self.target.errors(doing), self.connection.cursor() as cursor:
            cursor.execute(sql)
            return self.target.last_rows(cursor)

    def run_all(self, statements: Iterable[Statement]) -> None:
        """Run statements, in few round trips. Raises SinkError."""
        text: list[str] = []
        size = 0
        for statement in statements:
            if not self.together:
                with about_table(statement.table):
                    self.run(statement.sql, statement.doing)
                continue
            text.append(statement.sql)
            size += len(statement.sql)
            if size >= self.text_size:
                self.run("; ".join(text))
                text, size = [], 0
        if text:
            self.run("; ".join(text))

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Within the block, `run_all` sends every statement by itself."""
        together, self.together = self.together, False
        try:
            yield
        finally:
            self.together = together

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


class DuplicateKey(SinkError):
    """A table has a row with the key of an inserted row."""


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
    unchanged: ClassVar[str]
    """The type of the staging table's column `_unchanged`."""
    for_share: ClassVar[str]
    """What a SELECT ends with that locks its rows against changes."""
    years: ClassVar[str | None] = None
    """The option `years` of the source, if the target cannot store dates of all years."""
    schema: str
    """The schema of tables that are named without one."""

    @abstractmethod
    def connect(self, *, durable: bool = True) -> Session:
        """Open a session. Raises SinkError. Commits need not be `durable` before the next durable commit of another
        session."""

    @abstractmethod
    def errors(self, doing: str) -> AbstractContextManager[None]:
        """Raise the driver's errors of the block as SinkError."""

    def last_rows(self, cursor: Any) -> list[tuple[Any, ...]]:
        """The rows of the last statement that a cursor has run."""
        return list(cursor.fetchall()) if cursor.description else []

    @abstractmethod
    def quoted(self, *names: str) -> str:
        """Names quoted for SQL and joined with dots."""

    @abstractmethod
    def literal(self, text: str) -> str:
        """Text as a SQL literal."""

    # -- definitions -------------------------------------------------------------------------------------------------

    @abstractmethod
    def types(self, schema: TableSchema) -> dict[str, str]:
        """The type of each column in a new table. Raises SinkError."""

    @abstractmethod
    def of_family(self, schema: TableSchema) -> bool:
        """Whether a table's types are of the target's family. Then it reads the raw values of the source."""

    @abstractmethod
    def input_texts(self, name: str, values: pa.Array) -> pa.Array:
        """The values of a column as texts that the server reads as values of the column's type. Raises Refused."""

    @abstractmethod
    def found(self, session: Session, tables: Sequence[TableName]) -> dict[TableName, Found]:
        """Those of the tables that exist."""

    @abstractmethod
    def create_schemas(self, session: Session, names: Iterable[str]) -> None:
        """Create schemas unless they exist."""

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
    def claim(self, session: Session, name: str) -> None:
        """End the session that has claimed this name, and claim it for this one. A leader that was stopped inside of a
        transaction would keep its locks until it wakes up."""

    @abstractmethod
    def alone(self, session: Session) -> AbstractContextManager[None]:
        """Hold the lock under which all sinks change table definitions."""

    def definitions(self, session: Session) -> AbstractContextManager[None]:
        """Around statements that change definitions: a transaction, if the server has it for them."""
        return nullcontext()

    @abstractmethod
    def tables_like(self, session: Session, schema: str, prefix: str) -> list[str]:
        """The names of the schema's tables that start with `prefix`."""

    # -- rows --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def insert(self, session: Session, table: str, rows: pa.RecordBatch, types: Mapping[str, str]) -> None:
        """Insert rows into a table, all or none. Their columns are columns of the table, and `types` has the server's
        types of them. Runs inside of a transaction. Raises SinkError; DuplicateKey; Refused for a value that the server
        cannot store."""

    @abstractmethod
    def inline(self, rows: pa.Table, types: Mapping[str, str], stage: str) -> Inline:
        """A few rows as a part of statements. `types` has the server's types without lengths. `stage` is a staging
        table for these rows alone, if the target `keeps_stages`. Raises Refused."""

    keeps_stages: ClassVar[bool] = False
    """Whether `inline` needs a staging table."""

    @abstractmethod
    def deletes(self, staged: StagedRows) -> str:
        """The statement that deletes the rows that are older than their staged deletion."""

    @abstractmethod
    def tombstones(self, staged: StagedRows, least: int, after: tuple[int, int]) -> str:
        """The statement that records deletions for which a pipeline may still bring an older state."""

    @abstractmethod
    def upserts(self, staged: StagedRows, where: str) -> Sequence[str]:
        """The statements that insert or update rows, except where the table has a newer state."""

    # -- rows that are joined with others ------------------------------------------------------------------------------

    @abstractmethod
    def delete_joined(self, table: str, source: str, matching: str) -> str:
        """The statement that deletes the table's rows that match a row of the source."""

    @abstractmethod
    def update_joined(self, table: str, source: str, matching: str, values: Mapping[str, str]) -> str:
        """The statement that sets columns of the table's rows that match a row of the source."""

    @abstractmethod
    def has_index(self, session: Session, table: TableName, name: str) -> bool:
        """Whether the table has an index of this name."""


def refused(error: DBLogError, hint: str | None = None, *, table: bool = False) -> SinkError:
    """The sink's error for an error of a connection. `table`: whether it concerns the one table of the statement."""
    away = isinstance(error, (ConnectionLost, TableLocked))
    kind = SinkUnreachable if away else TargetRefused if table else SinkError
    return kind(error.message, hint=hint or error.hint)


@contextmanager
def about_table(table: tuple[str, ...]) -> Iterator[None]:
    """Name the source's table in errors of the block that concern one table."""
    try:
        yield
    except TargetRefused as error:
        raise TargetRefused(error.message, table=error.table or table, hint=error.hint) from error
