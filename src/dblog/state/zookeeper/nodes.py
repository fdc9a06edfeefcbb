"""The nodes of a state store in ZooKeeper, and what is in them.

<root>/store            the id of the store and the format of its nodes
<root>/stamp            its version counts the writes
<root>/counters/<key>   the last number given for a key; it stays when documents are deleted
<root>/keys/a/b         the key a/b; its version counts the writes of documents directly below it
<root>/keys/a/b/=doc    the document of the key a/b
<root>/keys/a/b/=log/<number of its first entry>  a piece of the log a/b
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote

from dblog.errors import StateError

LARGEST = 1_000_000
"""The largest content of a node, in bytes. A server takes requests of up to 1 MiB (its `jute.maxbuffer`)."""
COMPRESS = 2_000
"""The size from which contents are compressed, in bytes."""
PIECE = 16_000
"""The size up to which entries are added to the last piece of a log, in bytes before compression."""

DOCUMENT, LOG = "=doc", "=log"


class Nodes:
    """The paths of the nodes below a root."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.store = f"{root}/store"
        self.stamp = f"{root}/stamp"
        self.counters = f"{root}/counters"
        self.keys = f"{root}/keys"

    def of(self, key: str) -> str:
        """The node of a key; of the empty key, the node that has all others."""
        return "/".join((self.keys, *(_quoted(part) for part in key.split("/") if part)))

    def document(self, key: str) -> str:
        return f"{self.of(key)}/{DOCUMENT}"

    def log(self, key: str) -> str:
        return f"{self.of(key)}/{LOG}"

    def counter(self, kind: str, key: str) -> str:
        return f"{self.counters}/{kind}:{_quoted(key)}"


def name_of(node: str) -> str | None:
    """The part of a key that a node is named by; None if the node is a document or a log."""
    return None if node.startswith("=") else unquote(node)


def _quoted(part: str) -> str:
    """A part of a key as a node's name. ZooKeeper takes neither "." and ".." nor control characters."""
    return part.replace(".", "%2E") if part in (".", "..") else quote(part, safe="")


def pack(text: str, what: str) -> bytes:
    """The content of a node. Raises StateError if it is too large."""
    content = text.encode()
    if len(content) > COMPRESS:
        content = b"z" + zlib.compress(content, 6)
    if len(content) > LARGEST:
        raise StateError(
            f"{what} has {len(content):,} bytes, compressed; a node of ZooKeeper takes up to {LARGEST:,}",
            hint="name a state store in a database instead (postgresql://..., mysql://...)",
        )
    return content


def unpack(content: bytes) -> Any:
    return json.loads(zlib.decompress(content[1:]) if content[:1] == b"z" else content)


def pieces(texts: Sequence[str]) -> list[list[str]]:
    """Cut entries into pieces that fit into one request."""
    found: list[list[str]] = []
    size = LARGEST
    for text in texts:
        if size + len(text) > LARGEST // 4:
            found.append([])
            size = 0
        found[-1].append(text)
        size += len(text)
    return found
