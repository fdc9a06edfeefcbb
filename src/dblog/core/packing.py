"""Long lists as short texts: JSON, compressed, in base64. An offset names thousands of tables that way.

Most lists of an offset are the same in the next one. So the last text of each list is kept, and the last values that
were read. Both are only caches.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import Any

from dblog.errors import PositionLost

PLAIN_ITEMS = 20
"""A list of at most this many items is written as it is, so that people can read it."""

_last: dict[str, tuple[Any, str]] = {}
"""By the name of a list: its last value, and the text of it."""


def packed(name: str, value: Collection[Any], items: Callable[[], Iterable[Any]]) -> list[Any] | str:
    """A list of JSON values, as it is or as a text if it is long. `value` is what the items are made from."""
    if len(value) <= PLAIN_ITEMS:
        return list(items())
    known = _last.get(name)
    if known is not None and (known[0] is value or known[0] == value):
        return known[1]
    data = json.dumps(list(items()), separators=(",", ":")).encode()
    text = base64.b64encode(zlib.compress(data)).decode()
    _last[name] = value, text
    return text


@lru_cache(maxsize=32)
def unpacked(text: str, read: Callable[[list[Any]], Any]) -> Any:
    """What `read` makes of the list of a text. The result is kept, so it must not be changed."""
    try:
        return read(json.loads(zlib.decompress(base64.b64decode(text, validate=True))))
    except (ValueError, zlib.error) as error:
        raise PositionLost(
            f"the checkpoint has an offset that cannot be read: {error}",
            hint="run the dblog version that wrote the checkpoint, or start with a new checkpoint location",
        ) from error
