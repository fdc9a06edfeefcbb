"""A folder that a sink writes files to: a local path, or any URL that Arrow's file systems support."""

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
from dblog.storage.object_storage import NO_SETTINGS, ObjectStorage, refused

_NOT_AWAY = (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)
"""Errors for which a retry does not help."""


@dataclass(frozen=True)
class Folder:
    """A folder. It can be pickled: the driver and each Spark task open it themselves."""

    base: str
    """The path or URL that was given."""
    objects: ObjectStorage = NO_SETTINGS
    below: str = ""
    """The names of folders in `base`, as they are: a URL is decoded, and they may have a percent sign."""

    @staticmethod
    def of(path: str, context: SinkContext) -> Folder:
        """The folder that a setting names."""
        return Folder(path if "://" in path else str((context.folder / path).absolute()), context.objects)

    @property
    def uri(self) -> str:
        return f"{self.base.rstrip('/')}{self.below}" if self.below else self.base

    def __getstate__(self) -> dict[str, Any]:
        return {"base": self.base, "objects": self.objects, "below": self.below}

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.base, self.objects, f"{self.below}/{name}")

    @cached_property
    def opened(self) -> tuple[pafs.FileSystem, str]:
        """Arrow's file system, and the folder's path in it."""
        try:
            with self._reached():
                files, root = self.objects.arrow_filesystem(self.base)
                return files, f"{root.rstrip('/')}{self.below}" if self.below else root
        except (ValueError, NotImplementedError) as error:
            raise ConfigError(
                f"the folder {self.uri!r} cannot be opened: {error}",
                hint="give a path, or a URL like s3://, gs://, hdfs:// or file://",
            ) from None

    def make(self) -> None:
        """Create the folder, and see that it can be written to."""
        files, root = self.opened
        with self._reached():
            files.create_dir(root, recursive=True)

    def reach(self) -> None:
        """Ask for the folder, whether it exists or not. Raises SinkUnreachable, or SinkError if it is refused."""
        files, root = self.opened
        with self._reached():
            files.get_file_info(root)

    def names(self, beginning: str) -> list[str]:
        """The names of the files that start with `beginning`."""
        files, root = self.opened
        with self._reached():
            found = files.get_file_info(pafs.FileSelector(root, allow_not_found=True))
        return sorted(info.base_name for info in found if info.base_name.startswith(beginning))

    @contextmanager
    def writing(self, name: str, *, compression: str | None = None) -> Iterator[Any]:
        """A stream to a new file. An existing file of that name is replaced."""
        files, root = self.opened
        with self._reached(), files.open_output_stream(f"{root}/{name}", compression=compression) as stream:
            yield stream

    def move(self, name: str, to: str) -> None:
        files, root = self.opened
        with self._reached():
            files.move(f"{root}/{name}", f"{root}/{to}")

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        files, root = self.opened
        with self._reached():
            if files.get_file_info(f"{root}/{name}").type != pafs.FileType.NotFound:
                files.delete_file(f"{root}/{name}")

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except _NOT_AWAY as error:
            raise SinkError(
                f"cannot write to {self.uri!r}: {error}", hint="give a folder that this user may write to"
            ) from None
        except OSError as error:
            if refused(error):
                raise SinkError(
                    f"cannot write to {self.uri!r}: {error}", hint="check that bucket, endpoint and keys are right"
                ) from None
            raise SinkUnreachable(f"cannot write to {self.uri!r}: {error}", hint="check that it is mounted") from None


def folder_name(table: TableName) -> str:
    """The folder name of a table: `schema.table`. A dot, slash or percent sign inside of either name is escaped as in a
    URL."""
    return str(TableName(*(re.sub(r"[./%]", lambda found: f"%{ord(found[0]):02X}", part) for part in table)))


def delta_folder_name(table: TableName) -> str:
    """The folder name of a Delta table. Here a tilde begins an escape, because delta-rs decodes percent signs in a
    path. What delta-rs cannot have in a path is escaped too: backslashes and control characters."""
    return str(TableName(*(re.sub(r"[./%~\\\x00-\x1f\x7f]", lambda c: f"~{ord(c[0]):02X}", part) for part in table)))
