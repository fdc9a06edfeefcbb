"""What `dblog run` logs: changes, a summary now and then, and a line in place on a terminal."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from dblog.cli import progress
from dblog.cli.log import SUMMARY_SECONDS, ConsoleLog
from dblog.cli.progress import ProgressLog
from dblog.errors import SinkError
from dblog.pipelines.reached import Reached
from dblog.pipelines.report import Doing
from dblog.spark.options import read_options

AT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, markup=False, highlight=False, emoji=False)


def text(of: Console) -> str:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue()


class Played:
    """A stream that the test plays."""

    def __init__(self) -> None:
        self.sink_name = "lake"
        self.read = read_options({"url": "postgresql://db.example/shop", "tables": "public.*"})
        self.report = SimpleNamespace(now=Doing())
        self.ended = False
        self.error: SinkError | None = None
        self.new: list[Reached] = []

    def reached(self) -> list[Reached]:
        new, self.new = self.new, []
        return new

    def batch(self, number: int, **more: Any) -> None:
        usual = {"position": 100 + number, "seconds": 0.1, "at": "now", "changes": number, "rows": 0}
        state = {"dumping": False, "tables": ("public.t",), "caught_up": True}
        self.new.append(Reached(number, **{**usual, **state, **more}))


class Told:
    """The progress of one stream, and the lines logged since they were last asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream = Played()
        self.console = console(terminal=False)
        self.now = 0.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)
        streams: Any = [self.stream]
        self.progress = ProgressLog(streams, ConsoleLog(self.console, live=True), as_json=False)
        self._seen = 0

    def lines(self) -> list[str]:
        self.progress.update()
        new, self._seen = text(self.console)[self._seen :], len(text(self.console))
        return [re.sub(rf"^{AT} ", "", line) for line in new.splitlines()]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def test_a_line_has_a_time_and_a_level() -> None:
    out = console(terminal=False)
    log = ConsoleLog(out, live=True)
    assert not log.in_place
    log.info("lake: started")
    log.warning("lake: the sink is away " + "x" * 200)
    log.error("lake: it failed", hint="mend it")
    log.show("nothing of this")
    info, warning, error = text(out).splitlines()
    assert re.fullmatch(rf"{AT} INFO    lake: started", info)
    assert re.fullmatch(rf"{AT} WARNING lake: the sink is away x{{200}}", warning), "it is not wrapped"
    assert re.fullmatch(rf"{AT} ERROR   lake: it failed; hint: mend it", error)


def test_on_a_terminal_lines_come_above_the_line_in_place() -> None:
    out = console(terminal=True)
    log = ConsoleLog(out, live=True)
    with log.line():
        log.show("lake: batch 1")
        drawn = len(text(out))
        log.show("lake: batch 1")
        assert len(text(out)) == drawn, "what has not changed is not drawn again"
        log.info("lake: caught up")
        log.show("lake: batch 2 " + "x" * 200)
    written = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", lambda code: "<erase>" if code[0].endswith("K") else "", text(out))
    assert re.search(r"lake: batch 1\r?<erase>.*INFO +lake: caught up\n.*lake: batch 1", written, re.DOTALL)
    assert "lake: batch 2 xxx" in written
    assert "x" * 100 not in written, "a long line is cut: two lines could not be erased"


def test_changes_are_told_once(told: Told) -> None:
    assert told.lines() == []
    told.stream.batch(0, tables=(), dumping=True, caught_up=False)
    told.stream.batch(1, dumping=True, caught_up=False)
    assert told.lines() == ["INFO    lake: a dump has begun"]
    told.stream.batch(2, dumping=True, caught_up=False, rows=10)
    assert told.lines() == []
    told.stream.batch(3, rows=20)
    assert told.lines() == [
        "INFO    lake: all dumps have ended, 20 rows of dumps so far",
        "INFO    lake: caught up with the log at 0/67",
    ]
    told.stream.batch(4, rows=20, caught_up=False)
    told.stream.batch(5, rows=20)
    assert told.lines() == []
    told.stream.batch(6, rows=20, tables=("public.t", "public.u"))
    assert told.lines() == ["INFO    lake: new tables: public.u"]


def test_a_position_is_written_as_its_database_does(told: Told) -> None:
    told.stream.read = read_options({"url": "mariadb://ann@db.example/shop", "tables": "shop.*"})
    told.stream.batch(0, position=(3 << 40) + 1234)
    assert told.lines() == ["INFO    lake: caught up with the log at 000003:1234"]


def test_after_it_waited_it_is_told_when_it_has_caught_up(told: Told) -> None:
    told.stream.batch(0)
    told.lines()
    told.stream.report.now = Doing("waiting for sink", 1.0, "gone")
    assert told.lines() == []
    told.stream.report.now = Doing()
    told.stream.batch(1)
    assert told.lines() == ["INFO    lake: caught up with the log at 0/65"]


def test_a_summary_comes_every_few_minutes_and_says_what_it_waits_for(told: Told) -> None:
    told.stream.batch(0)
    told.lines()
    told.now = SUMMARY_SECONDS - 1
    assert told.lines() == []
    told.now = SUMMARY_SECONDS + 1
    assert told.lines() == ["INFO    lake: batch 0, 0 changes and 0 rows of dumps, the log up to 0/64"]
    assert told.lines() == []
    told.stream.report.now = Doing("waiting for sink", 1.0, "nobody is at home")
    told.now *= 2
    (line,) = told.lines()
    assert re.fullmatch(r"INFO    lake: batch 0, .*; waiting for sink for .*: nobody is at home", line)


def test_a_failure_is_told_once(told: Told) -> None:
    told.stream.ended, told.stream.error = True, SinkError("the target refuses this", hint="ask its owner")
    assert told.lines() == ["ERROR   lake: the target refuses this; hint: ask its owner"]
    assert told.lines() == []
