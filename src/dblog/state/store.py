"""The state store: small JSON documents under keys, and logs of events, shared by several processes.

    a/b/c           a key; its parts are separated by slashes
    get, put        one document; `put` may insist on the version it has seen
    add             a new document under a number that is greater than every number given before, for ever
    append, tail    a log that keeps its last entries

Any implementation passes `tests/state/suite.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Value = Mapping[str, Any]


@dataclass(frozen=True)
class Document:
    """A document as it was read."""

    value: Value
    version: int
    """1 when it was created, one more with each `put`."""


class Store(Protocol):
    """Safe to use from several processes; one object belongs to one thread. Every method raises StateError when the
    store cannot be reached."""

    @property
    def id(self) -> str:
        """Names this store for ever: another id means that everything is new."""
        ...

    def stamp(self) -> str:
        """Differs from an earlier stamp of this object when anybody else has written since; cheap to ask for often."""
        ...

    def get(self, key: str) -> Document | None: ...

    def list(self, prefix: str) -> dict[str, Document]:
        """The documents directly below a key, by their last part, in order."""
        ...

    def versions(self, prefix: str) -> dict[str, int]:
        """The versions of the documents directly below a key, by their last part: what has changed, without reading
        it."""
        ...

    def put(self, key: str, value: Value, *, version: int | None = None) -> int:
        """Write a document and give its new version. With `version` only if that is the present one (0: there is
        none), else Conflict."""
        ...

    def add(self, prefix: str, value: Value) -> int:
        """Create a document below `prefix`, named by the next number (ten digits), and give the number."""
        ...

    def delete(self, key: str) -> None:
        """Remove a document, if it is there, and everything below it."""
        ...

    def append(self, log: str, values: Sequence[Value], *, keep: int) -> None:
        """Add entries to a log. At least its last `keep` entries stay readable."""
        ...

    def tail(self, log: str, *, after: int | None = None, limit: int = 1000) -> Sequence[tuple[int, Value]]:
        """Entries of a log with their numbers, which only grow: the first `limit` after a number, or the last `limit`
        when no number is given."""
        ...

    def close(self) -> None: ...
