"""The state store: small JSON documents under keys, and logs of events, shared by several processes.

    a/b/c           a key; its parts are separated by slashes
    get, put        one document; `put` can require that the document still has a given version
    add             a new document, named by a number that is greater than all numbers given before
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
    """1 when the document is created; each `put` adds one."""


class Store(Protocol):
    """Several processes can use the same store; one object belongs to one thread. Every method raises StateError if the
    store cannot be reached."""

    @property
    def id(self) -> str:
        """The id of this store, which never changes. Another id means another store with other contents."""
        ...

    def stamp(self) -> str:
        """A text that changes when somebody else has written to the store. It is cheap, so it can be read often."""
        ...

    def get(self, key: str) -> Document | None: ...

    def list(self, prefix: str) -> dict[str, Document]:
        """The documents directly below a key, by their last part, in order."""
        ...

    def versions(self, prefix: str) -> dict[str, int]:
        """The versions of the documents directly below a key, by their last part. They show which documents have
        changed, without reading these."""
        ...

    def put(self, key: str, value: Value, *, version: int | None = None) -> int:
        """Write a document and return its new version. With `version`, raise Conflict unless the document has this
        version now (0: it does not exist)."""
        ...

    def add(self, prefix: str, value: Value) -> int:
        """Create a document below `prefix`, named by the next number (ten digits), and return the number."""
        ...

    def delete(self, key: str) -> None:
        """Remove a document, if it exists, and everything below it."""
        ...

    def append(self, log: str, values: Sequence[Value], *, keep: int) -> None:
        """Add entries to a log. At least its last `keep` entries stay readable."""
        ...

    def tail(self, log: str, *, after: int | None = None, limit: int = 1000) -> Sequence[tuple[int, Value]]:
        """Entries of a log with their numbers, which only grow: the first `limit` entries after the number `after`;
        without `after`, the last `limit` entries."""
        ...

    def close(self) -> None: ...
