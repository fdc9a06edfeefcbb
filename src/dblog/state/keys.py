"""Keys and values of the state store: what all implementations check in the same way."""

from __future__ import annotations

import json

from dblog.errors import Conflict, StateError
from dblog.state.store import Value

LONGEST_KEY = 1000
"""The greatest length of a key in a store that machines share, in bytes of UTF-8. MySQL and PostgreSQL cannot index
much longer ones."""


def split(key: str) -> tuple[str, str]:
    """The part of a document's key before the last slash, and the part after it."""
    parent, _, name = checked(key).rpartition("/")
    if not name:
        raise StateError("the key of a document is empty")
    return parent, name


def checked(key: str) -> str:
    if key and not all(key.split("/")):
        raise StateError(f"the key {key!r} has an empty part")
    return key


def bounded(key: str) -> str:
    """The key, if it is not too long for a store that machines share."""
    if len(key.encode()) > LONGEST_KEY:
        raise StateError(
            f"the key {key[:60]!r}... has more than {LONGEST_KEY} bytes", hint="give the pipeline a shorter name"
        )
    return key


def text(value: Value) -> str:
    """A document as JSON, in ASCII. Raises ValueError or TypeError for values that JSON does not have."""
    return json.dumps(dict(value), separators=(",", ":"), allow_nan=False)


def conflict(key: str, present: int, version: int) -> Conflict:
    return Conflict(f"document {key!r} has the version {present}, not {version}", hint="read it again and try again")
