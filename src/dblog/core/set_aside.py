"""A table that is set aside: what went wrong with it, and from which position of the log on it is not delivered.

What concerns one table alone (a value, a definition, its dump) stops that table and no other. The
tables that are set aside are part of the offset (`core.offset`), so all lives of a stream and repeated batches agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dblog.errors import DBLogError, DecodeError, KeyRefused, SinkError

VALUE, KEY, DEFINITION, DUMP, TARGET = "value", "key", "definition", "dump", "target"
"""Why a table is set aside: a value cannot be delivered, its promised key does not hold, its definition cannot be
followed any more, its rows cannot be read, or its target refuses them."""

MOST_TEXT = 500
"""How many characters of a message are kept: the offset is written with every batch."""
MOST_VALUE = 200
"""How many characters of a value, or of the value of a key column, are kept."""


@dataclass(frozen=True)
class SetAside:
    """Why and since when a table is set aside. Position and time identify the failure: a retry names them."""

    position: int
    """The log of the table is delivered up to here: the changes whose `_lsn` is less."""
    reason: str
    message: str
    at: float = 0.0
    """When, in seconds since 1970."""
    column: str | None = None
    value: str | None = None
    key: Mapping[str, str] | None = None
    """The row's key: the texts of its columns, by name."""

    @property
    def id(self) -> tuple[int, float]:
        return self.position, self.at

    def to_json(self) -> dict[str, Any]:
        """For the offset and for the status: without what is not known."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> SetAside:
        return SetAside(**{name: data[name] for name in SetAside.__dataclass_fields__ if name in data})


def set_aside(error: DBLogError, position: int, at: float, reason: str | None = None) -> SetAside:
    """What an error that concerns one table says about it. Long texts are cut. The hint of a definition's error is left
    out: it says how to start the whole stream anew, which is not needed here."""
    advises = error.hint is not None and isinstance(error, (DecodeError, SinkError))
    message = f"{error.message} ({error.hint})" if advises else error.message
    key = getattr(error, "key", None)
    return SetAside(
        position,
        reason or _reason(error),
        cut(message, MOST_TEXT),
        at,
        getattr(error, "column", None) or None,
        None if getattr(error, "column", None) in (None, "") else cut(str(getattr(error, "value", "")), MOST_VALUE),
        None if key is None else {name: cut(text, MOST_VALUE) for name, text in key.items()},
    )


def _reason(error: DBLogError) -> str:
    if isinstance(error, KeyRefused):
        return KEY
    return VALUE if isinstance(error, DecodeError) else DEFINITION


def cut(text: str, most: int) -> str:
    """The text, or its beginning with a mark that it is longer."""
    return text if len(text) <= most else f"{text[: most - 4]} ..."
