"""A database activity log: a shop's changes, counted by table, operation and second. Half way through, a new version of
the shop goes live that has forgotten how to order, and the counts show it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from examples.activity.activity import start
from examples.scenery import Database, Rows, Scene, differences, main

TOTALS = "select name, op, sum(n) from activity group by 1, 2"
BY_SECOND = """
    select time(second),
        coalesce(sum(n) filter (where name = 'customers' and op = 'update'), 0),
        coalesce(sum(n) filter (where name = 'orders' and op = 'create'), 0),
        coalesce(sum(n) filter (where name = 'orders' and op = 'update'), 0),
        coalesce(sum(n) filter (where name = 'orders' and op = 'delete'), 0)
    from activity group by second order by second
"""


class Shop:
    """Changes its tables, and knows what it has done."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.done: Counter[tuple[str, str]] = Counter()
        self.broken = False
        database.run("create table customers (id int primary key, visits int not null default 0)")
        database.run("create table orders (id serial primary key, paid boolean not null default false)")
        database.run("insert into customers select generate_series(1, 100)")

    def act(self, cursor: Any, chance: Random) -> None:
        cursor.execute("update customers set visits = visits + 1 where id = %s", [chance.randint(1, 100)])
        self.done["customers", "update"] += cursor.rowcount
        if not self.broken:
            cursor.execute("insert into orders select from generate_series(1, %s)", [chance.randint(1, 3)])
            self.done["orders", "create"] += cursor.rowcount
        cursor.execute("update orders set paid = true where id in (select id from orders where not paid limit 1)")
        self.done["orders", "update"] += cursor.rowcount
        if chance.random() < 0.1:
            cursor.execute("delete from orders where id in (select id from orders where paid limit 5)")
            self.done["orders", "delete"] += cursor.rowcount


def run(scene: Scene) -> bool:
    """Whether every change was counted, and none twice."""
    shop = Shop(scene.postgres("activity"))
    file = scene.folder / "activity.db"

    def done() -> Rows:
        return {kind: (number,) for kind, number in shop.done.items() if number}

    def counted() -> Rows:
        return {(table, op): (number,) for table, op, number in read(file, TOTALS)}

    query = start(scene.spark, shop.database.url, scene.folder / "activity", file)
    with scene.query(query):
        scene.until("the log is followed", lambda: query.lastProgress)
        with scene.busy((shop.database, shop.act)) as home:
            scene.go_on()
            scene.board.say("   a new version of the shop goes live")
            shop.broken = True
            scene.go_on()
            home()
        scene.settle("the shop is closed; the last changes are counted", done, counted)
    for title in (("", "customers", *["orders"] * 3), ("second", "update", "create", "update", "delete")):
        scene.board.say("".join(f"{word:>10}" for word in title), "dim")
    for second, *numbers in read(file, BY_SECOND):
        scene.board.say("".join(f"{cell:>10}" for cell in (second, *numbers)))
    return scene.verdict(f"{sum(shop.done.values())} changes counted", differences(done(), counted()))


def read(file: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as activity:
        return activity.execute(sql).fetchall()


if __name__ == "__main__":
    main(run, __doc__)
