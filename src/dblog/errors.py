"""All errors that DBLog raises itself.

    DBLogError                what failed; `hint` says what to do; `retryable` whether the same call may succeed later
    ├── ConfigError           an option or setting is unknown, missing or out of range
    ├── SourceError           the source database
    │   ├── ConnectionLost    the connection broke (retryable)
    │   ├── TableLocked       another session holds an exclusive lock on the table (retryable)
    │   ├── KeyChanged        the table's primary key has changed since a read was planned (retryable)
    │   ├── TableUnreadable   a table, or the requested part of it, can never be read
    │   ├── PreconditionFailed  the database is not set up for capture; lists every problem
    │   ├── PositionLost      the log no longer reaches back to our position
    │   ├── DecodeError       a value or message we cannot represent exactly
    │   │   ├── KeyRefused    a promised key does not hold: NULL, or two rows have the same
    │   │   └── ValueRefused  a value of one row that its column's delivered type cannot hold
    │   └── SchemaChanged     a typed stream's columns no longer fit the table
    ├── WatermarkError        a watermark could not be written or did not come back
    ├── SpoolError            the spool cannot be written, read or is not shared
    ├── SinkError             the target of a pipeline refuses a batch
    │   ├── SinkUnreachable   the target cannot be reached (retryable)
    │   └── TargetRefused     the target refuses the rows or the definition of one table
    ├── LeaseLost             this instance is the leader of its pipeline no longer
    └── StateError            the state store cannot be used, or does not have what was requested
        ├── Conflict          somebody else changed the document first (retryable)
        └── NotFound          no such pipeline, request or setting

Messages are lower case, show the wrong value with `repr` and never contain a secret. Errors are sent between processes
(Spark's workers), so they can all be pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class DBLogError(Exception):
    """The base class of all errors of DBLog."""

    retryable = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint)


def _rebuild(kind: type[DBLogError], message: str, hint: str | None) -> DBLogError:
    return kind(message, hint=hint)


class ConfigError(DBLogError):
    """An option or setting is unknown, missing or out of range."""


class SourceError(DBLogError):
    """An error of the source database."""


class ConnectionLost(SourceError):
    """The connection broke; the same call may succeed later."""

    retryable = True


class TableLocked(SourceError):
    """Another session holds an exclusive lock on the table, for example an ALTER; the same read may succeed later."""

    retryable = True


class KeyChanged(SourceError):
    """The table's primary key has changed since a read was planned; the read is planned again."""

    retryable = True


class TableUnreadable(SourceError):
    """A table, or the requested part of it, can never be read: the table does not exist, or the condition is wrong."""


class PreconditionFailed(SourceError):
    """The database is not set up for capture; the message lists every problem with its fix."""


class PositionLost(SourceError):
    """The log no longer reaches back to our position: a new start with a full dump is needed."""


class DecodeError(SourceError):
    """A value or message that cannot be represented exactly."""


class KeyRefused(DecodeError):
    """The key that the user promised for a table does not hold: it is NULL in a row, or two rows have the same."""

    def __init__(self, message: str, *, key: Mapping[str, str] | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = None if key is None else dict(key)
        """The texts of the key's columns, by name, where two rows have them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_key, (self.message, self.key, self.hint)


def _rebuild_key(message: str, key: Mapping[str, str] | None, hint: str | None) -> KeyRefused:
    return KeyRefused(message, key=key, hint=hint)


class ValueRefused(DecodeError):
    """A value of one row that its column's delivered type cannot hold, where the rule for such values is `stop`. The
    attributes say where the value is, as far as it is known."""

    def __init__(
        self,
        message: str,
        *,
        table: str = "",
        column: str = "",
        value: str = "",
        key: Mapping[str, str] | None = None,
        position: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.table, self.column, self.value = table, column, value
        self.key = None if key is None else dict(key)
        """The texts of the row's key columns, by name."""
        self.position = position
        """The position of the log, where the value comes from the log."""

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {"key": self.key, "position": self.position, "hint": self.hint}
        where = {"table": self.table, "column": self.column, "value": self.value}
        return _rebuild_refused, (self.message, {**where, **facts})


def _rebuild_refused(message: str, facts: Mapping[str, Any]) -> ValueRefused:
    return ValueRefused(message, **facts)


class SchemaChanged(SourceError):
    """A typed stream's columns no longer fit the table; restart the query to use the new schema."""


class WatermarkError(DBLogError):
    """A watermark could not be written, or did not come back through the log."""


class SpoolError(DBLogError):
    """The spool cannot be written or read, or is not shared between driver and executors."""


class SinkError(DBLogError):
    """The target of a pipeline refuses a batch."""


class SinkUnreachable(SinkError):
    """The target cannot be reached; the same batch may be written later."""

    retryable = True


class TargetRefused(SinkError):
    """The target refuses the rows or the definition of one table, and would refuse them again. The batch can be written
    without this table."""

    def __init__(self, message: str, *, table: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.table = tuple(table)
        """Schema and name of the source's table. Empty if it is not known: then the error is like any SinkError."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_target, (self.message, self.table, self.hint)


def _rebuild_target(message: str, table: tuple[str, ...], hint: str | None) -> TargetRefused:
    return TargetRefused(message, table=table, hint=hint)


class LeaseLost(DBLogError):
    """This instance is the leader of its pipeline no longer: it must not write anything more."""


class StateError(DBLogError):
    """The state store cannot be used, or refuses the operation."""


class Conflict(StateError):
    """Somebody else changed the document first: read it again and try again."""

    retryable = True


class NotFound(StateError):
    """The pipeline, request or document does not exist."""
