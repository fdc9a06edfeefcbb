"""Random histories of writers, crashes, late tasks and lost files: in each, the derived store ends as the source is.

On the way no key goes back in time, no value is wrong, and nobody needs the log that was acknowledged. A failure
prints the call that plays the same history again.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog.core import dump
from tests.unit.core.sim.world import Odds, World, tell, told

BLOCKS, BLOCK = 10, 200


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_store_ends_as_the_source_is(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        tell(World, seed)


@pytest.mark.parametrize("loss", [0.0, 0.03])
def test_tables_with_many_incomplete_rows_are_dumped_again(monkeypatch: pytest.MonkeyPatch, loss: float) -> None:
    monkeypatch.setattr(dump, "REPAIR_LIMIT", 1)
    for seed in range(150):
        tell(World, seed, Odds(loss=loss))


@given(
    seed=st.integers(0, 2**32),
    odds=st.builds(
        Odds,
        crash=st.sampled_from([0.0, 0.02, 0.1]),
        loss=st.sampled_from([0.0, 0.01, 0.04]),
        zombie=st.sampled_from([0.0, 0.3, 0.9]),
        wake=st.sampled_from([0.05, 0.5]),
        unread=st.sampled_from([0.0, 0.5, 1.0]),
        slow=st.sampled_from([0.0, 0.3, 1.0]),
        truncate=st.sampled_from([0.0, 0.02, 0.2]),
        locked=st.sampled_from([0.0, 0.9]),
        readback=st.sampled_from([0, 8]),
        batches=st.integers(2, 8),
    ),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_under_any_odds(seed: int, odds: Odds) -> None:
    tell(World, seed, odds)


def test_a_seed_is_a_history() -> None:
    assert told(World, 7) == told(World, 7)
    assert told(World, 7) != told(World, 8)


@pytest.mark.parametrize(
    "what",
    [
        "crash",
        "is lost",
        "rolls back",
        "steps later",
        "second attempt selects",
        "driver selects",
        "selects repair",
        "selects initial parts",
        "selects r0 ",
        "selects r1 ",
        "[truncate",
        "doc=<left out>",
    ],
)
def test_the_histories_are_not_tame(what: str) -> None:
    assert any(what in line for seed in range(12) for line in told(World, seed, Odds(crash=0.05, loss=0.03)))
