"""Steps: dumps of every kind."""

from __future__ import annotations

from collections.abc import Iterable

from dblog.state.requests import State, Wish, read_request
from tests.life.life import Asked, Life
from tests.life.world import FENCE
from tests.life.writers import Dice


def ask(life: Life, tables: Iterable[str], **request: object) -> None:
    tables, settled = tuple(tables), life.world.settled
    patterns = None if request.pop("all", False) else ", ".join(f"{life.schema}.{t}" for t in tables)
    dump = life.pipeline.submit(read_request(patterns, **request))  # type: ignore[arg-type]
    keys = request.get("keys")
    life.epoch.asked.append(
        Asked(
            dump.id,
            tables,
            settled,
            life.stream.recording.count,
            None if not keys else tuple(tuple(map(str, k)) for k in keys),  # type: ignore[attr-defined]
            some=bool(request.get("where")),
        )
    )
    life.stream.call("exchange")


def followed(life: Life) -> list[str]:
    return sorted(name for name in life.world.tables if name != FENCE)


def dump_all_tables(life: Life, dice: Dice) -> None:
    ask(life, life.world.tables, all=True)


def dump_tables(life: Life, dice: Dice) -> None:
    names = followed(life)
    ask(life, dice.sample(names, dice.randint(1, 2)))


def dump_keys(life: Life, dice: Dice) -> None:
    name = dice.choice(followed(life))
    table = life.world.tables[name]
    ask(life, [name], keys=[list(table.id(dice.randint(1, table.keys + 3))) for _ in range(dice.randint(1, 20))])


def dump_rows_under_a_condition(life: Life, dice: Dice) -> None:
    name = dice.choice(followed(life))
    numbers = [c for c, kind in life.world.tables[name].columns.items() if kind == "int"]
    conditions = ["id % 3 = 1", *(f"{c} > 0" for c in numbers), *(f"{c} is null or {c} < 500" for c in numbers)]
    ask(life, [name], where=dice.choice(conditions))


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
