"""The folder of a stream: its name, Spark's checkpoint and, unless the pipeline has another one, its spool.

    stream        the name of the stream
    checkpoint/   Spark's: the offsets of batches that are planned, and which of them are committed; with standbys each
                  leader has its own (`dblog.pipelines.checkpoints`)
    quarantine/   raw values (`dblog.pipelines.quarantine`)
    refused/      tables that the target has refused in a batch (`dblog.pipelines.refusals`)
    spool/

It is a path, or a URI of storage that Arrow and Spark can open.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

import pyarrow.fs as pafs

from dblog.core.offset import Offset
from dblog.errors import ConfigError
from dblog.pipelines.checkpoints import inherit, newest, numbers, write_whole
from dblog.sinks.s3a import s3a_settings
from dblog.storage.object_storage import ObjectStorage, is_on_s3

NAME = "stream"
"""The file that holds the name of the stream."""


class StreamFolder:
    """The folder of one stream."""

    def __init__(self, pipeline: Path | str, sink: str, objects: ObjectStorage) -> None:
        self.uri = f"{str(pipeline).rstrip('/')}/{sink}"
        self.spool = f"{self.uri}/spool"
        self._objects = objects

    @property
    def checkpoint(self) -> str:
        """The URI of the checkpoint."""
        # without the scheme Spark would take a path for one of its default file system, which may be HDFS
        return f"{self.uri if '://' in self.uri else f'file://{self.uri}'}/{self._checkpoint}"

    @cached_property
    def _checkpoint(self) -> str:
        with self._reached("read"):
            return newest(*self._opened)[1]

    def take_over(self, epoch: int) -> None:
        """Use the checkpoint of the leader with this epoch from now on. It begins as a copy of the newest one."""
        with self._reached("write"):
            self._checkpoint = inherit(*self._opened, epoch)

    def spark_settings(self) -> dict[str, str]:
        """Settings that the Spark session needs to write the checkpoint. Raises ConfigError."""
        return s3a_settings(self.uri, self._objects)

    def make(self, name: str) -> None:
        """Create the folder, and keep the stream's name in it."""
        if "://" not in self.uri:
            Path(self.uri).mkdir(parents=True, exist_ok=True)
            Path(self.uri).chmod(0o700)  # an earlier release may have created it
        with self._reached("write"):
            files, root = self._opened
            if not is_on_s3(files):
                files.create_dir(root, recursive=True)
            with files.open_output_stream(f"{root}/{NAME}") as stream:
                stream.write(f"{name}\n".encode())

    def name(self) -> str | None:
        """The name that the folder keeps; None for a new folder."""
        kept = self.read(NAME)
        return None if kept is None else kept.strip()

    def resume_offset(self) -> Offset | None:
        """The offset from which a stream needs the log: that of the last committed batch or, if none is committed, of
        the first planned one. None for a new stream. Raises PositionLost for an offset of another version, and
        ConfigError if the folder cannot be read.

        A file of the folder `offsets` has a version line, a line of Spark's own, and one line for each source; a stream
        has one source. A file that is incomplete (Spark was killed while it wrote the very first one) counts as not
        written.
        """
        planned, committed = (self.numbers(f"{self._checkpoint}/{each}") for each in ("offsets", "commits"))
        if not planned:
            return None
        number = max(committed, default=planned[0])
        try:
            lines = (self.read(f"{self._checkpoint}/offsets/{number}") or "").splitlines()
            found = Offset.from_json(json.loads(lines[2]))
        except (IndexError, ValueError):
            return None
        return found if found.position is not None else None

    def remove_checkpoint(self) -> None:
        """Remove the checkpoint if there is one."""
        with self._reached("write"):
            files, root = self._opened
            if files.get_file_info(f"{root}/{self._checkpoint}").type != pafs.FileType.NotFound:
                files.delete_dir(f"{root}/{self._checkpoint}")

    @cached_property
    def _opened(self) -> tuple[pafs.FileSystem, str]:
        return self._objects.arrow_filesystem(self.uri)

    def write(self, name: str, text: str) -> None:
        """Write a file of the folder. It is complete or not there. Raises ConfigError."""
        with self._reached("write"):
            files, root = self._opened
            write_whole(files, f"{root}/{name}", text.encode())

    def remove(self, name: str) -> None:
        """Remove a file of the folder, if it is there."""
        with suppress(FileNotFoundError), self._reached("write"):
            files, root = self._opened
            files.delete_file(f"{root}/{name}")

    def read(self, name: str) -> str | None:
        """The text of a file of the folder; None without it."""
        try:
            with self._reached("read"):
                files, root = self._opened
                with files.open_input_stream(f"{root}/{name}") as stream:
                    return str(stream.read(), "utf-8")
        except FileNotFoundError:
            return None

    def numbers(self, folder: str) -> list[int]:
        """The files of a folder that have numbers as names."""
        with self._reached("read"):
            files, root = self._opened
            return numbers(files, f"{root}/{folder}")

    @contextmanager
    def _reached(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, ValueError, NotImplementedError) as error:
            raise ConfigError(
                f"cannot {doing} the pipeline's folder {self.uri!r}: {error}",
                hint="see that it can be written; for s3:// that bucket, endpoint and keys in [storage] are right",
            ) from None
