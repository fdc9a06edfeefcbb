"""Transactions of every kind, and threads that write them all the time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from tests.life.world import FENCE, Id, Session, Transaction, Undo, Values, World, large

Act = Callable[[Transaction], None]
Kind = Callable[["Dice"], Act]


class Dice(random.Random):
    """Random choices of one transaction; `keys` are all that it may touch."""

    def prepare(self, world: World) -> Dice:
        self.world = world
        self.names = sorted(name for name in world.tables if name != FENCE)
        self.table = self.choice(self.names)
        if world.domains:
            self.names = [name for name in self.names if world.group(name) == world.group(self.table)]
        self.keys: set[tuple[str, Id]] = set()
        return self

    def key(self, table: str | None = None) -> tuple[str, Id]:
        """One more key, usually of the table of this transaction."""
        name = table or self.table
        found = (name, self.world.tables[name].id(self.randint(1, self.world.tables[name].keys)))
        self.keys.add(found)
        return found

    def some(self, least: int, most: int) -> list[tuple[str, Id]]:
        """Different keys of the table."""
        return list(dict.fromkeys(self.key() for _ in range(self.randint(least, most))))

    def values(self, table: str, *, new: bool) -> Values:
        """New values for some columns. A large value mostly stays as it is."""
        found: Values = {}
        for column, kind in self.world.tables[table].columns.items():
            if kind == "large":
                if self.random() < (0.7 if new else 0.15):
                    found[column] = large(self.randint(1, 60)) if self.random() < 0.9 else None
            elif kind == "reference":
                pass
            elif kind == "int":
                found[column] = self.randint(-1000, 1000)
            elif new or self.random() < 0.5:
                found[column] = f"note {self.randint(1, 999)}"
        return found


def _touch(tx: Transaction, dice: Dice, table: str, key: Id) -> None:
    """Change a row in some way, whatever it is now."""
    row = tx.row(table, key)
    if row is None:
        tx.insert(table, key, **dice.values(table, new=True))
    elif dice.random() < 0.25:
        tx.delete(table, key)
    else:
        tx.update(table, key, **dice.values(table, new=False))


def single(dice: Dice) -> Act:
    table, key = dice.key()
    return lambda tx: _touch(tx, dice, table, key)


def several(dice: Dice) -> Act:
    """Some rows of any tables, some of them more than once."""
    keys = [dice.key(dice.choice(dice.names)) for _ in range(dice.randint(2, 8))]
    keys += dice.sample(keys, dice.randint(0, len(keys)))

    def act(tx: Transaction) -> None:
        for table, key in keys:
            _touch(tx, dice, table, key)

    return act


def move(dice: Dice) -> Act:
    (table, a), (_, b) = dice.key(), dice.key()

    def act(tx: Transaction) -> None:
        if tx.row(table, a) is not None and tx.row(table, b) is None:
            tx.move(table, a, b, **(dice.values(table, new=False) if dice.random() < 0.5 else {}))
        else:
            _touch(tx, dice, table, a)

    return act


def chain(dice: Dice) -> Act:
    """Every row of a row of keys moves to the next key, the last one first; some chains then turn back."""
    keys = dice.some(3, 5)

    def act(tx: Transaction) -> None:
        table, last = keys[-1]
        if tx.row(table, last) is not None:
            tx.delete(table, last)
        for (_, a), (_, b) in reversed(list(pairwise(keys))):
            if tx.row(table, a) is not None:
                tx.move(table, a, b)
        if dice.random() < 0.3 and len(keys) > 1 and tx.row(table, keys[1][1]) is not None:
            tx.move(table, keys[1][1], keys[0][1])

    return act


def swap(dice: Dice) -> Act:
    """Two rows change places, by way of a key that nobody uses."""
    (table, a), (_, b) = dice.key(), dice.key()
    spare = dice.world.tables[table].id(dice.randint(100_000, 100_500))
    dice.keys.add((table, spare))

    def act(tx: Transaction) -> None:
        if a == b or tx.row(table, a) is None or tx.row(table, b) is None:
            _touch(tx, dice, table, a)
            return
        tx.move(table, a, spare)
        tx.move(table, b, a)
        tx.move(table, spare, b)

    return act


def replace(dice: Dice) -> Act:
    """Delete and insert again, or insert and delete again."""
    table, key = dice.key()

    def act(tx: Transaction) -> None:
        for _ in range(dice.randint(2, 4)):
            if tx.row(table, key) is None:
                tx.insert(table, key, **dice.values(table, new=True))
            else:
                tx.delete(table, key)

    return act


def savepoints(dice: Dice) -> Act:
    inner: list[Act] = [dice.choice([single, move, replace, swap])(dice) for _ in range(dice.randint(2, 5))]

    def act(tx: Transaction) -> None:
        for step in inner:
            undone = dice.random() < 0.5
            if undone:
                tx.savepoint()
            step(tx)
            if undone:
                tx.rollback_to_savepoint()

    return act


def undone(dice: Dice) -> Act:
    """A transaction that is rolled back."""
    inner = several(dice)

    def act(tx: Transaction) -> None:
        inner(tx)
        raise Undo

    return act


def many(dice: Dice) -> Act:
    """Some hundred or thousand rows: inserted if they are not there, else changed or deleted."""
    sizes = [name for name in dice.names if dice.world.tables[name].keys > 500]
    if not sizes:
        return several(dice)
    table = dice.choice(sizes)
    t = dice.world.tables[table]
    count = dice.choice([100, 300, 1000])
    first = dice.randint(1, t.keys)
    keys = [t.id(n) for n in range(first, min(first + count, t.keys + 1))]
    dice.keys |= {(table, key) for key in keys}
    deleted = dice.random() < 0.4

    def act(tx: Transaction) -> None:
        new = [key for key in keys if tx.row(table, key) is None]
        old = [key for key in keys if tx.row(table, key) is not None]
        tx.insert_many(table, {key: small(dice.values(table, new=True)) for key in new})
        for key in old[:300]:
            tx.delete(table, key) if deleted else tx.update(table, key, **small(dice.values(table, new=False)))

    def small(values: Values) -> Values:
        return {c: v for c, v in values.items() if t.columns[c] != "large"}

    return act


KINDS: dict[Kind, int] = {
    single: 40,
    several: 15,
    move: 12,
    chain: 6,
    swap: 6,
    replace: 8,
    savepoints: 6,
    undone: 3,
    many: 1,
}


def write(world: World, session: Session, dice: Dice, kind: Kind | None = None) -> bool:
    """One random transaction; whether it is committed."""
    dice.prepare(world)
    kind = kind or dice.choices(list(KINDS), list(KINDS.values()))[0]
    act = kind(dice)
    return world.write(session, dice.keys, act)


@dataclass
class Group:
    """Writers that run beside everything else until they are paused."""

    world: World
    count: int
    seed: int
    pause: float
    """The mean time between two transactions of a writer, in seconds."""

    def __post_init__(self) -> None:
        self._condition = threading.Condition()
        self._held = 0
        self._busy = 0
        self._ended = False
        self.written = 0
        self._threads = [
            threading.Thread(
                target=self._write, args=(Dice(f"{self.seed}/{n}"), n % 2 == 0), daemon=True, name=f"writer{n}"
            )
            for n in range(self.count)
        ]
        for thread in self._threads:
            thread.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nobody writes in this block."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    def hold(self, seconds: float = 150.0) -> None:
        with self._condition:
            self._held += 1
            assert self._condition.wait_for(lambda: not self._busy, seconds), "a writer does not come to an end"
            self._raise()

    def release(self) -> None:
        with self._condition:
            self._held -= 1
            self._condition.notify_all()

    def end(self) -> None:
        with self._condition:
            self._ended = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join(30)

    def _raise(self) -> None:
        if self.world.failed:
            raise AssertionError("a writer failed: the test itself is wrong") from self.world.failed[0]

    def _write(self, dice: Dice, waits: bool) -> None:
        session = Session(self.world, waits=waits)
        try:
            while True:
                with self._condition:
                    self._condition.wait_for(lambda: self._ended or not self._held)
                    if self._ended:
                        return
                    self._busy += 1
                try:
                    self.written += write(self.world, session, dice)
                finally:
                    with self._condition:
                        self._busy -= 1
                        self._condition.notify_all()
                        self._condition.wait_for(lambda: self._ended, dice.expovariate(1 / self.pause))
        except BaseException as error:
            self.world.failed.append(error)
        finally:
            session.close()
