"""Runs a life step by step, and says on failure what happened, what shows it, and how to repeat it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

from pyspark.sql import SparkSession

from tests.conftest import Database
from tests.life.life import Failure, Life
from tests.life.repertoire import Step, named, planned
from tests.life.replay import Attempt, replay
from tests.life.stream import Crashed, Stopped
from tests.life.writers import Dice

Target = tuple[SparkSession, Database]
"""Where the sink `sql` writes to, and the Spark that it uses."""


def live(
    server: str,
    seed: int,
    *,
    steps: int,
    seconds: float,
    only: Iterable[str] = (),
    also: Iterable[str] = (),
    say: Callable[[str], None] = print,
    sabotage: str = "",
    replayed: bool = False,
) -> Life:
    """Run a life to its end. Raises Failure, with everything that is needed to understand and to repeat it.
    `sabotage` breaks the product, to see that it is found. `replayed`: keep what `replay_into` needs."""
    say(f"a life on {server}, seed {seed}")
    life = Life(server, seed, say, sabotage, replayed=replayed)
    taken: list[str] = []
    try:
        say(f"         {life.settings}, {life.writers.count} writers, {life.writers.pause} s apart")
        for number, (step, own) in enumerate(islice(planned(server, seed, only, also), steps)):
            at = time.monotonic() - life.began
            if at > seconds:
                break
            taken.append(f"{number:4} {at:7.2f}s {step.name}")
            say(taken[-1])
            take(life, step, own)
        say(f"         the last step is over after {time.monotonic() - life.began:.1f} s")
        end(life)
        events = sum(e.stream.recording.count for e in life.epochs)
        batches = sum(len(e.stream.recording.batches) for e in life.epochs)
        took = time.monotonic() - life.began
        say(f"passed: {len(taken)} steps, {batches} batches, {events} events, {life.stops} stops in {took:.1f} s")
        return life
    except (Failure, Crashed) as error:
        again = f"python -m tests.life --server {server} --seed {seed} --steps {len(taken)}"
        again += "".join(f" --only '{name}'" for name in only) + "".join(f" --also '{name}'" for name in also)
        told = "\n".join(taken[-40:])
        raise Failure(
            f"{error}\n\nsteps of the life on {server} with seed {seed} (the last {len(taken[-40:])}):\n{told}\n\n"
            f"again (the same steps; how they interleave with the writers may differ):\n  {again}"
        ) from error
    finally:
        life.close()


def take(life: Life, step: Step, seed: int) -> None:
    """One step. A stop that is allowed is dealt with, and the life goes on."""
    if step.stops:
        life.allowed |= dict.fromkeys(step.stops, step.name)
    while True:
        try:
            step.act(life, Dice(seed).prepare(life.world))
            return
        except Stopped as error:
            life.stopped(error)
            if step.name != "settle":
                return
        finally:
            life.wait()


def end(life: Life) -> None:
    """The last comparison, and one more with every column after a dump of everything."""
    take(life, named("settle", life.server_name), 0)
    take(life, named("dump all tables", life.server_name), 0)
    while True:
        try:
            life.settle(whole=True)
            return
        except Stopped as error:
            life.stopped(error)


def replay_into(target: Target, life: Life) -> None:
    """Give everything that a life has delivered, since it last began with a new checkpoint, to the sink `sql`, and
    compare the target with the source. Raises Failure."""
    began, history = time.monotonic(), life.stream.recording.history
    assert history, "nothing was kept"
    if found := replay(history, *target):
        raise Failure("\n".join(map(str, found)) + f"\n\nlife on {life.server_name} with seed {life.seed}")
    attempts = [item.number for item in history if isinstance(item, Attempt)]
    life.say(
        f"the sql target was right {len(history) - len(attempts)} times: {len(set(attempts))} batches "
        f"in {len(attempts)} attempts, replayed in {time.monotonic() - began:.1f} s"
    )


def run(
    server: str,
    seed: int,
    *,
    steps: int,
    seconds: float,
    only: Iterable[str] = (),
    also: Iterable[str] = (),
    target: Target | None = None,
) -> bool:
    """Whether a life went well; prints what it does."""
    try:
        say = partial(print, flush=True)
        kinds = {"only": only, "also": also}
        life = live(server, seed, steps=steps, seconds=seconds, **kinds, say=say, replayed=target is not None)
        if target is not None:
            replay_into(target, life)
    except Failure as failure:
        print(f"\nFAILED: {failure}", flush=True)
        return False
    return True
