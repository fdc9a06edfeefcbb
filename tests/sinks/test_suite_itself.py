"""The suite, tried on two sinks that are as simple as can be; one is the documents' example."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sinks.example import SHOWN, FoldersTarget
from tests.sinks.memory import MemoryTarget
from tests.sinks.suite import AwaySuite, SinkSuite
from tests.sinks.target import Target


class TestState(SinkSuite, AwaySuite):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return MemoryTarget(tmp_path / "state.db")


class TestExample(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return FoldersTarget(tmp_path, {"u": ("a", "b"), "Order": ("from",), "t_copy": ("key",)})


def test_the_example_is_short() -> None:
    assert len([line for line in SHOWN.splitlines() if line.strip()]) <= 20
