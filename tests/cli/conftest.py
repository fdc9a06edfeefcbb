"""A state store, and a pipeline in it that the tests play."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblog.state import open_store
from dblog.state.pipeline import Pipeline
from dblog.state.requests import Progress, State, TableProgress
from dblog.state.store import Store

STATUS: dict[str, Any] = {
    "state": "running",
    "error": None,
    "source": "postgresql://db.example:5432/shop",
    "slot": "dblog_public_1a2b3c",
    "host": "etl1",
    "pid": 4242,
    "tables": {
        "public.orders": {
            "version": "ab12cd34",
            "key": ["id"],
            "columns": [["id", "bigint"], ["total", "numeric(10,2)"]],
            "rows": 120_000,
        }
    },
    "position": 23_803_720,
    "captured": 23_803_976,
    "latest": 23_804_000,
    "lag_bytes": 280,
    "lag_seconds": 0.21,
    "capture_lag_seconds": 0.004,
    "events": 18_211,
    "rows": 63_000,
    "dropped": 12,
    "windows": 31,
    "selects": 60,
    "select_seconds": 1.2,
    "last_select_seconds": 0.014,
    "spool_bytes": 3 << 20,
    "slot_health": {"active": True, "wal_status": "reserved", "retained_bytes": 16 << 20, "safe_bytes": None},
    "waiting": None,
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The state store that every command finds by itself."""
    place = str(tmp_path / "state.db")
    monkeypatch.setenv("DBLOG_STATE", place)
    monkeypatch.delenv("DBLOG_URL", raising=False)
    return place


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with closing(open_store(place)) as store:
        yield store


@pytest.fixture
def pipeline(store: Store) -> Pipeline:
    """A pipeline that is known, and has said nothing yet."""
    pipeline = Pipeline(store, "shop")
    pipeline.open()
    return pipeline


@pytest.fixture
def running(pipeline: Pipeline) -> Pipeline:
    pipeline.say({**STATUS, "started_at": time.time() - 200})
    return pipeline


def part(state: State, read: int, dropped: int = 0, total: int | None = None, **more: Any) -> Progress:
    """The progress of a dump of public.orders that has taken ten seconds so far."""
    table = TableProgress(state, read, read - dropped, dropped, total, **more)
    ended = time.time() if state.ended else None
    return Progress(state, None, time.time() - 10, ended, 10.0, {"public.orders": table})
