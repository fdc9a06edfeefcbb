"""The log: from messages of PostgreSQL's `pgoutput` plugin (text) to runs of typed change batches.

A feed, the messages of one call, is decoded as a whole. Transactions, ordinals and tables are arrays over its messages;
the tuples of a table are decoded column by column, for all rows at once. Only Relation, Truncate and watermark messages
are handled one at a time; they are rare. The format is described in PostgreSQL's documentation, "Logical Replication
Message Formats".

Between feeds the decoder keeps the relations and the open transaction, so the result does not depend on where feeds are
cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from struct import unpack_from

import numpy as np
import pyarrow as pa

from dblog.core.arrays import Ints
from dblog.core.event import truncation
from dblog.core.schema import TableName, TableSchema
from dblog.errors import DecodeError, SourceError
from dblog.sources import columns
from dblog.sources.base import Commits, Run
from dblog.sources.columns import Raw
from dblog.sources.postgres.catalog import Relation, RelationColumn, Unidentified
from dblog.sources.postgres.column_types import EPOCH_MICROS
from dblog.sources.postgres.tuples import DELETE, INSERT, NEW, TEXT, TRUNCATE, UPDATE, Feed, Layout, table_batch
from dblog.sources.table_failures import TableFailures, TableRefused

__all__ = ["Decoder", "Relation", "RelationColumn"]

BEGIN, COMMIT, RELATION = b"BCR"

_CHANGE, _OTHER = 1, 2
_ROLE = np.zeros(256, np.uint8)
_ROLE[[INSERT, UPDATE, DELETE, TRUNCATE]] = _CHANGE
_ROLE[[BEGIN, COMMIT, RELATION, *b"YOM"]] = _OTHER  # Type, Origin and Message are ignored


@dataclass(frozen=True)
class _Transaction:
    """A transaction that is open at the end of a feed."""

    lsn: int = 0
    committed_at: int = 0
    xid: int = 0
    changes: int = 0
    token: str | None = None


@dataclass(frozen=True)
class _Target:
    """Where a relation's changes go: to a table, to the watermarks, or nowhere (`layout` is None)."""

    relation: Relation
    layout: Layout | None
    watermark: bool
    refused: tuple[TableName, SourceError] | None = None
    """The table and the error, if the table cannot be followed as the relation describes it."""

    @property
    def renamed(self) -> bool:
        """Whether the table's name in the log differs from the name it is captured under."""
        named = (self.relation.schema, self.relation.name)
        return self.layout is not None and self.layout.schema.table != named


class Decoder:
    """Turns messages, fed in any portions, into runs.

    `resolve` returns the schema of a relation, which may leave out columns, or None if its table is not captured. It is
    called once per Relation message. A change of an `Unidentified` table empties it, and it must be dumped again.
    `watermark` is the table whose column `token` has the watermarks. `before` adds the old rows. `failures` takes
    errors that concern one table alone; without it they are raised. `shift` is added to the server's positions.
    """

    def __init__(
        self,
        resolve: Callable[[Relation], TableSchema | None],
        *,
        watermark: TableName,
        before: bool = False,
        failures: TableFailures | None = None,
        shift: int = 0,
    ) -> None:
        self._shift = shift
        self._resolve = resolve
        self._watermark = watermark
        self._before = before
        self._failures = failures
        self._targets: dict[int, _Target] = {}
        self._open: _Transaction | None = None
        self.redefined = False
        """Whether the log has shown a new definition or another name of a captured table."""

    @property
    def inside(self) -> bool:
        """Whether the last transaction has not ended."""
        return self._open is not None

    @property
    def relations(self) -> int:
        """How many tables the log has described."""
        return len(self._targets)

    def feed(self, messages: Sequence[bytes], *, header: int = 0) -> list[Run]:
        """The runs of the next messages. The last run has no position if the messages end inside a transaction.
        `header` is how many bytes precede the message itself in each of `messages`."""
        return [run for portion in columns.portions(messages) for run in self._runs(self._read(*portion, header))]

    def feed_joined(self, joined: Sequence[bytes], sizes: Ints, *, header: int) -> list[Run]:
        """`feed` of messages whose bytes are already joined, in pieces of any length; `sizes` has the size of each
        message with its header. Together they have at most `columns.LIMIT` bytes before the last message."""
        return self._runs(self._read(joined, sizes, header))

    @contextmanager
    def own_definitions(self, kept: Collection[int]) -> Iterator[None]:
        """Decode a transaction that describes all its tables itself, and that others may have passed. Its descriptions
        of the tables `kept`, by OID, hold for the transactions that follow; the others end with it."""
        before, self._targets = self._targets, {}
        try:
            yield
        finally:
            own, self._targets = self._targets, before
        for oid in kept:
            self.redefined |= before.get(oid) not in (None, own[oid])
            before[oid] = own[oid]

    def _read(self, messages: Sequence[bytes], sizes: Ints | None = None, header: int = 0) -> Feed:
        raw, start, size = Raw.join(messages, sizes)
        start, size = start + header, size - header
        kind = raw.data[start]
        role = _ROLE[kind]
        if not role.all():
            unknown = bytes([kind[np.argmin(role)]])
            raise DecodeError(f"unknown message {unknown!r} in the log", hint="read the log with proto_version 1 or 2")
        if np.any((kind == TRUNCATE) & (size > 5)):
            whole = (raw.data[at : at + n].tobytes() for at, n in zip(start.tolist(), size.tolist(), strict=True))
            return self._read([part for message in whole for part in _one_relation_each(message)])
        change, begin, commit = role == _CHANGE, kind == BEGIN, kind == COMMIT
        marks = kind[begin | commit]
        if marks.size and (marks[0] != (COMMIT if self._open else BEGIN) or np.any(marks[1:] == marks[:-1])):
            raise DecodeError("begins and commits do not alternate in the log")
        transaction = np.cumsum(begin)
        depth = transaction - np.cumsum(commit) + (self._open is not None)
        if np.any(change & (depth == 0)):
            raise DecodeError("the log has a change outside a transaction")
        carried = self._open or _Transaction()
        at = start[begin]
        feed = Feed(
            raw,
            start,
            size,
            kind,
            np.flatnonzero(change),
            transaction,
            lsn=np.append(carried.lsn, raw.be64(at + 1).view(np.int64) + self._shift),
            committed_at=np.append(carried.committed_at, raw.be64(at + 9).view(np.int64) + EPOCH_MICROS),
            xid=np.append(carried.xid, raw.be32(at + 17).astype(np.int64)),
            preceding=np.append(-carried.changes, np.cumsum(change)[begin]),
            open=bool(depth[-1]),
        )
        if np.any(raw.be64(start[commit] + 2).view(np.int64) + self._shift != feed.lsn[transaction[commit]]):
            raise DecodeError("a commit in the log does not belong to the transaction before it")
        if carried.token is not None:
            feed.tokens[0] = carried.token
        return feed

    def _runs(self, feed: Feed) -> list[Run]:
        groups = list(_grouped(*self._target_indexes(feed)))
        for target, rows in groups:
            if target.watermark:
                for number in feed.changes[rows]:
                    token = _token(feed.message(int(number)), target.relation)
                    if token is not None:
                        feed.tokens[int(feed.transaction[number])] = token
        counted = np.zeros(len(feed.changes), np.int64)
        for target, rows in groups:
            counted[rows] = target.layout is not None
        ends, runs = _cut(feed, np.append(0, np.cumsum(counted)), self._shift)
        found: list[list[tuple[int, TableSchema, pa.RecordBatch]]] = [[] for _ in runs]
        for target, rows in groups:
            made = self._table_batch(feed, target, rows)
            if made is None or target.layout is None:
                continue
            (batch, number), schema = made, target.layout.schema
            first = 0
            for run, last in enumerate(np.searchsorted(number, ends)):
                if last > first:
                    found[run].append((int(number[first]), schema, batch[first:last]))
                first = last
        self._carry(feed)
        return [
            replace(
                run,
                changes=tuple(c[1:] for c in sorted(batches, key=lambda c: c[0])),
                replaced=tuple(schema.table for _, schema, _ in batches if isinstance(schema, Unidentified)),
            )
            for run, batches in zip(runs, found, strict=True)
        ]

    def _table_batch(self, feed: Feed, target: _Target, rows: Ints) -> tuple[pa.RecordBatch, Ints] | None:
        """The batch of a target's changes, and the message of each of its rows; None if there is nothing to decode."""
        layout = target.layout
        lsn = feed.lsn[feed.transaction[feed.changes[rows]]]
        if target.refused is not None and self._failures is not None:
            self._failures.refused(target.refused[0], lsn, target.refused[1])
        if layout is None:
            return None
        made = _emptied if isinstance(layout.schema, Unidentified) else table_batch

        def decode(part: slice) -> tuple[pa.RecordBatch, Ints]:
            return made(feed, layout, rows[part], before=self._before)

        if self._failures is None:
            return decode(slice(0, len(rows)))
        return self._failures.decoded(layout.schema.table, lsn, decode)

    def _target_indexes(self, feed: Feed) -> tuple[Ints, list[_Target]]:
        """The targets, and for each change the index of its target."""
        oids = feed.raw.be32(feed.start[feed.changes] + 1)
        known = np.array(sorted(self._targets), np.uint32)
        targets = [self._targets[int(oid)] for oid in known]
        index = np.searchsorted(known, oids)
        index[np.append(known, 0)[index] != oids] = -1
        for number in np.flatnonzero(feed.kind == RELATION).tolist():
            target = self._target(Relation.parse(feed.message(number)))
            oid = target.relation.oid
            before = self._targets.get(oid)
            if before != target:
                self.redefined |= before is not None or target.renamed
                self._targets[oid] = target
                index[(oids == oid) & (feed.changes > number)] = len(targets)
                targets.append(target)
        if np.any(index < 0):
            raise DecodeError(f"the log has a change of relation {oids[np.argmin(index)]} without a Relation message")
        return index, targets

    def _target(self, relation: Relation) -> _Target:
        if (relation.schema, relation.name) == self._watermark:
            return _Target(relation, None, watermark=True)
        try:
            return self._table_target(relation)
        except TableRefused as refused:
            if self._failures is None:
                raise refused.error from None
            return _Target(relation, None, watermark=False, refused=(refused.table, refused.error))

    def _table_target(self, relation: Relation) -> _Target:
        schema = self._resolve(relation)
        if schema is None:
            return _Target(relation, None, watermark=False)
        names = [column.name for column in relation.columns]
        kept = tuple(names.index(name) for name in schema.names if name in names)
        if len(kept) != len(schema.names) and not isinstance(schema, Unidentified):
            error = DecodeError(f"the schema of table {schema.table} does not match the log's relation {relation!r}")
            raise TableRefused(schema.table, error)
        return _Target(relation, Layout(schema, len(names), kept), watermark=False)

    def _carry(self, feed: Feed) -> None:
        self._open = None
        if feed.open:
            last = len(feed.lsn) - 1
            changes = len(feed.changes) - int(feed.preceding[last])
            lsn, committed_at, xid = (int(values[last]) for values in (feed.lsn, feed.committed_at, feed.xid))
            self._open = _Transaction(lsn, committed_at, xid, changes, feed.tokens.get(last))


def _emptied(feed: Feed, layout: Layout, ordinals: Ints, *, before: bool) -> tuple[pa.RecordBatch, Ints]:
    """Instead of `table_batch`, for changes that do not identify their rows: one truncate per transaction."""
    transaction, first = np.unique(feed.transaction[feed.changes[ordinals]], return_index=True)
    batches = []
    for mine, ordinal in zip(transaction.tolist(), ordinals[first].tolist(), strict=True):
        meta = (int(values[mine]) for values in (feed.xid, feed.committed_at))
        lsn, seq = int(feed.lsn[mine]), 2 * (ordinal - int(feed.preceding[mine]))
        batches.append(truncation(layout.schema.arrow, lsn, seq, *meta, before=before))
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0], feed.changes[ordinals[first]]


def _one_relation_each(message: bytes) -> list[bytes]:
    """A Truncate as one message per relation, with the OID at the same offset as in other changes."""
    if message[0] != TRUNCATE:
        return [message]
    (count,) = unpack_from(">I", message, 1)
    return [b"T" + message[at : at + 4] for at in range(6, 6 + 4 * count, 4)]


def _grouped(index: Ints, targets: list[_Target]) -> Iterator[tuple[_Target, Ints]]:
    """Each target with changes, and the sorted indexes of its changes."""
    order = np.argsort(index.astype(np.min_scalar_type(len(targets))), kind="stable")
    last = np.cumsum(np.bincount(index, minlength=len(targets)))
    for target, first, end in zip(targets, np.append(0, last), last, strict=False):
        if end > first:
            yield target, order[first:end]


def _cut(feed: Feed, rows: Ints, shift: int) -> tuple[Ints, list[Run]]:
    """The end of each run, as a number of messages, and the runs without their changes. `rows` has the number of rows
    before each change. `shift` is added to the server's positions.

    A run ends after each watermark's transaction and after the last commit. An open transaction is its own run.
    """
    commits = np.flatnonzero(feed.kind == COMMIT)
    number = feed.transaction[commits]
    positions = feed.raw.be64(feed.start[commits] + 10).view(np.int64) + shift
    marked = np.flatnonzero(np.isin(number, list(feed.tokens)))
    row_at = rows[np.searchsorted(feed.changes, commits)]
    bytes_before = np.append(0, np.cumsum(feed.size))
    byte_at = bytes_before[commits + 1]
    ends, runs, first = [], [], 0
    for last in sorted({*marked.tolist(), *range(len(commits))[-1:]}):
        mine = slice(first, last + 1)
        rows_before, start = (row_at[first - 1], byte_at[first - 1]) if first else (0, 0)
        ended = Commits(positions[mine], feed.xid[number[mine]], row_at[mine] - rows_before, byte_at[mine] - start)
        ends.append(int(commits[last]) + 1)
        committed_at = int(feed.committed_at[number[last]])
        token = feed.tokens.get(int(number[last]))
        runs.append(Run((), ended, token, int(byte_at[last] - start), committed_at))
        first = last + 1
    if feed.open:
        rest = bytes_before[-1] - bytes_before[ends[-1] if ends else 0]
        ends.append(len(feed.kind))
        runs.append(Run(nbytes=int(rest)))
    elif ends:
        ends[-1] = len(feed.kind)
    return np.array(ends, np.int64), runs


def _token(message: bytes, relation: Relation) -> str | None:
    """The `token` in a watermark's new row; None if the message has no new row."""
    column = next((n for n, c in enumerate(relation.columns) if c.name == "token"), None)
    if column is None:
        raise DecodeError(f"the watermark table has no column 'token': {relation!r}")
    at = 5
    while message[0] in (INSERT, UPDATE):
        mark, count = unpack_from(">BH", message, at)
        at += 3
        values: list[str | None] = []
        for _ in range(count):
            size = int.from_bytes(message[at + 1 : at + 5]) if message[at] == TEXT else -1
            values.append(message[at + 5 : at + 5 + size].decode() if size >= 0 else None)
            at += 5 + size if size >= 0 else 1
        if mark == NEW:
            return values[column]
    return None
