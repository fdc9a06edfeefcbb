"""Messages of the log that have arrived and are not decoded yet.

Messages are decoded together, as whole transactions. Only a transaction of more than `PART_BYTES` is decoded in parts
before it has arrived completely.
"""

from __future__ import annotations

from dblog.sources.base import Run
from dblog.sources.postgres.pgoutput import COMMIT, Decoder

PART_BYTES = 8 << 20


class Pending:
    """The messages after the last decoded one. `header` is how many bytes precede each message itself."""

    def __init__(self, decoder: Decoder, header: int = 0) -> None:
        self._decoder = decoder
        self._header = header
        self._nbytes = 0
        self.messages: list[bytes] = []
        """New messages are appended here, before `decode` is called."""

    @property
    def empty(self) -> bool:
        """Whether all that has arrived is decoded, and no transaction is open."""
        return not self.messages and not self._decoder.inside

    def decode(self, added: int, nbytes: int) -> list[Run]:
        """The runs up to the last commit. `added` messages of `nbytes` bytes were appended since the last call."""
        messages, kind = self.messages, self._header
        self._nbytes += nbytes
        first = len(messages) - added
        last = next((i for i in range(len(messages) - 1, first - 1, -1) if messages[i][kind] == COMMIT), -1)
        if last < 0 and self._nbytes < PART_BYTES:
            return []
        end = last + 1 or len(messages)
        ready, self.messages = messages[:end], messages[end:]
        self._nbytes = sum(map(len, self.messages))
        return self._decoder.feed(ready, header=self._header)
