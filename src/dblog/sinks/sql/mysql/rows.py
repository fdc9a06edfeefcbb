"""Sends rows to MySQL and MariaDB: as INSERTs of many rows."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pymysql.err

from dblog.databases.mysql.connect import identifier
from dblog.errors import SinkError
from dblog.sinks.sql import text
from dblog.sinks.sql.target import DuplicateKey, Session
from dblog.work.json_text import json_text

STATEMENT_BYTES = 1 << 20
HOLDS = "the target's column cannot store the value: alter it, or leave the column out with exclude"
_AT_ROW = re.compile(r"column (?:`[^`]*`\.)*[`'](.+)[`'] at row (\d+)")
VALUES = {1048, 1264, 1265, 1292, 1366, 1406, 1411, 3140, 4025}
"""Errors about a value that a column cannot store."""
_DUPLICATE = 1062


def insert_rows(session: Session, table: str, rows: pa.RecordBatch) -> None:
    """Insert rows by statements of about `STATEMENT_BYTES`. Raises SinkError, DuplicateKey, Refused."""
    content, at = text.buffer(value_lists(rows, ","))
    [(limit,)] = session.run("select @@max_allowed_packet")
    head = f"insert into {table} ({', '.join(map(identifier, rows.schema.names))}) values ".encode()
    begin = 0
    while begin < rows.num_rows:
        end = max(int(np.searchsorted(at, at[begin] + STATEMENT_BYTES, "right")) - 1, begin + 1)
        statement = head + bytes(content[at[begin] : at[end] - 1])
        if len(statement) >= limit:
            raise SinkError(
                f"a row needs a statement of {len(statement)} bytes; the server accepts at most {limit}",
                hint="raise max_allowed_packet on the server",
            )
        with session.target.errors(f"inserting rows into {table}"), session.connection.cursor() as cursor:
            try:
                cursor.execute(statement)
            except pymysql.err.MySQLError as exc:
                raise_refused(exc, begin)
                raise
        begin = end


def raise_refused(exc: pymysql.err.MySQLError, begin: int) -> None:
    """Raise Refused or DuplicateKey if the error is about a row. `begin` is the first row of the statement."""
    number, said = (*exc.args, "", "")[:2]
    if number == _DUPLICATE:
        raise DuplicateKey(f"the table has a row with the same key: {said}") from exc
    at_row = _AT_ROW.search(str(said)) if number in VALUES else None
    if at_row is not None:
        raise text.Refused(at_row[1], begin + int(at_row[2]) - 1, str(said), hint=HOLDS) from exc


def value_lists(rows: pa.RecordBatch | pa.Table, end: str = "") -> pa.Array:
    """For each row its literals in parentheses."""
    cells = [written(name, plain(rows.column(name))) for name in rows.schema.names]
    return text.surrounded(text.joined(cells, ",", "NULL"), "(", ")" + end)


def plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array that is not of a dictionary, and lists as JSON."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    column = column.dictionary.take(column.indices) if pa.types.is_dictionary(column.type) else column
    return json_text(column) if pa.types.is_list(column.type) else column


def written(name: str, values: pa.Array) -> pa.Array:
    """The values of a column as SQL literals. Raises Refused."""
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return text.surrounded(text.hexed(values), "x'", "'")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return text.surrounded(text.escaped(values, {"\\": "\\\\", "'": "\\'"}), "'", "'")
    texts = input_texts(name, values)
    if pa.types.is_temporal(kind) or (pa.types.is_decimal(kind) and kind.scale):
        # Arrow writes small decimals with an exponent, and the server reads a number with an exponent as a float.
        return text.surrounded(texts, "'", "'")
    if pa.types.is_floating(kind):  # as a number -0 loses its sign, as text it does not
        texts = pc.if_else(pc.equal(texts, "-0"), pa.scalar("'-0'", text.TEXT), texts)
    return texts


def input_texts(name: str, values: pa.Array) -> pa.Array:
    """The values of a column as text that the server reads, bytes as hexadecimal digits. Raises Refused."""
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return text.hexed(values)
    if pa.types.is_temporal(kind):
        return text.temporal(name, values, _odd)
    if pa.types.is_floating(kind):
        text.refuse(name, pc.invert(pc.is_finite(values)), "the server cannot store infinity and NaN")
    if kind == pa.float32():
        values = values.cast(pa.float64())  # the shortest text of the greatest float32 is out of its range
    if kind == pa.bool_():
        values = values.cast(pa.int8())
    return values.cast(text.TEXT)


def _odd(days: int, micros: int, infinite: bool) -> str | None:
    if infinite:
        return "0000-00-00" if days < 0 else None
    year, month, day = text.civil(days)
    if year != 0 or (month, day) == (2, 29):  # the server has the year 0, and takes it for one without a leap day
        return None
    return f"0000-{month:02}-{day:02} {text.clock(micros)}" if micros else f"0000-{month:02}-{day:02}"
