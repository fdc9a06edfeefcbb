"""A folder that a sink puts files into: on a disk, or behind any address that Arrow's file systems know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow.fs as pafs

from dblog.core.schema import TableName
from dblog.errors import ConfigError, SinkError, SinkUnreachable
from dblog.sinks.base import SinkContext

_NOT_AWAY = (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)
"""What waiting does not help against."""


@dataclass(frozen=True)
class Folder:
    """A folder; the driver and Spark's tasks open it each for themselves."""

    uri: str

    @staticmethod
    def of(path: str, context: SinkContext) -> Folder:
        """The folder that a setting names."""
        return Folder(path if "://" in path else str((context.folder / path).absolute()))

    def __getstate__(self) -> dict[str, Any]:
        return {"uri": self.uri}

    def __truediv__(self, name: str) -> Folder:
        return Folder(f"{self.uri.rstrip('/')}/{name}")

    @cached_property
    def _opened(self) -> tuple[pafs.FileSystem, str]:
        if "://" not in self.uri:
            return pafs.LocalFileSystem(), self.uri
        try:
            files, root = pafs.FileSystem.from_uri(self.uri)
        except (ValueError, NotImplementedError) as error:
            raise ConfigError(
                f"the address {self.uri!r} cannot be opened: {error}",
                hint="give a path, or an address like s3://, gs://, hdfs:// or file://",
            ) from None
        return files, root

    def make(self) -> None:
        files, root = self._opened
        with self._reached():
            files.create_dir(root, recursive=True)

    def names(self, beginning: str) -> list[str]:
        """The files whose names begin so."""
        files, root = self._opened
        with self._reached():
            found = files.get_file_info(pafs.FileSelector(root, allow_not_found=True))
        return sorted(info.base_name for info in found if info.base_name.startswith(beginning))

    @contextmanager
    def writing(self, name: str, *, compression: str | None = None) -> Iterator[Any]:
        """A stream into a file that is new, or replaces one."""
        files, root = self._opened
        with self._reached(), files.open_output_stream(f"{root}/{name}", compression=compression) as stream:
            yield stream

    def move(self, name: str, to: str) -> None:
        files, root = self._opened
        with self._reached():
            files.move(f"{root}/{name}", f"{root}/{to}")

    def remove(self, name: str) -> None:
        """Whether or not it is there."""
        files, root = self._opened
        with self._reached():
            if files.get_file_info(f"{root}/{name}").type != pafs.FileType.NotFound:
                files.delete_file(f"{root}/{name}")

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except _NOT_AWAY as error:
            raise SinkError(
                f"cannot write to {self.uri!r}: {error}", hint="give a folder that can be written"
            ) from None
        except OSError as error:
            raise SinkUnreachable(f"cannot write to {self.uri!r}: {error}", hint="see that it is there") from None


def folder_name(table: TableName) -> str:
    """The table's name as that of a folder: `schema.table`. A dot, a slash or a percent sign within one of the two
    is escaped as in an address."""
    return str(TableName(*(re.sub(r"[./%]", lambda found: f"%{ord(found[0]):02X}", part) for part in table)))
