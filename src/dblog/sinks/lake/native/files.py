"""The contract of a table format.

class LakeTable     a table in the lake, for the driver: columns, marks, commits
class LakeFiles     the same table's files, for a task: read one, write new ones
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dblog.sinks.lake.marks import BatchMark

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

ROLL_BYTES = 128 << 20
"""About how much Arrow data one file gets, in bytes."""


@dataclass(frozen=True)
class ListedFile:
    """A file of a table, as the table's metadata describe it."""

    name: str
    """What the format knows the file by."""
    size: int
    """In bytes."""
    bounds: tuple[Any, Any] | None
    """Least and greatest value of the first key column; None if they are not known."""
    newest: int | None
    """The greatest `_lsn`; None if it is not known."""
    handle: Any = None
    """What the format needs beside the name to read the file."""


@dataclass(frozen=True)
class NewFile:
    """A file that a task has written."""

    name: str
    handle: Any
    """What the format needs to commit it."""


class LakeFiles(ABC):
    """The files of one version of a table. It can be pickled: a task gets it."""

    schema: pa.Schema
    """The table's columns."""

    @abstractmethod
    def read(self, file: ListedFile, columns: Sequence[str]) -> pa.Table:
        """Columns of a file, in the table's types. The rows of a file always come in the same order."""

    @abstractmethod
    def write(self, tables: Iterable[pa.Table]) -> list[NewFile]:
        """Write rows with all columns of `schema` to new files of about `ROLL_BYTES`."""


Commit = Callable[[], AbstractContextManager[bool]]
"""The right to commit: whether no batch has the table. None begins before the end of the block."""


@dataclass(frozen=True)
class Chore:
    """Work that keeps a table fast (`dblog.sinks.lake.native.maintenance`)."""

    kind: str
    every: float
    """The seconds between two times; 0 if it is cheap to find that there is nothing to do."""
    run: Callable[[Commit, dict[str, Any]], int]
    """Does it and returns how many files, snapshots or checkpoints it was. The dictionary is kept for the next time."""


class LakeTable(ABC):
    """A table in the lake. Errors of the storage are raised as SinkUnreachable, those that a retry does not help as
    SinkError."""

    maintained = False
    """Whether the chores of the table are done between batches."""

    @property
    @abstractmethod
    def unsupported(self) -> str | None:
        """Why the native writer cannot write to the table; None if it can."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The bytes of its files."""

    @abstractmethod
    def refresh(self) -> None:
        """Take note of what others have committed."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, DataType]:
        """The columns, in the types of Spark."""

    @abstractmethod
    def last_mark(self) -> BatchMark | None:
        """The mark of this pipeline's last commit."""

    @abstractmethod
    def change(self, new: Mapping[str, DataType], wider: Mapping[str, DataType]) -> None:
        """Add columns, and give columns a wider type."""

    @abstractmethod
    def files(self) -> LakeFiles: ...

    @abstractmethod
    def listed(self, key: str) -> list[ListedFile]:
        """The files of the table. `key` is the first key column."""

    @abstractmethod
    def commit(self, added: Sequence[NewFile], removed: Sequence[ListedFile], mark: BatchMark) -> None:
        """Add and remove files in one commit that has the mark. Raises SinkUnreachable if another writer has removed
        one of the files, or has written the batch, since the table was refreshed."""

    @abstractmethod
    def replace(self, added: Sequence[NewFile], removed: Sequence[ListedFile]) -> None:
        """Replace files by others with the same rows, in a commit without a mark. Errors are those of `commit`."""

    @abstractmethod
    def chores(self, mode: str) -> Sequence[Chore]:
        """What keeps the table fast, in the order in which it is done. `mode` is the sink's."""
