"""The offset: the whole state of the algorithm, written by Spark into its checkpoint with every batch.

    position   the log is delivered up to here
    coordinate the same in terms that another server of the cluster understands, where the source has such; the JSON key
               is `place`
    emit       chunks whose rows this batch delivers, each pinned to the staged file that was read inside its window
    read       chunks selected while this batch runs; the next batch ends their window
    dumps      one cursor per table that is being dumped, or whose dump has just failed
    suspects   transactions the log has shown committed that a select might not see yet (the visibility barrier)
    tables     tables whose first dump has been requested, so that a table added later gets one too
    followed   tables whose log is delivered after this offset, and what each of them is known by
    emptied    tables that this batch empties at its end: they are gone, or have got other rows
    taken      the last dump request that has become cursors: none is taken twice
    tally      what the running dumps had delivered before this batch, for the status
    aside      tables that are set aside after this offset: from which position on, and why (`core.set_aside`)

Its size grows with the number of tables and of the chunks of a round, never with the number of rows. Long lists are
written as compressed texts (`packing`), in offsets of version 2. Offsets of version 1 have only plain lists, those of
version 3 have tables that are set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dblog.core.packing import packed, unpacked
from dblog.core.schema import TableName
from dblog.core.set_aside import SetAside
from dblog.errors import PositionLost

PLAIN_VERSION, VERSION, ASIDE_VERSION = 1, 2, 3
"""The version of an offset without and with texts in place of long lists, and with tables that are set aside. A dblog
that does not know a version refuses it: it would follow a table again that was set aside, without emptying it."""

Key = tuple[str, ...]
"""A primary key as the database's own text of each column. Only the database compares or orders keys."""


NO_ROWS = "1 = 0"
"""A condition that no row fulfils, in the SQL of every database. An empty table is dumped as one chunk with this
condition: it has the table's columns and no rows, so that a sink can create the table."""


@dataclass(frozen=True)
class Extent:
    """Part of a table: the keys in `(after, upto]`, or exactly `keys`; of these the rows that fulfil `where`."""

    after: Key | None = None
    upto: Key | None = None
    keys: tuple[Key, ...] = ()
    where: str | None = None

    @property
    def empty(self) -> bool:
        """Whether it has no rows, whatever the table has: see `NO_ROWS`."""
        return self.where == NO_ROWS


@dataclass(frozen=True)
class Chunk:
    """An extent selected in one round. Its id names the staged file and is never used again."""

    id: str
    dump: str
    table: TableName
    extent: Extent
    key: str | None = None
    """The primary key that the extent is written in."""
    stamp: str | None = None
    """In `emit`: the staged file that counts. A file staged later by a late task has another stamp."""
    also: tuple[str, ...] = ()
    """Other dumps that its rows count for."""

    @property
    def dumps(self) -> tuple[str, ...]:
        return self.dump, *self.also


@dataclass(frozen=True)
class Cursor:
    """How far the dump of one table has got: up to which key its chunks were planned."""

    dump: str
    table: TableName
    rows: int
    """Rows to put into the next chunk."""
    after: Key | None = None
    upto: Key | None = None
    """The greatest key when the dump began; None until it begins. Rows inserted later come through the log."""
    again: tuple[Extent, ...] = ()
    """Extents to read first: lost chunks, requested keys, rows that the log left incomplete."""
    where: str | None = None
    """Only rows that fulfil this condition."""
    key: str | None = None
    """The primary key that `after` and `upto` are values of. If it changes, the dump of the table starts again."""
    failed: str | None = None
    """Why the dump of the table failed. A failed cursor stays for one batch."""
    also: tuple[str, ...] = ()
    """Other dumps that its chunks count for: requests for the whole table that came while it was running."""

    @property
    def dumps(self) -> tuple[str, ...]:
        return self.dump, *self.also

    @property
    def exhausted(self) -> bool:
        return not self.again and self.upto is not None and self.after == self.upto


@dataclass(frozen=True)
class Taken:
    """A request's number, in the store that gave it."""

    store: str
    number: int


@dataclass(frozen=True)
class Tally:
    """How many rows of a table a dump has delivered, and how many it dropped because the log had newer ones."""

    dump: str
    table: TableName
    emitted: int
    dropped: int


@dataclass(frozen=True)
class Followed:
    """What the source knows a followed table by. Only the source reads these texts."""

    identity: str = ""
    """Identifies the table under any name (PostgreSQL's OID). Empty where the log knows tables by their names only."""
    state: str = ""
    """A fingerprint of what adds or removes rows without an entry in the log, like the list of partitions."""


@dataclass(frozen=True)
class Offset:
    """Where a batch ends. The default value is the offset before the first batch."""

    position: int | None = None
    emit: tuple[Chunk, ...] = ()
    read: tuple[Chunk, ...] = ()
    dumps: tuple[Cursor, ...] = ()
    suspects: tuple[int, ...] = ()
    tables: tuple[TableName, ...] = ()
    taken: Taken | None = None
    tally: tuple[Tally, ...] = ()
    coordinate: str | None = None
    followed: Mapping[TableName, Followed] | None = None
    """None in an offset of a version that did not write it. Then the log of all captured tables is delivered."""
    emptied: Mapping[TableName, str] = field(default_factory=dict)
    """The schema of each emptied table, as the spool's text. A repeated batch must not ask the source for it again."""
    aside: Mapping[TableName, SetAside] = field(default_factory=dict)

    @property
    def dumping(self) -> bool:
        """Whether a dump has anything left to read or to deliver after this offset."""
        return bool(self.read or self.dumps)

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"v": PLAIN_VERSION}
        if self.position is not None:
            data["pos"] = self.position
        if self.coordinate is not None:
            data["place"] = self.coordinate
        if self.emit:
            data["emit"] = packed("emit", self.emit, lambda: map(_chunk_to_json, self.emit))
        if self.read:
            data["read"] = packed("read", self.read, lambda: map(_chunk_to_json, self.read))
        if self.dumps:
            data["dumps"] = packed("dumps", self.dumps, lambda: map(_cursor_to_json, self.dumps))
        if self.suspects:
            data["suspects"] = list(self.suspects)
        if self.tables:
            data["tables"] = packed("tables", self.tables, lambda: map(list, self.tables))
        if self.taken is not None:
            data["taken"] = [self.taken.store, self.taken.number]
        if self.tally:
            data["tally"] = packed("tally", self.tally, lambda: map(_tally_to_json, self.tally))
        if (followed := self.followed) is not None:
            data["followed"] = packed("followed", followed, lambda: _followed_to_json(followed))
        if self.emptied:
            data["emptied"] = [[*table, schema] for table, schema in self.emptied.items()]
        if any(isinstance(data.get(name), str) for name in _LISTS):
            data["v"] = VERSION
        if self.aside:
            data["v"] = ASIDE_VERSION
            data["aside"] = [[*table, found.to_json()] for table, found in self.aside.items()]
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Offset:
        version = data.get("v")
        if version not in (PLAIN_VERSION, VERSION, ASIDE_VERSION):
            raise PositionLost(
                f"the checkpoint has an offset of version {version!r}; this dblog reads versions up to {ASIDE_VERSION}",
                hint="run the dblog version that wrote the checkpoint, or start with a new checkpoint location",
            )
        return Offset(
            position=data.get("pos"),
            emit=_listed(data.get("emit", []), _chunks_from_json),
            read=_listed(data.get("read", []), _chunks_from_json),
            dumps=_listed(data.get("dumps", []), _cursors_from_json),
            suspects=tuple(data.get("suspects", ())),
            tables=_listed(data.get("tables", []), _tables_from_json),
            taken=Taken(*data["taken"]) if "taken" in data else None,
            tally=_listed(data.get("tally", []), _tally_from_json),
            coordinate=data.get("place"),
            followed=_listed(data["followed"], _followed_from_json) if "followed" in data else None,
            emptied={TableName(*t): schema for *t, schema in data.get("emptied", ())},
            aside={TableName(*t): SetAside.from_json(found) for *t, found in data.get("aside", ())},
        )


_LISTS = ("emit", "read", "dumps", "tables", "tally", "followed")
"""The keys of lists that may be written as texts."""


def _listed(data: list[Any] | str, read: Callable[[list[Any]], Any]) -> Any:
    """What `read` makes of a list, which is written as it is or as a text."""
    return unpacked(data, read) if isinstance(data, str) else read(data)


def pinned(chunk: Chunk, stamp: str) -> Chunk:
    """The chunk, pinned to the staged file with this stamp."""
    return replace(chunk, stamp=stamp)


def _extent_to_json(extent: Extent) -> dict[str, Any]:
    where = {} if extent.where is None else {"where": extent.where}
    if extent.keys:
        return {"keys": [list(k) for k in extent.keys], **where}
    return {"after": _key_to_json(extent.after), "upto": _key_to_json(extent.upto), **where}


def _extent_from_json(data: Mapping[str, Any]) -> Extent:
    keys = tuple(tuple(k) for k in data.get("keys", ()))
    return Extent(_key_from_json(data.get("after")), _key_from_json(data.get("upto")), keys, data.get("where"))


def _chunk_to_json(chunk: Chunk) -> dict[str, Any]:
    data = {"id": chunk.id, "dump": chunk.dump, "table": list(chunk.table), **_extent_to_json(chunk.extent)}
    if chunk.also:
        data["also"] = list(chunk.also)
    texts = {"key": chunk.key, "stamp": chunk.stamp}
    return {**data, **{name: text for name, text in texts.items() if text is not None}}


def _chunk_from_json(data: Mapping[str, Any]) -> Chunk:
    extent = _extent_from_json(data)
    table, also = TableName(*data["table"]), tuple(data.get("also", ()))
    return Chunk(data["id"], data["dump"], table, extent, data.get("key"), data.get("stamp"), also)


def _cursor_to_json(cursor: Cursor) -> dict[str, Any]:
    data: dict[str, Any] = {"dump": cursor.dump, "table": list(cursor.table), "rows": cursor.rows}
    if cursor.after is not None:
        data["after"] = list(cursor.after)
    if cursor.upto is not None:
        data["upto"] = list(cursor.upto)
    if cursor.again:
        data["again"] = [_extent_to_json(e) for e in cursor.again]
    if cursor.also:
        data["also"] = list(cursor.also)
    texts = {"where": cursor.where, "key": cursor.key, "failed": cursor.failed}
    return {**data, **{name: text for name, text in texts.items() if text is not None}}


def _cursor_from_json(data: Mapping[str, Any]) -> Cursor:
    return Cursor(
        dump=data["dump"],
        table=TableName(*data["table"]),
        rows=data["rows"],
        after=_key_from_json(data.get("after")),
        upto=_key_from_json(data.get("upto")),
        again=tuple(_extent_from_json(e) for e in data.get("again", ())),
        where=data.get("where"),
        key=data.get("key"),
        failed=data.get("failed"),
        also=tuple(data.get("also", ())),
    )


def _chunks_from_json(data: list[Any]) -> tuple[Chunk, ...]:
    return tuple(map(_chunk_from_json, data))


def _cursors_from_json(data: list[Any]) -> tuple[Cursor, ...]:
    return tuple(map(_cursor_from_json, data))


def _tables_from_json(data: list[Any]) -> tuple[TableName, ...]:
    return tuple(TableName(*table) for table in data)


def _tally_to_json(tally: Tally) -> list[Any]:
    return [tally.dump, list(tally.table), tally.emitted, tally.dropped]


def _tally_from_json(data: list[Any]) -> tuple[Tally, ...]:
    return tuple(Tally(dump, TableName(*table), *counts) for dump, table, *counts in data)


def _followed_to_json(followed: Mapping[TableName, Followed]) -> list[list[str]]:
    return [[*table, known.identity, known.state] for table, known in followed.items()]


def _followed_from_json(data: list[Any]) -> dict[TableName, Followed]:
    return {TableName(schema, name): Followed(*known) for schema, name, *known in data}


def _key_to_json(key: Key | None) -> list[str] | None:
    return None if key is None else list(key)


def _key_from_json(data: Any) -> Key | None:
    return None if data is None else tuple(data)
