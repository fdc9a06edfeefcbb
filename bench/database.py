"""What everything is measured on: a server of one family, tables of the same ten columns, and a writer of changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from bench.figures import Bound

# In every transaction: 60 inserts, then 30 updates and 10 deletes of rows of the transaction before.
INSERTS, UPDATES, DELETES = 60, 30, 10
CHANGES_PER_TRANSACTION = INSERTS + UPDATES + DELETES


@dataclass(frozen=True)
class Stretch:
    """Changes of `wide` that wait in the log."""

    begin: Any
    """The position in front of them."""
    upto: Any
    """A position that whoever has read all of them has passed."""
    changes: int
    keys: tuple[int, int]
    """The key before the first inserted row, and that of the last one."""


class Database(ABC):
    """The server's one database. `wide` is the table to change; others are filled to be dumped."""

    family: str
    receiver: str
    """What receives the log and forgets it."""
    reader: str
    """What reads a table and forgets it."""
    receiver_bound: Bound | None = None
    """How fast we are to be, measured by `receiver`; None where that is only reported."""
    reader_bound: Bound
    """The same, measured by `reader`."""
    debezium_bound: Bound
    """The same for catch-up, measured by Debezium."""
    debezium_dump_bound: Bound
    """The same for dumps."""
    has_debezium: bool = True
    catchup_changes: int = 600_000
    """Enough for our side to take some seconds, and for Java to do little else than the work."""
    schema: str
    columns: str
    url: str
    version: str
    pid: int
    """The server's first process: all others are below it."""

    def __init__(self) -> None:
        self._session = self.connect()
        self._last = INSERTS
        self.run(f"create table wide ({self.columns})")
        self.write_transaction("wide", INSERTS)  # for the first updates

    @abstractmethod
    def connect(self) -> Any:
        """A session in which every statement commits."""

    def run(self, statement: str, *values: Any) -> None:
        with self._session.cursor() as cursor:
            cursor.execute(statement, values or None)

    def ask(self, query: str, *values: Any) -> Any:
        """The first column of the only row."""
        with self._session.cursor() as cursor:
            cursor.execute(query, values or None)
            return cursor.fetchone()[0]

    def fill(self, table: str, rows: int) -> None:
        """Make a table of the ten columns with this many rows, as a server finds it after a while."""
        self.run(f"drop table if exists {table}")
        self.run(f"create table {table} ({self.columns})")
        self.write_transaction(table, rows)
        self.settle(table)

    def write_stretch(self, changes: int) -> Stretch:
        """Write about this many changes of `wide`."""
        begin, first = self.position(), self._last
        transactions = max(1, changes // CHANGES_PER_TRANSACTION)
        self._write(transactions)
        upto = self.position()
        self._write(1)  # whoever reads this has read past the position
        return Stretch(begin, upto, (transactions + 1) * CHANGES_PER_TRANSACTION, (first, self._last))

    def _write(self, transactions: int) -> None:
        self.run("call write_changes(%s, %s)", self._last, transactions)
        self._last += INSERTS * transactions

    def readers(self) -> AbstractContextManager[None]:
        """While the block runs the server keeps its log for the others that read it."""
        return nullcontext()

    @abstractmethod
    def settle(self, table: str) -> None:
        """Have the server do now what it would do sometime after many rows were written."""

    @abstractmethod
    def write_transaction(self, table: str, rows: int) -> None:
        """Insert this many rows in one transaction."""

    @abstractmethod
    def position(self) -> Any:
        """The end of the log."""

    @abstractmethod
    def forget(self, stream: str) -> None:
        """Remove what a stream of ours has left in the database."""

    @abstractmethod
    def receive_log(self, stretch: Stretch) -> float:
        """Seconds that the `receiver` takes for the changes."""

    @abstractmethod
    def read_out(self, table: str) -> float:
        """Seconds that the `reader` takes for a table."""

    @abstractmethod
    def debezium_follows(self, stretch: Stretch, form: str) -> Mapping[str, str]:
        """The properties of Debezium's connector for the changes that wait; each form reads them once."""

    @abstractmethod
    def debezium_dumps(self, table: str, signals: str) -> AbstractContextManager[Mapping[str, str]]:
        """The properties of Debezium's connector for a table, which it is asked for through the table `signals`."""

    @abstractmethod
    def debezium_reads(self) -> bool:
        """Whether Debezium has begun to read the log."""
