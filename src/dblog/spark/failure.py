"""Finds our own error in Spark's long report of a failed query."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from dblog import errors

_OURS = re.compile(r"dblog\.errors\.(\w+): ")
_PYTHON = re.compile(r"^\w[\w.]*(?:Error|Exception)(?:: .*?)?(?=\s+SQLSTATE: |$)", re.MULTILINE)
"""The line at the end of a Python traceback that names the error."""
_CALLED = re.compile(r"An error occurred while calling [\w.]+\.\n: ")
"""What py4j writes before the error of a Java method."""
_END = re.compile(r"\n\s*at [\w.$]+(?:[(/]|\Z)|\n\n|\n=== |\nTraceback |\s+SQLSTATE: |\nDuring handling |\Z")
"""The end of a Python error's text in a report: the JVM's stack frames, or text that Spark appends."""


def plain(error: Exception) -> Exception:
    """The error itself. For an error of Spark, our error in its report, or what `cause` finds instead."""
    return cause(str(error)) if isinstance(error, PySparkException | Py4JJavaError) else error


def cause(report: str, command: str = "run") -> errors.DBLogError:
    """The DBLogError in a report, as it was raised; else the last line of a Python traceback; else the first line of
    the JVM's error."""
    for found in reversed(list(_OURS.finditer(report))):  # in a chain, the last error is the raised one
        kind = getattr(errors, found[1], None)
        if isinstance(kind, type) and issubclass(kind, errors.DBLogError):
            text = report[found.end() : _END.search(report, found.end()).start()]  # type: ignore[union-attr]
            message, _, hint = text.rstrip().partition("\nhint: ")
            return kind(message, hint=hint or None)
    theirs = _PYTHON.findall(report) if "Traceback (most recent call last):" in report else []
    return errors.DBLogError(
        theirs[-1].rstrip() if theirs else _CALLED.sub("", report.strip(), count=1).partition("\n")[0],
        hint=f"dblog {command} --verbose shows all that Spark says",
    )
