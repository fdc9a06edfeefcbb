"""Ways to break the product on purpose, so that it can be seen that a life finds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pyarrow as pa


def _survivors(rows: pa.Table, *_: Any) -> pa.Array:
    return pa.array([True] * rows.num_rows, pa.bool_())


PATCHES: dict[str, tuple[str, Callable[..., Any]]] = {
    "dump rows are kept that the log has newer": ("dblog.work.tasks.survivors", _survivors),
    "rounds do not wait for commits that nobody sees": (
        "dblog.sources.postgres.source.Postgres.invisible",
        lambda self, xids, place: (),
    ),
}


def apply(name: str) -> None:
    """Break the product in this process, for good."""
    mock.patch(PATCHES[name][0], PATCHES[name][1]).start()
