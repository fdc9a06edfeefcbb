"""The sink `python`: a user's function or class, by its import path.

A function is called with each `Batch`. A class is instantiated with the table `settings` of the pipeline's file; its
`write` is called with each `Batch`. If it has them, `open(spark)` is called before the first batch and `close()` after
the last.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dblog.core.settings import Kind, Setting, choice, text
from dblog.errors import ConfigError, DBLogError, SinkError
from dblog.sinks.base import DELIVERED, Batch, Sink, SinkContext
from dblog.sinks.dates import dates_as_text, odd_date
from dblog.sinks.formats import OLD_ROWS
from dblog.sinks.import_path import Imported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_OUT_OF_RANGE = re.compile(r"out of range|ordinal must be|too large to convert|Overflow")
"""Python's messages for a date that it cannot represent, on the driver or on an executor."""


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value


class PythonSink(Sink):
    """Calls a user's function or object."""

    settings = (
        Setting("target", "a function, or a class with a method write", text("package.module:name")),
        Setting("settings", "the argument of a class", Kind("a table", _table, table=True), default={}, secret=True),
        OLD_ROWS,
        Setting(
            "dates",
            "text passes dates and timestamps as texts, also infinities and years before 1 and after 9999",
            choice("python", "text"),
            default="python",
        ),
    )

    def __init__(self, given: Mapping[str, Any], context: SinkContext) -> None:
        super().__init__(given, context)
        self._target = Imported(given["target"], context.folder)
        self._made: Any = None

    @property
    def cascades(self) -> str:
        return DELIVERED

    @property
    def before(self) -> bool:
        return bool(self.given["before"])

    def check(self) -> None:
        found = self._target.find()
        if inspect.isclass(found) and not callable(getattr(found, "write", None)):
            raise ConfigError(f"the class {self._target.path!r} has no method 'write'", hint="add write(self, batch)")
        if not inspect.isclass(found) and self.given["settings"]:
            raise ConfigError(f"{self._target.path!r} is a function and takes no settings", hint="only a class does")

    def open(self, spark: SparkSession) -> None:
        if inspect.isclass(self._target.find()):
            self._made = self._target(self.given["settings"])
            if hasattr(self._made, "open"):
                self._made.open(spark)

    def write(self, batch: Batch) -> None:
        if self.given["dates"] == "text":
            batch = dates_as_text(batch)
        try:
            (self._target if self._made is None else self._made.write)(batch)
        except DBLogError:
            raise
        except Exception as error:
            odd = odd_date(batch) if _OUT_OF_RANGE.search(str(error)) else None
            if odd is None:
                raise
            raise SinkError(f"{odd}, which Python cannot represent: {error}", hint='set dates = "text"') from error

    def close(self) -> None:
        if hasattr(self._made, "close"):
            self._made.close()
