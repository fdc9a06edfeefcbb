"""Row events of one table that cannot be decoded, and the transaction in which that begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dblog.core.arrays import Ints
from dblog.errors import DecodeError
from dblog.sources.mysql.events import Events
from dblog.sources.mysql.rows import find_changes, table_batch
from dblog.sources.mysql.table_ids import Destination
from dblog.sources.table_failures import TableFailures


class Undecodable(Exception):
    """Row events of one table cannot be decoded. It never leaves the decoder."""

    def __init__(self, target: Destination, numbers: Ints, error: DecodeError) -> None:
        super().__init__(target, numbers, error)
        self.target, self.numbers, self.error = target, numbers, error


@contextmanager
def decoding(target: Destination, numbers: Ints) -> Iterator[None]:
    """Raise the DecodeError of a table's events as Undecodable. Watermarks and foreign keys concern other tables."""
    try:
        yield
    except DecodeError as error:
        if target.watermark or target.watched:
            raise
        raise Undecodable(target, numbers, error) from error


def note_failure(
    failures: TableFailures,
    found: Undecodable,
    events: Events,
    told: Callable[[Ints], tuple[Any, ...]],
    *,
    before: bool,
) -> None:
    """Find the first transaction of a table that cannot be decoded: the table fails there. `told` returns the arguments
    of `table_batch` for some events, the `_lsn` first."""
    layout = found.target.layout
    assert layout is not None

    def decode(part: slice) -> None:
        numbers = found.numbers[part]
        changes = find_changes(layout, events.raw, events.start[numbers], events.end[numbers], events.kind[numbers])
        table_batch(changes, *told(numbers), before=before)

    failures.find(found.target.table, told(found.numbers)[0], decode, found.error)
