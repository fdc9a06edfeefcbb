"""The current state of a table: one MERGE applies a batch's net effect.

The target has the order `(_lsn, _seq)` of every row, and only a later one replaces a row. A deleted row leaves no order
to compare with. The mark (`sink.py`) prevents that an older batch brings it back.
"""

from __future__ import annotations

from collections.abc import Sequence

from dblog.sinks.base import TableBatch
from dblog.sinks.lake.columns import CURRENT_COLUMNS, quoted
from dblog.sinks.net_effect import signed_key


def merge(target: str, source: str, table: TableBatch, columns: Sequence[str]) -> str:
    """The statement that writes these columns of rows of `dblog.sinks.net_effect` to a target."""
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
    written = [*columns, *CURRENT_COLUMNS]
    return f"""
        MERGE INTO {target} t USING {source} s ON {same_key(key)}
        WHEN MATCHED AND {newer} AND s._op = 'delete' THEN DELETE
        WHEN MATCHED AND {newer} THEN UPDATE SET {", ".join([*changed, "t._lsn = s._lsn", "t._seq = s._seq"])}
        WHEN NOT MATCHED AND s._op <> 'delete' THEN INSERT ({", ".join(map(quoted, written))})
            VALUES ({", ".join(f"s.{quoted(c)}" for c in written)})
        {gone}"""


def _value(column: str, stays: str) -> str:
    """The new value of a column: the target's own if the log has left it out."""
    named = "'" + column.replace("\\", "\\\\").replace("'", "\\'") + "'"
    unchanged = f"coalesce(array_contains(s._unchanged, {named}), false)"
    return f"CASE WHEN {unchanged} AND {stays} THEN t.{quoted(column)} ELSE s.{quoted(column)} END"


def same_key(key: Sequence[str]) -> str:
    return " AND ".join(f"t.{quoted(c)} = s.{quoted(c)}" for c in key)


def older(lsn: int, seq: int) -> str:
    """A condition: the row of the target is older than this order."""
    return f"(t._lsn < {lsn} OR (t._lsn = {lsn} AND t._seq < {seq}))"
