"""A state store with a pipeline that says it runs, and a server over it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dblog.control.serve import serving
from dblog.state import open_store
from dblog.state.pipeline import Pipeline
from dblog.state.store import Store

STATUS: dict[str, Any] = {
    "state": "running",
    "error": None,
    "source": "postgresql://db.example:5432/shop",
    "slot": "dblog_shop",
    "host": "worker-1",
    "pid": 4711,
    "started_at": 1_700_000_000.5,
    "tables": {
        "public.orders": {
            "version": "ab12cd34",
            "key": ["id"],
            "columns": [["id", "integer"], ["total", "numeric"]],
            "rows": 1234,
        },
        "public.items": {"version": "00ff00ff", "key": ["id", "line"], "columns": [], "rows": None},
    },
    "position": 900,
    "captured": 950,
    "latest": 1000,
    "lag_bytes": 100,
    "lag_seconds": 1.5,
    "capture_lag_seconds": 0.25,
    "events": 42,
    "rows": 1000,
    "dropped": 7,
    "windows": 5,
    "selects": 9,
    "select_seconds": 2.5,
    "last_select_seconds": 0.125,
    "spool_bytes": 65536,
    "slot_health": {"active": True, "wal_status": "extended", "retained_bytes": 4096, "safe_bytes": None},
    "waiting": None,
}


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "state.db")


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    store = open_store(place)
    yield store
    store.close()


def start(store: Store, name: str, **changed: Any) -> Pipeline:
    """What a pipeline does when it begins."""
    pipeline = Pipeline(store, name)
    pipeline.open()
    pipeline.say({**STATUS, **changed})
    return pipeline


@pytest.fixture
def shop(store: Store) -> Pipeline:
    return start(store, "shop")


@pytest.fixture
def client(place: str) -> Iterator[httpx.Client]:
    with serving("127.0.0.1:0", place) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
