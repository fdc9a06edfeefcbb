"""Transactions in progress: what the server sends of large transactions before they commit (protocol 2).

When the transactions that the server is decoding need more memory than `logical_decoding_work_mem`, it sends what it
has of the largest one, in a block from Stream Start to Stream Stop, and goes on. Each message of a block has the id of
its transaction or subtransaction. Blocks lie between other transactions. At the end comes a Stream Commit or a Stream
Abort; a Stream Abort may also name a subtransaction.

The messages wait in a file for each transaction. They are decoded after the Stream Commit, as protocol 1 would have
sent them, so every row has the same position and number in whichever way it is read. They are not decoded earlier,
because a definition in a block is not in the catalog before the commit, and because the numbers of the rows depend on
what will be rolled back.

The server describes each table anew to each such transaction. After the commit it takes these descriptions as known,
except those of tables that it has described again since, and those that it sent before a subtransaction was rolled
back. The same descriptions are kept here (`Committed.describes`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from struct import pack, unpack_from

from dblog.errors import DecodeError
from dblog.sources.base import Run
from dblog.sources.postgres.pgoutput import RELATION, Decoder
from dblog.sources.postgres.transaction_file import HEADER, TransactionFile

STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT = b"SEcA"

_OUTSIDE = re.compile(b"[ScA]")
"""The kinds of messages outside blocks that are for this module."""
_kind = itemgetter(0)


@dataclass(frozen=True)
class Committed:
    """A transaction that was received in blocks and has committed. The messages are those of protocol 1."""

    begin: bytes
    file: TransactionFile
    commit: bytes
    describes: frozenset[int]
    """The tables, by OID, whose last descriptions in this transaction hold for those that follow."""

    def decode(self, decoder: Decoder) -> Iterator[list[Run]]:
        """The runs of the transaction, portion by portion. The file is removed at the end."""
        try:
            with decoder.own_definitions(self.describes):
                yield decoder.feed([self.begin])
                for messages, sizes in self.file.portions():
                    yield decoder.feed_joined(messages, sizes, header=HEADER)
                yield decoder.feed([self.commit])
        finally:
            self.file.close()


class _Transaction:
    def __init__(self, folder: str) -> None:
        self.file = TransactionFile(folder)
        self.described: dict[int, int] = {}
        """By OID, when a table was last described to this transaction: the number of the message."""


class InProgress:
    """The transactions in progress of one session that reads the log. `folder` is where their files are."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._open: dict[int, _Transaction] = {}
        self._arriving: _Transaction | None = None
        """The transaction whose block has not ended."""
        self._received = 0
        """How many messages were received."""
        self._described: dict[int, int] = {}
        """By OID, when the definition that holds outside blocks was received, if that was after the oldest transaction
        in progress began."""

    @property
    def nbytes(self) -> int:
        """The size of the messages that wait in files."""
        return sum(each.file.nbytes for each in self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    def sort(self, messages: list[bytes]) -> list[list[bytes] | Committed]:
        """Put the blocks into their files. Return the rest, in order, with the transactions that have committed."""
        kinds = bytes(map(_kind, messages))
        found: list[list[bytes] | Committed] = []
        rest: list[bytes] = []
        at = 0
        while at < len(messages):
            if self._arriving is not None:
                stop = kinds.find(STREAM_STOP, at)
                end = stop if stop >= 0 else len(messages)
                self._keep(self._arriving, messages[at:end], kinds[at:end], self._received + at)
                if stop >= 0:
                    self._arriving = None
            else:
                special = _OUTSIDE.search(kinds, at)
                end = special.start() if special else len(messages)
                rest += messages[at:end]
                if self._open:
                    self._described |= _described(messages[at:end], kinds[at:end], self._received + at, 0)
                if special and (committed := self._control(messages[end])):
                    if rest:
                        found.append(rest)
                    found.append(committed)
                    rest = []
            at = end + 1
        self._received += len(messages)
        if rest:
            found.append(rest)
        return found

    def _keep(self, transaction: _Transaction, messages: list[bytes], kinds: bytes, number: int) -> None:
        if messages:
            transaction.file.append(messages)
            transaction.described |= _described(messages, kinds, number, HEADER)

    def _control(self, message: bytes) -> Committed | None:
        """Follow a message outside blocks; the transaction, if the message is its commit."""
        kind, xid = unpack_from(">BI", message)
        if kind == STREAM_START:
            self._start(xid, first=bool(message[5]))
            return None
        if kind == STREAM_ABORT:
            self._abort(xid, *unpack_from(">I", message, 5))
            return None
        transaction = self._open.pop(xid, None)
        if transaction is None:
            raise DecodeError(f"the log has the commit of transaction {xid} without its changes")
        flags, lsn, end, micros = unpack_from(">Bqqq", message, 5)
        later = {oid: at for oid, at in transaction.described.items() if at > self._described.get(oid, -1)}
        self._described |= later
        begin, commit = pack(">cqqI", b"B", lsn, micros, xid), pack(">cBqqq", b"C", flags, lsn, end, micros)
        return Committed(begin, transaction.file, commit, frozenset(later))

    def _start(self, xid: int, *, first: bool) -> None:
        if first == (xid in self._open):
            raise DecodeError(f"the log has {'a second' if first else 'no'} beginning of transaction {xid}")
        if first:
            if not self._open:
                self._described = {}
            self._open[xid] = _Transaction(self._folder)
        self._arriving = self._open[xid]

    def _abort(self, xid: int, subtransaction: int) -> None:
        if subtransaction == xid:
            transaction = self._open.pop(xid, None)
            if transaction is not None:
                transaction.file.close()
        elif xid in self._open:
            self._open[xid].file.roll_back(subtransaction)
            self._open[xid].described.clear()  # the server describes all tables to the transaction again

    def close(self) -> None:
        """Remove all files."""
        for transaction in self._open.values():
            transaction.file.close()
        self._open = {}
        self._arriving = None


def _described(messages: list[bytes], kinds: bytes, number: int, header: int) -> dict[int, int]:
    """By OID, the tables that are described in the messages: the number of the last description. `number` is that of
    the first message; `header` bytes lie between the kind of a message and its contents."""
    found = {}
    at = kinds.find(RELATION)
    while at >= 0:
        (oid,) = unpack_from(">I", messages[at], 1 + header)
        found[oid] = number + at
        at = kinds.find(RELATION, at + 1)
    return found
