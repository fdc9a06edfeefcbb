"""The kinds of events that a pipeline writes to its log in the state store: the one declaration of them.

The planner emits them, `dblog watch` and the HTTP API show them, `docs/control.md` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class EventKind(StrEnum):
    """A kind of event: its name, its fields, and what has happened."""

    fields: tuple[str, ...]
    """The fields of an event of this kind, beside `at` and `kind`."""
    about: str

    def __new__(cls, name: str, fields: str, about: str) -> EventKind:
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.fields = tuple(fields.split())
        kind.about = about
        return kind

    watermark_written = "watermark_written", "token", "a watermark was written to the database"
    watermark_seen = "watermark_seen", "token position", "it came back through the log"
    round_opened = (
        "round_opened",
        "chunks selects",
        "chunks are being selected between two watermarks; `selects` has the first 40: chunk, dump, table",
    )
    chunk_selected = "chunk_selected", "chunk dump table rows seconds", "a chunk's rows were read"
    row_dropped = (
        "row_dropped",
        "chunk dump table key by",
        "a row was not delivered: the log has a newer event, `by` (`op`, `lsn`, `seq`)",
    )
    chunk_emitted = "chunk_emitted", "chunk dump table rows dropped", "the other rows of a chunk were delivered"
    batch_planned = (
        "batch_planned",
        "position events chunks",
        "a batch ends at this position; it delivers so many log events, and the rows of so many chunks",
    )
    offset_committed = "offset_committed", "position events", "a batch was committed"
    dump_started = "dump_started", "dump state reason", "a dump began"
    dump_ended = "dump_ended", "dump state reason", "a dump was completed, was cancelled or failed"
    table_joins = (
        "table_joins",
        "table reason",
        "a table that is new, or has other rows than the log shows, is followed and dumped from now on",
    )
    table_renamed = "table_renamed", "table name", "a followed table has another name now"
    table_left_out = "table_left_out", "table reason", "a table that the patterns name is not followed"
    table_set_aside = (
        "table_set_aside",
        "table reason message position column value key",
        "a table failed and is set aside; the others go on",
    )
    commits_lost = (
        "commits_lost",
        "after upto servers tables",
        "PostgreSQL: a server was promoted without commits that were delivered; the rows that they changed are read "
        "again: `tables` has their number by table, null for all rows",
    )
    raw_value = (
        "raw_value",
        "table column rows",
        "a column has values that its type cannot hold, for the first time since the start; they are null, with their "
        "texts in `_raw_values`",
    )
    events_lost = "events_lost", "events", "so many events before this one are not in the log: there were too many"


def event(kind: str, at: float, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Make an event of the log. Raises ValueError if the kind or a field is not declared."""
    if kind not in EventKind.__members__:
        raise ValueError(f"{kind!r} is not declared as a kind of event")
    if set(fields) != set(EventKind[kind].fields):
        raise ValueError(f"an event {kind} has the fields {EventKind[kind].fields}, not {tuple(fields)}")
    return {"at": at, "kind": kind, **fields}
