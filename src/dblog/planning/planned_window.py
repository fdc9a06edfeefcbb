"""The plan of a batch that ends at a watermark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dblog.capture.segments import Segment
from dblog.core.offset import Offset
from dblog.core.schema import TableName


@dataclass(frozen=True)
class PlannedWindow:
    """A batch that ends at a watermark, and the facts to record when it is final."""

    end: Offset
    segments: Sequence[Segment]
    unread: frozenset[TableName]
    """Existing tables whose rows could not be read for an initial or repair dump."""
    elsewhere: frozenset[str]
    """Chunks that were read on another server than the log."""
