"""Reads Spark's checkpoint of a stream: the offset from which the stream continues when it is started again."""

from __future__ import annotations

import json
from pathlib import Path

from dblog.core.offset import Offset


def resume_offset(checkpoint: Path) -> Offset | None:
    """The offset from which a stream needs the log: that of the last committed batch or, if none is committed, of the
    first planned one. None for a new stream. Raises PositionLost for an offset of another version.

    A file of the folder `offsets` has a version line, a line of Spark's own, and one line for each source; a stream has
    one source. A file that is incomplete (Spark was killed while it wrote the very first one) counts as not written.
    """
    planned, committed = _numbers(checkpoint / "offsets"), _numbers(checkpoint / "commits")
    if not planned:
        return None
    number = max(committed, default=planned[0])
    try:
        lines = (checkpoint / "offsets" / str(number)).read_text("utf-8").splitlines()
        found = Offset.from_json(json.loads(lines[2]))
    except (OSError, IndexError, ValueError):
        return None
    return found if found.position is not None else None


def _numbers(folder: Path) -> list[int]:
    return sorted(int(file.name) for file in folder.glob("*") if file.name.isdecimal())
