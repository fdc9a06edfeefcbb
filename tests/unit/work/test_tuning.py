"""Spark's Python workers are tuned when our code first runs in them, unless that is switched off."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from dblog.spark.session import tuning

SHOW = """
import ctypes, gc
from dblog.errors import ConfigError
from dblog.work import lanes
calls = []
lanes.ctypes.CDLL = lambda name: type("C", (), {"mallopt": staticmethod(lambda *given: calls.append(given))})
try:
    list(lanes.delivered((), None, None, None, before=False))
    list(lanes.delivered((), None, None, None, before=False))
    print(gc.get_freeze_count() > 0, len(calls))
except ConfigError as error:
    print(error.message)
"""


def worker(**variables: str) -> str:
    """What a process says that begins to deliver rows: whether its objects are frozen, and how often malloc was set."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_worker_is_tuned_once() -> None:
    assert worker() == worker(DBLOG_TUNE_WORKERS="true") == "True 2"


def test_a_worker_can_be_left_as_it_is() -> None:
    assert worker(DBLOG_TUNE_WORKERS="false") == "False 0"


def test_any_other_value_is_refused() -> None:
    assert worker(DBLOG_TUNE_WORKERS="no") == "DBLOG_TUNE_WORKERS is 'no'"


@pytest.mark.parametrize(
    ("environment", "settings"),
    [({}, {}), ({"DBLOG_TUNE_WORKERS": "false"}, {"spark.executorEnv.DBLOG_TUNE_WORKERS": "false"})],
)
def test_a_session_hands_the_switch_to_its_executors(
    environment: Mapping[str, str], settings: Mapping[str, str]
) -> None:
    assert tuning(environment) == settings
