"""Files on the storage that Spark writes to, from the driver: any URL that Spark's Hadoop supports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from dblog.errors import SinkError, SinkUnreachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFUSED = (
    "AccessControlException",
    "AccessDenied",
    "Forbidden",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "UnknownStoreException",
    "UnsupportedFileSystemException",
    "for scheme",
)
"""Words in a storage's error for which a retry does not help."""


@dataclass(frozen=True)
class Files:
    """Operations on files by any path or URL that Spark's Hadoop supports."""

    spark: SparkSession

    @property
    def _jvm(self) -> Any:
        return self.spark.sparkContext._jvm

    def _at(self, path: str) -> tuple[Any, Any]:
        target = self._jvm.org.apache.hadoop.fs.Path(path)
        return target.getFileSystem(self.spark._jsparkSession.sessionState().newHadoopConf()), target

    def scheme(self, path: str) -> str:
        """The scheme of the file system that has the path."""
        return str(self._at(path)[0].getUri().getScheme())

    def exists(self, path: str) -> bool:
        files, target = self._at(path)
        return bool(files.exists(target))

    def names(self, path: str) -> list[str]:
        files, target = self._at(path)
        return [str(found.getPath().getName()) for found in files.listStatus(target)] if files.exists(target) else []

    def make(self, path: str) -> None:
        files, target = self._at(path)
        files.mkdirs(target)

    def remove(self, path: str) -> None:
        files, target = self._at(path)
        files.delete(target, True)

    def move(self, path: str, to: str) -> None:
        files, target = self._at(path)
        if not files.rename(target, self._jvm.org.apache.hadoop.fs.Path(to)):
            raise SinkUnreachable(f"{path!r} could not be moved to {to!r}", hint="check the permissions of the folder")

    def put(self, path: str, content: str) -> None:
        files, target = self._at(path)
        stream = files.create(target, True)
        try:
            stream.write(bytearray(content.encode()))
        finally:
            stream.close()

    def get(self, path: str) -> str:
        files, target = self._at(path)
        stream = files.open(target)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()


@contextmanager
def reached(path: str) -> Iterator[None]:
    """Raise SinkUnreachable if the storage does not answer and SinkError if it refuses; pass on other errors of
    Spark."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        said = causes(error)
        if any(word in line for word in REFUSED for line in said):
            raise SinkError(f"cannot write to {path!r}: {said[-1]}", hint="check its permissions") from error
        if any(_of_storage(line) for line in said):
            raise SinkUnreachable(
                f"cannot write to {path!r}: {said[-1]}", hint="check that it can be reached"
            ) from error
        raise


def causes(error: BaseException) -> list[str]:
    """Java's one-line texts of an error and of its causes, the root cause last."""
    found = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    said: list[str] = []
    while found is not None and len(said) < 20:
        said.append(str(found.toString()).splitlines()[0])
        found = found.getCause()
    return said


def _of_storage(line: str) -> bool:
    """Whether the storage failed. An EOF error does not count: it comes from a Python worker that was killed."""
    kind = line.partition(":")[0]
    return kind.startswith(("java.io.", "java.net.", "java.nio.", "org.apache.hadoop.")) and "EOF" not in kind
