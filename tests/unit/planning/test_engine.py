"""What the engine says of itself, and what it does now and then: the first only reads, the second acts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dblog.capture.spool import Spool
from dblog.core.throttle import Throttle
from dblog.errors import ConnectionLost, SourceError
from dblog.planning.engine import Engine
from dblog.planning.settings import StreamSettings


class Recorder:
    """A source or a capture that notes every call; `answers` are what the calls return or raise."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            answer = self.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


class Log(Recorder):
    position, lag = 70, 0.5


@pytest.fixture
def source() -> Recorder:
    return Recorder(identity={"slot": "s"}, health={"latest": 100, "active": True}, probe=3.0)


@pytest.fixture
def capture() -> Log:
    return Log(operations={})


@pytest.fixture
def engine(source: Recorder, capture: Log, tmp_path: Path) -> Engine:
    """An engine whose log is at 70 of 100, with a dump that waits for a probe."""
    made = Engine(source, Spool(str(tmp_path)), StreamSettings())  # type: ignore[arg-type]
    made._capture, made._position = capture, 60  # type: ignore[assignment]
    made._planner._pacer.throttle = Throttle(probe="select 3", probe_max=5)
    made._planner._pacer.watches = True
    return made


def test_the_status_only_reads(engine: Engine, source: Recorder, capture: Log) -> None:
    source.answers["health"] = ConnectionLost("the server shuts down")
    first = engine.status()
    assert engine.status() == first
    assert set(source.calls) == {"identity"}
    assert set(capture.calls) == {"waiting_since", "operations"}
    assert engine._planner._pacer._probed[0] is None


def test_the_status_says_what_was_found_last(engine: Engine) -> None:
    assert "latest" not in engine.status()
    engine.tend()
    status = engine.status()
    assert (status["latest"], status["lag_bytes"], status["slot_health"]) == (100, 40, {"active": True})
    assert engine._planner._pacer._probed[1].probe == 3.0


def test_a_server_that_ends_our_session_is_left(engine: Engine, source: Recorder, capture: Log) -> None:
    engine.tend()
    source.answers["health"] = ConnectionLost("the server shuts down")
    engine.tend()
    assert capture.calls == ["reconnect"]
    assert "latest" not in engine.status()


def test_a_server_that_cannot_say_how_it_keeps_the_log_is_not_left(
    engine: Engine, source: Recorder, capture: Log
) -> None:
    source.answers["health"] = SourceError("permission denied")
    engine.tend()
    assert capture.calls == []
    assert "slot_health" not in engine.status()
