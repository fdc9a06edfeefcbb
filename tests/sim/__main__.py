"""Play many histories, on every core, until one fails; or play one again and print its story.

python -m tests.sim --histories 1000000 [--first 0] [--processes 2]
python -m tests.sim --seed 7 [--odds crash=0.05]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from tests.sim.database import Violation
from tests.sim.world import STARTED, Odds, tell, told

BLOCK = 100
"""Histories that a process plays before it reports."""
REPORT_SECONDS = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=10_000, help="play this many histories")
    parser.add_argument("--first", type=int, default=0, help="begin with this seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="use this many processes")
    parser.add_argument("--seed", type=int, help="play the history of this seed and print its story")
    parser.add_argument(
        "--odds", action="append", default=[], metavar="NAME=VALUE", help="change how often things happen"
    )
    given = parser.parse_args(arguments)
    odds = read_odds(given.odds)
    if given.seed is not None:
        return play_one(given.seed, odds)
    return play_many(given.first, given.histories, given.processes, odds)


def read_odds(given: Sequence[str]) -> Odds:
    usual = Odds()
    pairs = (text.partition("=")[::2] for text in given)
    return replace(usual, **{name: type(getattr(usual, name))(value) for name, value in pairs})


def play_one(seed: int, odds: Odds) -> int:
    story = told(seed, odds)
    print("\n".join(story))
    return int(story[-1].startswith("violation"))


def play_many(first: int, histories: int, processes: int, odds: Odds) -> int:
    began = said = time.monotonic()
    done, simulated = 0, 0.0
    blocks = [(seed, min(seed + BLOCK, first + histories), odds) for seed in range(first, first + histories, BLOCK)]
    with multiprocessing.Pool(processes) as pool:
        for played, seconds, failed in pool.imap_unordered(play_block, blocks):
            done, simulated = done + played, simulated + seconds
            elapsed = time.monotonic() - began
            if failed is not None:
                pool.terminate()
                print(failed)
                return 1
            if time.monotonic() - said > REPORT_SECONDS or done == histories:
                said = time.monotonic()
                rate = f"{done / elapsed:.0f} histories/s, {simulated / 3600 / elapsed:.2f} simulated hours/s"
                print(f"{done} of {histories} histories: {rate}", flush=True)
    return 0


def play_block(block: tuple[int, int, Odds]) -> tuple[int, float, str | None]:
    """Play the histories of some seeds: how many, their simulated seconds, and what the first failure says."""
    first, end, odds = block
    simulated = 0.0
    for seed in range(first, end):
        try:
            simulated += tell(seed, odds).clock - STARTED
        except Violation as violation:
            return seed - first, simulated, str(violation)
    return end - first, simulated, None


if __name__ == "__main__":
    sys.exit(main())
