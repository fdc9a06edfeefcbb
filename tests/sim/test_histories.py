"""Random histories of writers, crashes, late tasks and lost files: in each, the derived store ends as the source is.

On the way no key goes back in time, no value is wrong, nobody needs the log that was acknowledged, every request is
served, and no broken connection ends the stream. A failure prints the command that plays the same history again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog.core import dump
from dblog.core.offset import Offset
from tests.sim.__main__ import main, read_odds
from tests.sim.database import Violation
from tests.sim.source import SimSource
from tests.sim.world import Odds, World, replay, tell, told

BLOCKS, BLOCK = 40, 250
"""10,000 histories."""


@pytest.fixture(autouse=True)
def _few_collections() -> Iterator[None]:
    """A history makes few cycles: collecting them after each thousand objects costs a tenth of the time."""
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(50_000)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_store_ends_as_the_source_is(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        tell(seed)


@pytest.mark.parametrize("loss", [0.0, 0.03])
def test_tables_with_many_incomplete_rows_are_dumped_again(monkeypatch: pytest.MonkeyPatch, loss: float) -> None:
    monkeypatch.setattr(dump, "REPAIR_LIMIT", 1)
    for seed in range(150):
        tell(seed, Odds(loss=loss))


@given(
    seed=st.integers(0, 2**32),
    odds=st.builds(
        Odds,
        crash=st.sampled_from([0.0, 0.01, 0.05]),
        loss=st.sampled_from([0.0, 0.01, 0.04]),
        cut=st.sampled_from([0.0, 0.01, 0.1]),
        zombie=st.sampled_from([0.0, 0.3, 0.9]),
        wake=st.sampled_from([0.05, 0.5]),
        unread=st.sampled_from([0.0, 0.5, 1.0]),
        slow=st.sampled_from([0.0, 0.3, 1.0]),
        truncate=st.sampled_from([0.0, 0.02, 0.2]),
        long=st.sampled_from([0.0, 0.5]),
        locked=st.sampled_from([0.0, 0.9]),
        unbounded=st.sampled_from([0.0, 0.3]),
        joins=st.sampled_from([0.0, 0.5]),
        readback=st.sampled_from([0, 8]),
        batches=st.integers(2, 8),
    ),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_under_any_odds(seed: int, odds: Odds) -> None:
    tell(seed, odds)


def test_connections_break_while_tables_join() -> None:
    for seed in range(150):
        tell(seed, Odds(cut=0.05, joins=0.5, long=0.5))


@pytest.mark.parametrize("block", range(4))
def test_tables_are_set_aside_and_taken_up_again(block: int) -> None:
    """What cannot be decoded or followed any more sets its table aside; the other goes on; a retry brings it back."""
    aside = again = 0
    for seed in range(block * 100, (block + 1) * 100):
        history = tell(seed, Odds(bad=0.04, unfit=0.05))
        offsets = history.read_offsets
        aside += sum(bool(offset.aside) for offset in offsets)
        again += sum(any(t not in after.aside for t in before.aside) for before, after in pairwise(offsets))
    assert aside > 100
    assert again > 20


class LosesTheLastChunk(World):
    """A file of the batch that ends all dumps is lost when the batch is planned."""

    lost = False

    def planned(self, end: Offset) -> None:
        super().planned(end)
        if self.closing and end.emit and not end.dumping and not self.lost:
            self.lost = True
            self.spool.lose((end.emit[0].id, end.emit[0].stamp))


def test_a_stream_that_drains_reads_a_lost_chunk_again() -> None:
    histories = [LosesTheLastChunk(seed, Odds(loss=0, batches=3)) for seed in range(120)]
    for history in histories:
        if history.drains:
            history.run()
    assert sum(history.lost for history in histories) > 10


def test_a_seed_is_a_history() -> None:
    assert told(7) == told(7)
    assert told(7) != told(8)


@pytest.mark.parametrize(
    "what",
    [
        "crash",
        "is lost",
        "rolls back",
        "steps later",
        "second attempt for initial",
        "driver selects",
        "loses its connection",
        "is locked",
        "for repair",
        "for initial",
        "for 1-r",
        "for 2-r",
        "pauses 1-r",
        "cancels 1-r",
        "the stream is to follow",
        "[truncate",
        "doc=<left out>",
    ],
)
def test_the_histories_are_not_tame(what: str) -> None:
    assert any(what in line for line in _lines())


@cache
def _lines() -> list[str]:
    return [line for seed in range(40) for line in told(seed, Odds(crash=0.02, loss=0.02, request=0.5))]


def test_a_failure_names_the_command_that_plays_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SimSource, "invisible", lambda self, xids, coordinate: ())
    odds = Odds(slow=0.6, batches=5)
    seed, said = _first_failure(odds)
    command = replay(seed, odds)
    assert f"replay: {command}\n" in said
    assert command.endswith(f"--seed {seed} --odds slow=0.6 --odds batches=5")
    assert main(command.split()[3:]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"violation: {said.splitlines()[0]}"


def _first_failure(odds: Odds) -> tuple[int, str]:
    for seed in range(200):
        try:
            tell(seed, odds)
        except Violation as violation:
            return seed, str(violation)
    raise AssertionError("nothing failed")


def test_odds_are_read_as_they_are_written() -> None:
    assert read_odds(["slow=0.6", "batches=5"]) == Odds(slow=0.6, batches=5)


def test_many_histories_are_played_by_several_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--histories", "20", "--first", "3", "--processes", "2"]) == 0
    assert "20 of 20 histories: " in capsys.readouterr().out
