"""The log: messages of PostgreSQL's `pgoutput` plugin (protocol 1, text) to runs of typed change batches.

A feed is decoded as a whole. The kinds of all messages are looked at once; transactions, ordinals and tables are arrays
over the feed; the tuples of a table are marched through column by column over all rows at once. Only Relation, Truncate
and watermark messages, which are rare, are handled one at a time. The messages are described in PostgreSQL's
documentation, "Logical Replication Message Formats".

What outlives a feed is the relations and the transaction in progress: nothing depends on where feeds are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from struct import unpack_from
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog.core.event import DUMP_SEQ, Op, change_schema
from dblog.core.schema import TableName, TableSchema
from dblog.errors import DecodeError
from dblog.sources import columns
from dblog.sources.base import Run
from dblog.sources.columns import ABSENT, Bytes, Ints, Mask, Raw, Rows
from dblog.sources.postgres.catalog import Relation, RelationColumn
from dblog.sources.postgres.types import EPOCH_MICROS, decode

__all__ = ["Decoder", "Relation", "RelationColumn"]

BEGIN, COMMIT, RELATION, INSERT, UPDATE, DELETE, TRUNCATE = b"BCRIUDT"
NEW, OLD = b"NO"
NULL, UNCHANGED, TEXT = b"nut"

_BLOCK = 16384

_CHANGE, _OTHER = 1, 2
_ROLE = np.zeros(256, np.uint8)
_ROLE[[INSERT, UPDATE, DELETE, TRUNCATE]] = _CHANGE
_ROLE[[BEGIN, COMMIT, RELATION, *b"YOM"]] = _OTHER  # Type, Origin and Message tell us nothing

_OP = np.zeros(256, np.int8)
_OP[[INSERT, UPDATE, DELETE, TRUNCATE]] = [Op.create, Op.update, Op.delete, Op.truncate]


@dataclass(frozen=True)
class _Transaction:
    """A transaction in progress between two feeds."""

    lsn: int = 0
    committed_at: int = 0
    xid: int = 0
    changes: int = 0
    token: str | None = None


@dataclass(frozen=True)
class _Target:
    """Where a relation's changes go: to a table, to the watermarks, or nowhere."""

    relation: Relation
    schema: TableSchema | None
    watermark: bool


@dataclass(frozen=True, eq=False)
class _Feed:
    """The messages of a feed and their transactions, as arrays. Transaction 0 is the one already in progress."""

    messages: Sequence[bytes]
    raw: Raw
    start: Ints
    size: Ints
    kind: Bytes
    changes: Ints
    """Which messages are changes."""
    transaction: Ints
    """The number of each message's transaction."""
    lsn: Ints
    committed_at: Ints
    xid: Ints
    preceding: Ints
    """How many of the feed's changes precede each transaction; negative for the one that began earlier."""
    open: bool
    """The last transaction has not ended."""
    tokens: dict[int, str] = field(default_factory=dict)
    """The watermarks, by number of transaction."""


class Decoder:
    """Turns messages, fed in any portions, into runs.

    `resolve` gives the schema of a relation, or None when its table is not captured; it is called once per Relation
    message. `watermark` names the table whose column `token` carries the watermarks. `before` adds the old rows.
    """

    def __init__(
        self, resolve: Callable[[Relation], TableSchema | None], *, watermark: TableName, before: bool = False
    ) -> None:
        self._resolve = resolve
        self._watermark = watermark
        self._before = before
        self._targets: dict[int, _Target] = {}
        self._open: _Transaction | None = None

    def feed(self, messages: Sequence[bytes]) -> list[Run]:
        """The runs of the next messages. The last has no position when they end inside a transaction."""
        return [run for portion in columns.portions(messages) for run in self._runs(self._read(*portion))]

    def _read(self, messages: Sequence[bytes], sizes: Ints | None = None) -> _Feed:
        raw, start, size = Raw.join(messages, sizes)
        kind = raw.data[start]
        role = _ROLE[kind]
        if not role.all():
            unknown = bytes([kind[np.argmin(role)]])
            raise DecodeError(f"unknown message {unknown!r} in the log", hint="read the log with proto_version 1")
        if np.any(kind == TRUNCATE) and any(m[0] == TRUNCATE and len(m) > 5 for m in messages):
            return self._read([part for message in messages for part in _one_relation_each(message)])
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
        feed = _Feed(
            messages,
            raw,
            start,
            size,
            kind,
            np.flatnonzero(change),
            transaction,
            lsn=np.append(carried.lsn, raw.be64(at + 1).view(np.int64)),
            committed_at=np.append(carried.committed_at, raw.be64(at + 9).view(np.int64) + EPOCH_MICROS),
            xid=np.append(carried.xid, raw.be32(at + 17).astype(np.int64)),
            preceding=np.append(-carried.changes, np.cumsum(change)[begin]),
            open=bool(depth[-1]),
        )
        if np.any(raw.be64(start[commit] + 2).view(np.int64) != feed.lsn[transaction[commit]]):
            raise DecodeError("a commit in the log is not that of the transaction before it")
        if carried.token is not None:
            feed.tokens[0] = carried.token
        return feed

    def _runs(self, feed: _Feed) -> list[Run]:
        groups = list(_grouped(*self._places(feed)))
        for target, rows in groups:
            if target.watermark:
                for number in feed.changes[rows]:
                    token = _token(feed.messages[number], target.relation)
                    if token is not None:
                        feed.tokens[int(feed.transaction[number])] = token
        ends, runs = _cut(feed)
        found: list[list[tuple[int, TableSchema, pa.RecordBatch]]] = [[] for _ in runs]
        for target, rows in groups:
            if target.schema is None:
                continue
            batch, number = _table_batch(feed, target.schema, rows, before=self._before)
            first = 0
            for run, last in enumerate(np.searchsorted(number, ends)):
                if last > first:
                    found[run].append((int(number[first]), target.schema, batch[first:last]))
                first = last
        self._carry(feed)
        received = np.diff(np.append(0, np.append(0, np.cumsum(feed.size))[ends]))
        return [
            replace(run, changes=tuple(c[1:] for c in sorted(batches, key=lambda c: c[0])), nbytes=int(nbytes))
            for run, batches, nbytes in zip(runs, found, received, strict=True)
        ]

    def _places(self, feed: _Feed) -> tuple[Ints, list[_Target]]:
        """For each change its target, as an index into the list of targets."""
        oids = feed.raw.be32(feed.start[feed.changes] + 1)
        known = np.array(sorted(self._targets), np.uint32)
        targets = [self._targets[int(oid)] for oid in known]
        place = np.searchsorted(known, oids)
        place[np.append(known, 0)[place] != oids] = -1
        for number in np.flatnonzero(feed.kind == RELATION).tolist():
            target = self._target(Relation.parse(feed.messages[number]))
            oid = target.relation.oid
            if self._targets.get(oid) != target:
                self._targets[oid] = target
                place[(oids == oid) & (feed.changes > number)] = len(targets)
                targets.append(target)
        if np.any(place < 0):
            raise DecodeError(f"the log has a change of relation {oids[np.argmin(place)]}, which it has not described")
        return place, targets

    def _target(self, relation: Relation) -> _Target:
        if (relation.schema, relation.name) == self._watermark:
            return _Target(relation, None, watermark=True)
        schema = self._resolve(relation)
        if schema is not None and schema.names != tuple(column.name for column in relation.columns):
            raise DecodeError(f"the schema of table {schema.table} is not that of the log's relation {relation!r}")
        return _Target(relation, schema, watermark=False)

    def _carry(self, feed: _Feed) -> None:
        self._open = None
        if feed.open:
            last = len(feed.lsn) - 1
            changes = len(feed.changes) - int(feed.preceding[last])
            lsn, committed_at, xid = (int(values[last]) for values in (feed.lsn, feed.committed_at, feed.xid))
            self._open = _Transaction(lsn, committed_at, xid, changes, feed.tokens.get(last))


def _one_relation_each(message: bytes) -> list[bytes]:
    """A Truncate as one message per relation, with the relation's OID where every other change has it."""
    if message[0] != TRUNCATE:
        return [message]
    (count,) = unpack_from(">I", message, 1)
    return [b"T" + message[at : at + 4] for at in range(6, 6 + 4 * count, 4)]


def _grouped(place: Ints, targets: list[_Target]) -> Iterator[tuple[_Target, Ints]]:
    """Each target that has changes, with the indices of its changes in order."""
    order = np.argsort(place.astype(np.min_scalar_type(len(targets))), kind="stable")
    last = np.cumsum(np.bincount(place, minlength=len(targets)))
    for target, first, end in zip(targets, np.append(0, last), last, strict=False):
        if end > first:
            yield target, order[first:end]


def _cut(feed: _Feed) -> tuple[Ints, list[Run]]:
    """Where each run ends (as a number of messages), and the runs without their changes.

    A run ends with every watermark's transaction and with the last commit; an open transaction is a run of its own.
    """
    commits = np.flatnonzero(feed.kind == COMMIT)
    number = feed.transaction[commits]
    positions = feed.raw.be64(feed.start[commits] + 10)
    marked = np.flatnonzero(np.isin(number, list(feed.tokens)))
    ends, runs, first = [], [], 0
    for last in sorted({*marked.tolist(), *range(len(commits))[-1:]}):
        xids = feed.xid[number[first : last + 1]]
        ends.append(int(commits[last]) + 1)
        runs.append(Run((), int(positions[last]), feed.tokens.get(int(number[last])), xids))
        first = last + 1
    if feed.open:
        ends.append(len(feed.kind))
        runs.append(Run(()))
    elif ends:
        ends[-1] = len(feed.kind)
    return np.array(ends, np.int64), runs


def _token(message: bytes, relation: Relation) -> str | None:
    """The `token` of a watermark's new row; None when the message has no new row."""
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


def _march(raw: Raw, at: Ints, schema: TableSchema) -> tuple[Rows, Ints]:
    """Walk the tuples at `at`, all rows at once, one column after the other; the rows and where they end."""
    width = len(schema.columns)
    if np.any((raw.be16(at) != width) & (at < raw.tail)):
        raise DecodeError(f"a row of table {schema.table} in the log does not have {width} columns")
    rows = Rows.empty(raw, width, len(at))
    at = at + 2
    for column in range(width):
        # The kind of the value and its length, in one load.
        head = raw.be64(np.minimum(at, raw.data.size - 8))
        kind = head >> np.uint64(56)
        sent = kind == TEXT
        size = rows.length[column]
        np.bitwise_and(head >> np.uint64(24), np.uint64(0xFFFFFFFF), out=size.view(np.uint64))
        np.add(at, 5, out=rows.start[column])
        if not sent.all():
            size[~sent] = -1
            unchanged = kind == UNCHANGED
            size[unchanged] = ABSENT
            unknown = ~(sent | unchanged | (kind == NULL))
            if unknown.any():
                found = bytes([int(kind[np.argmax(unknown)])])
                raise DecodeError(f"a value of kind {found!r} in the log of table {schema.table}")
        at = rows.start[column] + size
        at[~sent] = rows.start[column][~sent] - 4
    return rows, at


def _table_batch(feed: _Feed, schema: TableSchema, places: Ints, *, before: bool) -> tuple[pa.RecordBatch, Ints]:
    """The batch of a table's changes (`places` among those of the feed), and the message that each of its rows is from.

    It is made in blocks that the processor's cache holds: a quarter faster for large feeds.
    """
    cuts = range(0, len(places), _BLOCK)
    made = [_change_batch(feed, schema, places[at : at + _BLOCK], before=before) for at in cuts]
    if len(made) == 1:
        return made[0]
    whole = pa.Table.from_batches([batch for batch, _ in made]).combine_chunks()
    return whole.to_batches()[0], np.concatenate([number for _, number in made])


def _change_batch(feed: _Feed, schema: TableSchema, places: Ints, *, before: bool) -> tuple[pa.RecordBatch, Ints]:
    """`_table_batch` of one block.

    An update that changes the key becomes two rows, a delete and a create.
    """
    raw, number = feed.raw, feed.changes[places]
    kind, start = feed.kind[number], feed.start[number]
    mark, at = raw.data[start + 5], start + 6
    updated = np.flatnonzero((kind == UPDATE) & (mark != NEW))
    old, end = _march(raw, at[updated], schema)
    if np.any(raw.data[end] != NEW):
        raise DecodeError(f"an update of table {schema.table} in the log has no new row")
    at[updated] = end + 1
    truncate = kind == TRUNCATE
    at[truncate] = raw.tail  # a row of nulls
    new, end = _march(raw, at, schema)
    if np.any((end != start + feed.size[number]) & ~truncate):
        raise DecodeError(f"a change of table {schema.table} in the log does not end where its last column does")
    _fill(new, old, updated, mark[updated] == OLD)
    moved = np.zeros(len(places), np.bool_)
    moved[updated] = _key_differs(schema, old, new.take(updated))
    _check_key(schema, new, truncate)

    # From here on by row of the batch: `source` is its change, `gone` the deletes of old keys before their creates.
    source = np.repeat(np.arange(len(places)), 1 + moved)
    gone = np.flatnonzero(moved) + np.arange(np.count_nonzero(moved))
    row, op = new.take(source) if gone.size else new, _OP[kind][source]
    row.put(gone, old.take(moved[updated]))
    op[gone], op[gone + 1] = Op.delete, Op.create
    transaction = feed.transaction[number][source]
    seq = 2 * (places[source] - feed.preceding[transaction])
    seq[gone + 1] += 1
    if seq.max(initial=0) >= DUMP_SEQ - 1:
        raise DecodeError("a transaction in the log has more than 2**30 changes")

    fields = change_schema(schema.arrow, before=before)
    meta: tuple[npt.NDArray[Any], ...] = (
        op,
        feed.lsn[transaction],
        seq.astype(np.int32),
        feed.xid[transaction],
        feed.committed_at[transaction],
    )
    arrays = [columns.fixed(field.type, values, None) for field, values in zip(fields, meta, strict=False)]
    arrays += [row.absent(schema.names), *decode(schema, row.cells, binary=False)]
    if before:
        known = kind == DELETE
        known[updated] = True
        was = new.take(slice(None))
        was.put(updated, old)
        known, was = known[source], was.take(source)
        known[gone + 1] = False
        was.length[:, ~known] = -1
        values = decode(schema, was.cells, binary=False)
        arrays.append(pa.StructArray.from_arrays(values, fields=list(schema.arrow), mask=pa.array(~known)))
    return pa.RecordBatch.from_arrays(arrays, schema=fields), number[source]


def _fill(new: Rows, old: Rows, updated: Ints, whole: Mask) -> None:
    """Take what an update's new row leaves out from its old row: any column of a whole one, or a key's."""
    length = new.length[:, updated]
    fill = (length == ABSENT) & (whole | (old.length >= 0))
    if fill.any():
        new.length[:, updated] = np.where(fill, old.length, length)
        new.start[:, updated] = np.where(fill, old.start, new.start[:, updated])


def _key_differs(schema: TableSchema, old: Rows, new: Rows) -> Mask:
    differs = np.zeros(len(old), np.bool_)
    for name in schema.key:
        column = schema.names.index(name)
        differs |= columns.differ(old.cells[column], new.cells[column])
    return differs


def _check_key(schema: TableSchema, rows: Rows, truncate: Mask) -> None:
    for name in schema.key:
        if np.any((rows.length[schema.names.index(name)] < 0) & ~truncate):
            message = f"a change of table {schema.table} in the log lacks its key column {name!r}"
            raise DecodeError(message, hint=f"alter table {schema.table} replica identity full")
