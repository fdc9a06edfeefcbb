"""When the files of chunks are removed: as soon as no batch needs them, and late ones within a minute.

A chunk is needed from the offset that plans its select to the commit of the batch that delivers its rows. Some chunks
get no such batch: their select failed, or their table has changed since. A task that Spark has abandoned may still
write files at any time. So all files are removed except those of chunks that a batch may still need.
"""

from __future__ import annotations

from dblog.capture.chunk_files import ChunkFiles
from dblog.capture.effects import Effects
from dblog.core.offset import Offset

SWEEP_SECONDS = 60.0
"""How often the chunk files are listed to find late ones. A listing of remote storage takes some 100 ms."""


class ChunkRemoval:
    """Removes the chunk files of one stream. Spark's calls say which offsets are planned and which are committed."""

    def __init__(self, files: ChunkFiles, effects: Effects) -> None:
        self._files = files
        self._effects = effects
        self._present: set[str] = set()
        """Chunks that may have files on the spool."""
        self._planned: set[str] = set()
        """Chunks of the offset that was planned last."""
        self._swept = effects.monotonic()

    def planned(self, start: Offset, end: Offset) -> None:
        """The batch between two offsets is planned, or planned again in a new life."""
        self._planned = chunks_of(end)
        self._present |= chunks_of(start) | self._planned

    def committed(self, end: Offset) -> None:
        """The batch that ends here is committed. The next one may be planned already."""
        done = {c.id for c in end.emit}
        needed = (self._planned | {c.id for c in end.read}) - done
        self._files.remove_chunks((self._present | done) - needed)
        self._present = needed
        if self._effects.monotonic() - self._swept >= SWEEP_SECONDS:
            self._files.sweep_chunks(needed)
            self._swept = self._effects.monotonic()


def chunks_of(offset: Offset) -> set[str]:
    """The ids of the chunks that an offset names."""
    return {c.id for c in (*offset.emit, *offset.read)}
