"""The table as it is now: one MERGE brings a batch's net effect.

A row is replaced only by one of a later position, `(_lsn, _seq)`, which the target has for every row. A row that is
deleted leaves nothing behind to compare with: that an older batch does not bring it back is for the mark (`sink.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from dblog.sinks.base import TableBatch
from dblog.sinks.lake.target import quoted
from dblog.sinks.net_effect import signed_key

COLUMNS = {"_lsn": "bigint", "_seq": "int"}
"""What the target has besides the table's columns."""


def merge(target: str, source: str, table: TableBatch, columns: Sequence[str]) -> str:
    """The statement that brings rows of `dblog.sinks.net_effect` to a target; it writes these columns."""
    key = table.schema.key
    newer = "(s._lsn > t._lsn OR (s._lsn = t._lsn AND s._seq > t._seq))"
    stays = "NOT s._whole"
    gone = ""
    if table.truncated is not None:
        emptied = older(*table.truncated)
        stays += f" AND NOT {emptied}"
        gone = f"WHEN NOT MATCHED BY SOURCE AND {emptied} THEN DELETE"
    signed = signed_key(table.schema)
    changed = [f"t.{quoted(c)} = {_value(c, stays)}" for c in columns if c not in key or c in signed]
    written = [*columns, *COLUMNS]
    return f"""
        MERGE INTO {target} t USING {source} s ON {same_key(key)}
        WHEN MATCHED AND {newer} AND s._op = 'delete' THEN DELETE
        WHEN MATCHED AND {newer} THEN UPDATE SET {", ".join([*changed, "t._lsn = s._lsn", "t._seq = s._seq"])}
        WHEN NOT MATCHED AND s._op <> 'delete' THEN INSERT ({", ".join(map(quoted, written))})
            VALUES ({", ".join(f"s.{quoted(c)}" for c in written)})
        {gone}"""


def _value(column: str, stays: str) -> str:
    """The value a column gets: the target's own where the log has left it out."""
    named = "'" + column.replace("\\", "\\\\").replace("'", "\\'") + "'"
    unchanged = f"coalesce(array_contains(s._unchanged, {named}), false)"
    return f"CASE WHEN {unchanged} AND {stays} THEN t.{quoted(column)} ELSE s.{quoted(column)} END"


def same_key(key: Sequence[str]) -> str:
    return " AND ".join(f"t.{quoted(c)} = s.{quoted(c)}" for c in key)


def older(lsn: int, seq: int) -> str:
    """Whether a row of the target was there before a place of the log."""
    return f"(t._lsn < {lsn} OR (t._lsn = {lsn} AND t._seq < {seq}))"
