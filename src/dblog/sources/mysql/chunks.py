"""Chunk reads over the binary protocol: the keys at which a table is cut, and the rows between two of them.

Keys are texts that the server reads back as the same value. So only the server compares keys, with the column's own
collation. The server uses no index for `(a, b) > (x, y)`, so such comparisons are written out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from struct import pack, unpack_from

import pyarrow as pa

from dblog.core.offset import Extent, Key
from dblog.core.promised_keys import null_in_key, two_rows
from dblog.core.schema import TableName, TableSchema
from dblog.databases.mysql.connect import Connection, ServerError, identifier
from dblog.errors import TableUnreadable
from dblog.sources.columns import Raw
from dblog.sources.mysql.column_types import MyColumn
from dblog.sources.mysql.keys import read_key
from dblog.sources.mysql.packets import Packets, Receiver
from dblog.sources.mysql.results import decode_packets

BATCH_BYTES = 2 << 20
LEAST_BYTES = 1 << 20
"""Bytes of rows that are decoded at once, at least: every call has a fixed cost."""
GATHER_SECONDS = 0.02
"""How long to wait for `LEAST_BYTES`, in seconds, before checking whether the rows have ended."""
KEYS_PER_QUERY = 1000
READ_SECONDS = 3600.0
"""How long a select may send nothing, in seconds."""

_PREPARE, _EXECUTE, _CLOSE = 0x16, 0x17, 0x19

_COLUMNS = """
select column_name, concat_ws(' ', column_name, column_type, collation_name) from information_schema.columns
where table_schema = %s and table_name = %s
"""


def key_text(connection: Connection, table: TableName, promised: Sequence[str] = ()) -> str:
    """A text that identifies the key: its columns, types and collations, which define the order. `promised` is the key
    of a table that has none of its own."""
    with connection.cursor() as cursor:
        key = read_key(cursor, table)
        cursor.execute(_COLUMNS, tuple(table))
        columns = dict(cursor.fetchall())
    if not key and promised and columns.keys() >= set(promised):
        return "promised " + ", ".join(columns[name] for name in promised)
    if not key:
        what = "has no primary key and no unique key over NOT NULL columns" if columns else "does not exist"
        raise TableUnreadable(f"table {table} {what}")
    return ", ".join(columns[name] for name, _ in key)


def last_key(connection: Connection, schema: TableSchema) -> Key | None:
    """The greatest key of the table."""
    backwards = ", ".join(f"{identifier(name)} desc" for name in schema.key)
    last = _one_key(connection, schema, f"order by {backwards} limit 1")
    # without an index the server sorts by the first `max_sort_length` bytes only: there may be a greater key
    while schema.promised and last is not None:
        above = f"where {_within(schema, Extent(after=last))} order by {backwards} limit 1"
        if (greater := _one_key(connection, schema, above)) is None:
            break
        last = greater
    return last


def cuts(connection: Connection, schema: TableSchema, extent: Extent, rows: int, count: int) -> list[Key]:
    """Every `rows`-th key of the extent, at most `count`. The last is the extent's upper bound if the extent ends
    there."""
    assert extent.upto is not None
    found: list[Key] = []
    while len(found) < count and extent.upto not in found:
        rest = Extent(found[-1] if found else extent.after, extent.upto)
        clauses = f"where {_within(schema, rest)} order by {_key(schema)} limit 1 offset {rows - 1}"
        found.append(_one_key(connection, schema, clauses) or extent.upto)
    return found


def select(connection: Connection, schema: TableSchema, extent: Extent, take: Callable[[pa.RecordBatch], None]) -> None:
    """Pass the rows of the extent to `take`, batch by batch, as they arrive."""
    names = ", ".join(map(identifier, schema.names))
    query = f"select {names} from {identifier(*schema.table)} where {_within(schema, extent)} order by {_key(schema)}"
    connection._execute_command(_PREPARE, query)
    (statement, columns) = unpack_from("<IH", connection._read_packet()._data, 1)
    for _ in range(columns + 1):
        connection._read_packet()
    connection._execute_command(_EXECUTE, pack("<IBI", statement, 0, 1))
    receiver = Receiver(connection._sock, 1)
    head = columns + 2  # the packets of the number of columns, their definitions, and the end of these
    while True:
        if not receiver.receive(READ_SECONDS, BATCH_BYTES):
            raise ServerError(2013, f"the server was silent for {READ_SECONDS:.0f} s")
        packets = receiver.packets
        if len(packets) and packets.data[packets.start[0]] == 0xFF:
            raise _error(packets, 0)
        if head:
            if len(packets) < head:
                continue
            receiver.drop(head)
            head, packets = 0, receiver.packets
        if not len(packets):
            continue
        last = len(packets) - 1
        ends = packets.data[packets.start[last]] in (0xFE, 0xFF)
        left = LEAST_BYTES - int(packets.end[last] - packets.start[0])
        if not ends and left > 0:
            receiver.gather(left, GATHER_SECONDS)
            continue
        rows = packets.first(last) if ends else packets
        if len(rows):
            first, end = int(rows.start[0]), int(rows.end[-1])
            raw = Raw.pad(rows.data[first:end])
            shift = Raw.origin - first
            take(decode_packets(raw, rows.start + shift, rows.end + shift, schema))
        if ends:
            if packets.data[packets.start[last]] == 0xFF:
                raise _error(packets, last)
            break
        receiver.drop(len(packets))
    connection._sock.settimeout(None)
    connection._execute_command(_CLOSE, pack("<I", statement))


def _error(packets: Packets, number: int) -> ServerError:
    body = bytes(packets.data[packets.start[number] : packets.end[number]])
    (code,) = unpack_from("<H", body, 1)
    return ServerError(
        code, body[9:].decode(errors="replace") if body[3:4] == b"#" else body[3:].decode(errors="replace")
    )


def missing(connection: Connection, schema: TableSchema, keys: Sequence[Key]) -> list[Key]:
    """The keys that no row has. The server compares them, so another spelling of an existing key is found."""
    found: list[Key] = []
    with connection.cursor() as cursor:
        for key in keys:
            equal = _within(schema, Extent(keys=(key,)))
            cursor.execute(f"select 1 from {identifier(*schema.table)} where {equal} limit 1")
            if cursor.fetchone() is None:
                found.append(key)
    return found


def explain(connection: Connection, table: TableName, where: str) -> None:
    """Let the server plan a select with the condition, without running it."""
    with connection.cursor() as cursor:
        cursor.execute(f"explain select 1 from {identifier(*table)} where ({where})")


def estimate(connection: Connection, table: TableName) -> int | None:
    """The storage engine's estimate of the number of rows."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select table_rows from information_schema.tables where table_schema = %s and table_name = %s", tuple(table)
        )
        found = cursor.fetchone()
    return None if found is None or found[0] is None else int(found[0])


def _one_key(connection: Connection, schema: TableSchema, clauses: str) -> Key | None:
    texts = ", ".join(_as_text(schema.column(name)) for name in schema.key)
    with connection.cursor() as cursor:
        cursor.execute(f"select {texts} from {_keyed(schema)} {clauses}")
        found = cursor.fetchone()
    return None if found is None else tuple(str(value) for value in found)


def _keyed(schema: TableSchema) -> str:
    """The rows that have a key: all, unless it is a promised one. Others are refused when chunks are read."""
    if not schema.promised:
        return identifier(*schema.table)
    there = " and ".join(f"{identifier(name)} is not null" for name in schema.key)
    return f"(select * from {identifier(*schema.table)} where {there}) t"


def check_promise(connection: Connection, schema: TableSchema, extent: Extent) -> None:
    """Raise KeyRefused if two rows of the extent have the same promised key, as the server compares keys. The first
    extent of a table also finds every row with NULL in its key: it lies between no two keys, so no chunk would have
    it."""
    texts, table = ", ".join(_as_text(schema.column(name)) for name in schema.key), identifier(*schema.table)
    with connection.cursor() as cursor:
        for name in schema.key if extent.after is None and not extent.keys else ():
            cursor.execute(f"select * from {table} where {identifier(name)} is null limit 1")
            if found := cursor.fetchone():
                raise null_in_key(schema, name, str(found))
        within = f"{_within(schema, extent)} group by {_key(schema)} having count(*) > 1 limit 1"
        cursor.execute(f"select {texts} from {table} where {within}")
        if (key := cursor.fetchone()) is not None:
            key = tuple(str(text) for text in key)
            cursor.execute(f"select * from {table} where {_within(schema, Extent(keys=(key,)))} limit 2")
            raise two_rows(schema, key, [str(row) for row in cursor.fetchall()])


def _key(schema: TableSchema) -> str:
    return ", ".join(map(identifier, schema.key))


_NUMBERED = ("enum", "set", "bit")
"""Types that the server orders by their numbers, not by their texts."""


_NUMBERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "year")


def _as_text(column: object) -> str:
    assert isinstance(column, MyColumn)
    name = identifier(column.name)
    if column.codec in _NUMBERED:
        return f"cast({name} + 0 as char)"
    if column.codec == "float":  # its text has fewer digits than its value
        return f"cast({name} + 0e0 as char)"
    if pa.types.is_binary(column.arrow):
        return f"hex({name})"
    return f"cast({name} as char)"


def _literal(column: object, text: str) -> str:
    """A value of the column as a literal, for a comparison with the column."""
    assert isinstance(column, MyColumn)
    if column.codec in _NUMBERED or column.codec in _NUMBERS:
        if not re.fullmatch(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", text):
            raise TableUnreadable(f"{text!r} is not a value of column {column.name!r} ({column.type})")
        return text.strip()  # the server compares texts with numbers as floats, which are rounded
    if pa.types.is_binary(column.arrow):
        return f"x'{bytes.fromhex(text).hex()}'"
    # Hexadecimal digits need no escapes.
    return f"_utf8mb4 x'{text.encode().hex()}'" if text else "''"


def _name(column: object) -> str:
    assert isinstance(column, MyColumn)
    return f"({identifier(column.name)} + 0)" if column.codec in _NUMBERED else identifier(column.name)


def _within(schema: TableSchema, extent: Extent) -> str:
    bounds: list[str] = []
    if extent.keys:
        bounds.append("(" + " or ".join(_equal(schema, key) for key in extent.keys) + ")")
    if extent.after is not None:
        bounds.append(_beyond(schema, extent.after, ">"))
    if extent.upto is not None:
        bounds.append(_beyond(schema, extent.upto, "<", inclusive=True))
    if extent.where is not None:
        bounds.append(f"({extent.where})")
    return " and ".join(bounds) or "true"


def _equal(schema: TableSchema, key: Key) -> str:
    columns = [schema.column(name) for name in schema.key]
    return "(" + " and ".join(f"{_name(c)} = {_literal(c, t)}" for c, t in zip(columns, key, strict=True)) + ")"


def _beyond(schema: TableSchema, key: Key, sign: str, *, inclusive: bool = False) -> str:
    """`(a, b) > (x, y)` as `a >= x and (a > x or (a = x and (b > y)))`, which uses the index."""
    columns = [schema.column(name) for name in schema.key]
    values = [_literal(c, t) for c, t in zip(columns, key, strict=True)]
    names = [_name(c) for c in columns]
    last = f"{names[-1]} {sign}{'=' if inclusive else ''} {values[-1]}"
    for name, value in zip(names[-2::-1], values[-2::-1], strict=True):
        last = f"({name} {sign} {value} or ({name} = {value} and {last}))"
    return f"{names[0]} {sign}= {values[0]} and {last}" if len(names) > 1 else last
