"""The file with the messages of one transaction that has not committed yet.

A message in the file is the id of its (sub)transaction, then the message as protocol 1 has it. So what is read back is
decoded like any other log, behind a header of `HEADER` bytes. Messages of a rolled back subtransaction stay in the file
and are left out when it is read.

The file has no name. It ends with the process, however that ends, and only this process can read it.
"""

from __future__ import annotations

import errno
import os
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from struct import Struct

import numpy as np
import numpy.typing as npt

from dblog.core.arrays import Bytes, Ints
from dblog.errors import DecodeError, SpoolError

HEADER = 4
"""Bytes before each message that is read back: the id of its (sub)transaction."""
PORTION_BYTES = 8 << 20
"""About how many bytes of messages are read back at once."""

_PART = Struct("<II")
"""The beginning of a part: the number of its messages, and the number of their bytes. Then come the sizes, 4 bytes for
each message, and the messages."""


class TransactionFile:
    """Messages of one transaction, in the order in which they came. Memory does not grow with them, only by 4 bytes for
    each rolled back subtransaction. Raises SpoolError."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._rolled_back = array("I")
        self.nbytes = 0
        """The size of the messages."""
        with self._guarded():
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `close`

    def append(self, messages: Sequence[bytes]) -> None:
        """Add messages as the server sends them within a block: their kind, the id, the rest."""
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        if sizes.min() <= HEADER:
            raise DecodeError("a message of a transaction in progress is too short")
        data = np.frombuffer(bytearray().join(messages), np.uint8)
        start = _starts(sizes)
        kind = data[start]
        for at in range(HEADER):
            data[start + at] = data[start + at + 1]
        data[start + HEADER] = kind
        with self._guarded():
            self._file.write(_PART.pack(len(sizes), data.size))
            self._file.write(sizes.astype(np.uint32).data)
            self._file.write(data.data)
        self.nbytes += data.size

    def roll_back(self, xid: int) -> None:
        """Leave out what a subtransaction has done. Its own subtransactions are named in calls of their own."""
        self._rolled_back.append(xid)

    def portions(self) -> Iterator[tuple[list[bytes], Ints]]:
        """Read all messages that were not rolled back, once: their bytes, and the size of each message."""
        gone = np.unique(np.array(self._rolled_back, np.uint32))
        parts: list[bytes] = []
        sizes: list[Ints] = []
        held = 0
        with self._guarded():
            self._file.seek(0)
        while part := self._part():
            data, size = _without(*part, gone)
            if len(size):
                parts.append(data)
                sizes.append(size)
                held += len(data)
            if held >= PORTION_BYTES:
                yield parts, np.concatenate(sizes)
                parts, sizes, held = [], [], 0
        if parts:
            yield parts, np.concatenate(sizes)

    def _part(self) -> tuple[bytes, Ints] | None:
        with self._guarded():
            head = self._file.read(_PART.size)
            if not head:
                return None
            count, nbytes = _PART.unpack(head)
            sizes = self._file.read(4 * count)
            return self._file.read(nbytes), np.frombuffer(sizes, np.uint32).astype(np.int64)

    def close(self) -> None:
        """Remove the file. Raises nothing."""
        self._rolled_back = array("I")
        with suppress(OSError):  # what could not be written is not needed
            self._file.close()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            why = f"{self._folder!r} is full" if full else f"a file in {self._folder!r} cannot be used: {error}"
            raise SpoolError(
                f"cannot keep a transaction in progress: {why}",
                hint="free disk space or set the option spool to a larger volume; the query can then be restarted; "
                "with streamInProgress = false the server keeps large transactions on its own disk",
            ) from error


def _starts(sizes: Ints) -> Ints:
    ends = np.cumsum(sizes, dtype=np.int64)
    return ends - sizes


def _without(data: bytes, sizes: Ints, gone: npt.NDArray[np.uint32]) -> tuple[bytes, Ints]:
    """The messages whose (sub)transaction is not in `gone`."""
    if not len(gone):
        return data, sizes
    raw: Bytes = np.frombuffer(data, np.uint8)
    start = _starts(sizes)
    xid = np.zeros(len(sizes), np.uint32)
    for at in range(HEADER):
        xid = xid << np.uint32(8) | raw[start + at]
    kept = ~np.isin(xid, gone)
    if kept.all():
        return data, sizes
    return raw[np.repeat(kept, sizes)].tobytes(), sizes[kept]
