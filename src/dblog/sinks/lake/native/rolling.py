"""Rows in groups of about the size of a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


def rolled(tables: Iterable[pa.Table], size: int) -> Iterator[list[pa.Table]]:
    """The tables in groups of about `size` bytes. A table that is much larger is cut. Empty tables are left out."""
    group: list[pa.Table] = []
    held = 0
    for table in tables:
        for piece in _pieces(table, size):
            group.append(piece)
            held += piece.nbytes
            if held >= size:
                yield group
                group, held = [], 0
    if group:
        yield group


def _pieces(table: pa.Table, size: int) -> Iterator[pa.Table]:
    if not table.num_rows:
        return
    count = max(1, round(table.nbytes / size))
    step = -(-table.num_rows // count)
    for at in range(0, table.num_rows, step):
        yield table.slice(at, step)
