"""Tables that the target has refused in a batch, and that are set aside at the next offset because of it.

    refused/<batch>    the notes of a batch, in the folder of the stream

The order of durable effects, when the target refuses a table in batch n:

1. A note is written to the folder, and copied to the spool. It names the table, and where the batch begins and ends.
2. The sink writes the batch without the table.
3. The planner reads the copy, and the offset of batch n + 1 has the table aside, from the beginning of batch n on.
4. When batch n + 1 comes, Spark has written that offset: the note is removed.

After a crash the copy is made again from the folder before the query starts. If batch n is repeated, the sink gets it
without the tables that the notes name. So no later row of a table reaches the target while earlier ones are missing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dblog.core.schema import TableName
from dblog.core.set_aside import MOST_TEXT, cut
from dblog.errors import TargetRefused
from dblog.sinks.base import Batch

if TYPE_CHECKING:
    from dblog.capture.spool import Spool
    from dblog.pipelines.stream_folder import StreamFolder
    from dblog.spark.options import Options

FOLDER = "refused"


class Refusals:
    """The notes of one stream. `hidden` removes secrets from a text."""

    def __init__(self, folder: StreamFolder, spool: Spool, hidden: Callable[[str], str] = str) -> None:
        self._folder = folder
        self._spool = spool
        self._hidden = hidden
        self._notes: dict[int, list[dict[str, Any]]] = {}
        for number in folder.numbers(FOLDER):
            self._notes[number] = json.loads(folder.read(f"{FOLDER}/{number}") or "[]")
        self._copy()

    def begin(self, batch: Batch) -> Batch:
        """Remove the notes of earlier batches. Returns the batch without the tables that were refused in it before."""
        over = [number for number in self._notes if number != batch.id]
        if over:
            for number in over:
                self._folder.remove(f"{FOLDER}/{number}")
                del self._notes[number]
            self._copy()
        return self._without(batch)

    def keep(self, batch: Batch, begins: int, error: TargetRefused) -> Batch | None:
        """Write down that the target has refused a table. Returns the batch without it; None if the batch cannot be
        written without one table."""
        table = TableName(*error.table) if error.table else None
        if batch.cascades or all(t.source != table for t in batch.tables):
            return None  # rows of other tables depend on those of this one, or the table is not known
        text = error.message if error.hint is None else f"{error.message} ({error.hint})"
        note = {
            "table": table,
            "position": begins,
            "end": batch.position,
            "at": time.time(),
            "message": cut(self._hidden(text), MOST_TEXT),
        }
        self._notes[batch.id] = [*self._notes.get(batch.id, ()), note]
        self._folder.write(f"{FOLDER}/{batch.id}", json.dumps(self._notes[batch.id]))
        self._copy()
        return self._without(batch)

    def _without(self, batch: Batch) -> Batch:
        refused = {TableName(*note["table"]) for note in self._notes.get(batch.id, ())}
        return replace(batch, tables=tuple(t for t in batch.tables if t.source not in refused)) if refused else batch

    def _copy(self) -> None:
        self._spool.keep_refused([note for notes in self._notes.values() for note in notes])


def refusals_of(folder: StreamFolder, read: Options, hidden: Callable[[str], str]) -> Refusals | None:
    """The refusals of a stream with these options; None if it sets no table aside."""
    return Refusals(folder, read.open_spool(), hidden) if read.settings.set_aside else None
