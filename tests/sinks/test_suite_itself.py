"""The suite, tried on two sinks that are as simple as can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sinks.memory import MemoryLogTarget, MemoryTarget
from tests.sinks.suite import SinkSuite
from tests.sinks.target import Target


class TestState(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return MemoryTarget(tmp_path / "state.db")


class TestLog(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return MemoryLogTarget(tmp_path / "log.db")
