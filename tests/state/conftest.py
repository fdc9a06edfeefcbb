"""Other processes for the tests of the state store, and the end of its sessions."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from dblog.state.zookeeper import clients
from tests.state.workers import PROCESSES


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Processes that share nothing with this one, as many as a test uses at once."""
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture(autouse=True)
def _no_session_is_left() -> Iterator[None]:
    """Sessions with ZooKeeper are kept for a while: a server that is gone would be looked for in other tests."""
    yield
    clients.end_all()
