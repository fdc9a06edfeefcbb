"""Random changes to every table of a zoo: rows that come, change, move to another key and go, and truncates."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.zoo.tables import Table

Run = Callable[[str], bool]
"""Runs a statement, which commits; whether the server took it. It may refuse rows that break a constraint."""


class Writer:
    """Changes tables in a dialect of SQL."""

    def __init__(self, run: Run, quote: Callable[..., str], *, limited: bool, seed: int) -> None:
        self._run = run
        self._quote = quote
        self._limited = limited
        """Whether an UPDATE may have ORDER BY and LIMIT, as MySQL's may."""
        self._chance = random.Random(seed)

    def fill(self, tables: Sequence[Table]) -> None:
        """Write the first rows: every value of every column occurs."""
        for table in tables:
            longest = max(map(len, table.values.values()), default=0)
            keys = self._keys(table)
            for number in range(min(len(keys), max(table.rows, longest))):
                row = {c: pool[number % len(pool)] for c, pool in table.values.items()}
                row |= dict(zip(table.key, keys[number], strict=True))
                self._insert(table, row)

    def _keys(self, table: Table) -> list[tuple[str, ...]]:
        keys: list[tuple[str, ...]] = [()]
        for name in table.key:
            keys = [(*key, value) for key in keys for value in table.values[name]]
        self._chance.shuffle(keys)
        return keys

    def touch(self, tables: Sequence[Table]) -> None:
        """Change every row, and none of its values but the counter."""
        for table in tables:
            if table.counter is not None:
                counter = self._quote(table.counter)
                assert self._run(f"update {self._name(table)} set {counter} = coalesce({counter}, 0) + 1"), table.name

    def change(self, tables: Sequence[Table], each: int) -> None:
        """Make about so many random changes to each table, in random order."""
        turns = [table for table in tables for _ in range(each)]
        self._chance.shuffle(turns)
        for table in turns:
            kind = self._chance.choices(("insert", "update", "move", "delete", "truncate"), (8, 8, 4, 3, 0.4))[0]
            getattr(self, f"_{kind}")(table)

    def _insert(self, table: Table, row: dict[str, str] | None = None) -> None:
        row = row or {c: self._chance.choice(pool) for c, pool in table.values.items()}
        names = ", ".join(map(self._quote, row))
        self._run(f"insert into {self._name(table)} ({names}) values ({', '.join(row.values())})")

    def _update(self, table: Table) -> None:
        columns = [c for c in table.values if c not in table.key]
        if columns:
            chosen = self._chance.sample(columns, self._chance.randint(1, len(columns)))
            self._set(table, chosen)

    def _move(self, table: Table) -> None:
        self._set(table, self._chance.sample(table.key, self._chance.randint(1, len(table.key))))

    def _set(self, table: Table, columns: Sequence[str]) -> None:
        changes = ", ".join(f"{self._quote(c)} = {self._chance.choice(table.values[c])}" for c in columns)
        self._run(f"update {self._name(table)} set {changes} {self._some(table)}")

    def _delete(self, table: Table) -> None:
        self._run(f"delete from {self._name(table)} {self._some(table)}")

    def _truncate(self, table: Table) -> None:
        if table.truncate:
            self._run(f"truncate table {self._name(table)}" + ("" if self._limited else " cascade"))

    def _some(self, table: Table) -> str:
        """Which row: one that the seed decides."""
        key = [self._quote(name) for name in table.key]
        if self._limited:
            text = ", ".join(f"hex({name})" for name in key)
            return f"order by md5(concat({text}, {self._chance.randrange(1000)})) limit 1"
        text = " || ".join(f"format('%s', {name})" for name in key)
        order = f"order by md5({text} || {self._chance.randrange(1000)}::text) limit 1"
        return f"where ({', '.join(key)}) in (select {', '.join(key)} from {self._name(table)} {order})"

    def _name(self, table: Table) -> str:
        return self._quote(table.schema, table.name)
