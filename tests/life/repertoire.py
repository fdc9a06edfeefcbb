"""Everything that can happen in a life: each step by its name, how often it comes, where, and what may come of it.

A step is *followed* when the stream goes on and every event fits the ledger. Where the product may stop instead, the
step names the errors with which it may; any other error, and any silence, is a failure. `on=False` takes a step out.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dblog.state.requests import State, Wish, read_request
from tests.life.life import Asked, Life
from tests.life.stream import Killed
from tests.life.world import FENCE
from tests.life.writers import Dice, write

POSTGRES = ("pg18", "pg15")
MYSQL = ("mariadb", "mariadb11", "mysql")
EVERY = (*POSTGRES, *MYSQL)

Act = Callable[[Life, Dice], None]


@dataclass(frozen=True)
class Step:
    """One kind of step. `weight`: how often it comes. `stops`: the errors that may end the stream in place of
    following. `on`: whether it is in the lives that `make test` and `make chaos` run."""

    name: str
    act: Act
    weight: int
    servers: tuple[str, ...] = EVERY
    stops: tuple[str, ...] = ()
    on: bool = True


STEPS: dict[str, Step] = {}


def step(
    weight: int, servers: Iterable[str] = EVERY, stops: Iterable[str] = (), *, on: bool = True
) -> Callable[[Act], Act]:
    def enter(act: Act) -> Act:
        name = act.__name__.replace("_", " ")
        STEPS[name] = Step(name, act, weight, tuple(servers), tuple(stops), on)
        return act

    return enter


def planned(server: str, seed: int, only: Iterable[str] | None = None) -> Iterable[tuple[Step, int]]:
    """The steps of a life, without end, each with the seed of its own choices."""
    dice = Dice(f"steps {seed}")
    steps = [s for s in STEPS.values() if server in s.servers and (s.on if only is None else s.name in set(only))]
    while True:
        for _ in range(dice.randint(8, 16)):
            yield dice.choices(steps, [s.weight for s in steps])[0], dice.randrange(1 << 30)
        yield STEPS["settle"], 0


# -- batches and transactions ----------------------------------------------------------------------------------------


@step(20)
def batches(life: Life, dice: Dice) -> None:
    for _ in range(dice.randint(1, 8)):
        life.stream.step(selects_last=dice.random() < 0.3)


@step(15)
def transactions(life: Life, dice: Dice) -> None:
    """Transactions of this process, between the steps of the stream."""
    for _ in range(dice.randint(1, 12)):
        write(life.world, life.session, dice)
        if dice.random() < 0.2:
            life.stream.step()


@step(0)
def settle(life: Life, dice: Dice) -> None:
    """Nobody writes: deliver everything, and compare."""
    life.settle()


# -- processes that die, or stop for a while ---------------------------------------------------------------------------


@step(4)
def kill_while_planning(life: Life, dice: Dice) -> None:
    try:
        life.stream.planned or life.stream.plan(kill_after=dice.uniform(0, 0.08))
    except Killed:
        pass
    life.stream.kill()


@step(4)
def kill_before_the_batch_runs(life: Life, dice: Dice) -> None:
    life.stream.planned or life.stream.plan(commit=dice.random() < 0.5)
    life.stream.kill()


@step(4)
def kill_while_the_batch_runs(life: Life, dice: Dice) -> None:
    if life.stream.planned or life.stream.plan():
        try:
            life.stream.attempt(kill_after=dice.uniform(0, 0.08))
        except Killed:
            pass
    life.stream.kill()


@step(6)
def kill_before_the_batch_is_committed(life: Life, dice: Dice) -> None:
    """The sink has the batch, the checkpoint does not: it is delivered again, and must be the same."""
    for _ in range(dice.randint(1, 2)):
        if life.stream.planned or life.stream.plan():
            life.stream.attempt(selects_last=dice.random() < 0.3)
        life.stream.kill()


@step(3)
def kill_between_batches(life: Life, dice: Dice) -> None:
    life.stream.step()
    life.stream.kill()


@step(2)
def stop_in_order(life: Life, dice: Dice) -> None:
    life.stream.step()
    life.stream.stop()


@step(3)
def lose_the_spool(life: Life, dice: Dice) -> None:
    moment = dice.choice(["planned", "delivered", "finished"])
    if moment != "finished" and (life.stream.planned or life.stream.plan()) and moment == "delivered":
        life.stream.attempt()
    life.stream.lose_spool()


@step(2)
def freeze_the_stream(life: Life, dice: Dice) -> None:
    child = life.stream.child
    life.later(dice.uniform(0, 0.03), lambda: child.signal(signal.SIGSTOP))
    life.later(dice.uniform(0.3, 1.0), lambda: child.signal(signal.SIGCONT)).join() if dice.random() < 0.5 else (
        life.later(dice.uniform(0.3, 1.0), lambda: child.signal(signal.SIGCONT))
    )
    for _ in range(2):
        life.stream.step()


# -- networks and servers ----------------------------------------------------------------------------------------------


@step(4)
def cut_connections(life: Life, dice: Dice) -> None:
    timer = life.later(dice.uniform(0, 0.05), life.proxy.cut)
    for _ in range(dice.randint(1, 4)):
        life.stream.step()
    timer.join()


@step(2)
def pause_the_network(life: Life, dice: Dice) -> None:
    life.later(dice.uniform(0, 0.03), life.proxy.pause)
    timer = life.later(dice.uniform(0.2, 0.8), life.proxy.resume)
    for _ in range(2):
        life.stream.step()
    timer.join()


@step(2)
def refuse_connections(life: Life, dice: Dice) -> None:
    life.proxy.refuse()
    life.proxy.cut()
    timer = life.later(dice.uniform(0.1, 0.8), life.proxy.accept)
    life.stream.step()
    timer.join()


@step(2)
def end_all_sessions(life: Life, dice: Dice) -> None:
    life.later(dice.uniform(0, 0.03), life.database.end_sessions)
    for _ in range(2):
        life.stream.step()


@step(1)
def crash_the_server(life: Life, dice: Dice) -> None:
    server = life.database.server
    timer = life.later(dice.uniform(0, 0.05), server.kill, server.start)
    for _ in range(2):
        life.stream.step()
    timer.join()


@step(1)
def freeze_the_server(life: Life, dice: Dice) -> None:
    process = life.database.server._process
    assert process is not None
    life.later(dice.uniform(0, 0.03), lambda: process.send_signal(signal.SIGSTOP))
    timer = life.later(dice.uniform(0.2, 0.6), lambda: process.send_signal(signal.SIGCONT))
    for _ in range(2):
        life.stream.step()
    timer.join()


# -- dumps -------------------------------------------------------------------------------------------------------------


def ask(life: Life, tables: Iterable[str], **request: object) -> None:
    tables, settled = tuple(tables), life.world.settled
    every = "all" in request
    patterns = None if request.pop("all", False) else ", ".join(f"{life.schema}.{t}" for t in tables)
    dump = life.pipeline.submit(read_request(patterns, **request))  # type: ignore[arg-type]
    keys = request.get("keys")
    life.epoch.asked.append(
        Asked(
            dump.id,
            tables,
            settled,
            None if not keys else tuple(tuple(map(str, k)) for k in keys),  # type: ignore[attr-defined]
            some=bool(request.get("where")) or every is None,
        )
    )
    life.stream.call("exchange")


def followed(life: Life) -> list[str]:
    return sorted(name for name in life.world.tables if name != FENCE)


@step(2)
def dump_all_tables(life: Life, dice: Dice) -> None:
    ask(life, life.world.tables, all=True)


@step(3)
def dump_tables(life: Life, dice: Dice) -> None:
    names = followed(life)
    ask(life, dice.sample(names, dice.randint(1, 2)))


@step(3)
def dump_keys(life: Life, dice: Dice) -> None:
    name = dice.choice(followed(life))
    table = life.world.tables[name]
    ask(life, [name], keys=[list(table.id(dice.randint(1, table.keys + 3))) for _ in range(dice.randint(1, 20))])


@step(3)
def dump_rows_under_a_condition(life: Life, dice: Dice) -> None:
    name = dice.choice(followed(life))
    ask(life, [name], where=dice.choice(["id % 3 = 1", "n > 0", "n is null or n < 500"]))


@step(5)
def pause_resume_or_cancel_a_dump(life: Life, dice: Dice) -> None:
    running = [a for a in life.epoch.asked if not a.done]
    if running:
        asked = dice.choice(running)
        state = life.pipeline.dump(asked.id).state
        if not state.ended:
            wish = Wish.run if state is State.paused else dice.choice([Wish.pause, Wish.pause, Wish.cancel])
            life.pipeline.wish(asked.id, wish)
            life.stream.call("exchange")
    life.stream.step()
