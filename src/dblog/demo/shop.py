"""The shop: three tables, and shoppers who change them all the time.

Every shopper is a thread with its own connection. Together they do everything that can conflict with a running dump:
new rows, updates of a few hot rows and of any row, deletes, a delete and an insert of the same key in one transaction,
and rows that move to another key. One transaction often changes all three tables. An order and its items come and go
in one transaction: in every state of the database, each order has items, and each item has its order.

The SQL here is valid in every family, except for the parts in `database.Words`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from dblog.demo.database import Database, transaction

SHOPPERS = 3
ACTS_PER_SECOND = 60
"""Transactions per second of each shopper: enough to change rows while they are dumped, without using all of the
processor."""

HOT = 50
"""The number of hot rows of each table. They get a third of all changes."""

SCHEMA = (
    """
create table customers (
    id       bigint primary key,
    name     text not null,
    balance  numeric(12, 2) not null default 0,
    vip      boolean not null default false,
    tags     {tags},
    joined   date not null default (current_date),
    seen_at  {moment} not null default current_timestamp(6)
)""",
    """
create table orders (
    id           bigint primary key,
    customer_id  bigint not null,
    status       varchar(10) not null default 'new',
    total        numeric(12, 2) not null default 0,
    note         text,
    placed_at    {moment} not null default current_timestamp(6)
)""",
    """
create table order_items (
    order_id  bigint not null,
    line      smallint not null,
    sku       text not null,
    quantity  integer not null,
    price     numeric(10, 2) not null,
    primary key (order_id, line)
)""",
)
SEED = (
    """
insert into customers (id, name, balance, vip, tags)
    with recursive n (g) as (select 1 union all select g + 1 from n where g < %(customers)s)
    select g, concat('customer ', g), g %% 500, g %% 10 = 0, case when g %% 3 = 0 then {some_tags} end from n""",
    """
insert into orders (id, customer_id, status, total, note)
    with recursive n (g) as (select 1 union all select g + 1 from n where g < %(orders)s)
    select g, 1 + g %% %(customers)s, 'paid', g %% 900 + 0.95, case when g %% 4 = 0 then 'ring twice' end from n""",
    """
insert into order_items (order_id, line, sku, quantity, price)
    with recursive n (g) as (select 1 union all select g + 1 from n where g < %(items)s)
    select 1 + (g - 1) %% %(orders)s, 1 + floor((g - 1) / %(orders)s), concat('sku-', g %% 1000), 1 + g %% 5,
        g %% 90 + 0.49 from n""",
)


@dataclass(frozen=True)
class ShopTable:
    """A table of the shop."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    seeded: int
    """How many rows it has before the shop opens."""


@dataclass(frozen=True)
class Stock:
    """The rows of the source at a moment at which nobody changed them."""

    complete: int
    """A position after which the tables of the result are complete."""
    position: int
    """A position after the last change of these rows and before the next one."""
    rows: Mapping[str, list[tuple[Any, ...]]]
    """By table."""


class Shop:
    """A shop in a database. `open` starts the shoppers; `close` stops them and waits until all have ended."""

    def __init__(self, database: Database, rows: int) -> None:
        self._database = database
        customers, orders = max(rows // 6, 1), max(rows // 3, 1)
        self._sizes = {"customers": customers, "orders": orders, "items": max(rows - customers - orders, 1)}
        self.tables = (
            ShopTable("customers", ("id",), ("id", "name", "balance", "vip", "tags", "joined", "seen_at"), customers),
            ShopTable("orders", ("id",), ("id", "customer_id", "status", "total", "note", "placed_at"), orders),
            ShopTable(
                "order_items",
                ("order_id", "line"),
                ("order_id", "line", "sku", "quantity", "price"),
                self._sizes["items"],
            ),
        )
        self._numbers = count(orders + 1)
        self._last_customers = count(customers + 1)
        self._opened = count()
        self._closing = threading.Event()
        self._shoppers: list[threading.Thread] = []
        self._failure: BaseException | None = None

    def build(self) -> None:
        """Create the tables and fill them."""
        words = asdict(self._database.words)
        with closing(self._database.connect()) as connection, connection.cursor() as cursor:
            for sql in (*SCHEMA, *SEED):
                cursor.execute(sql.format(**words), self._sizes)

    def open(self) -> None:
        """Start the shoppers. A shop that was closed can be opened again."""
        self._closing.clear()
        day = next(self._opened)
        for number in range(SHOPPERS):
            luck = day * SHOPPERS + number
            shopper = threading.Thread(target=self._shop, args=(luck,), name=f"shopper {number}", daemon=True)
            self._shoppers.append(shopper)
            shopper.start()

    def close(self) -> None:
        """Stop the shoppers. No change follows."""
        self._closing.set()
        for shopper in self._shoppers:
            shopper.join()
        self._shoppers.clear()

    def raise_failure(self) -> None:
        """Raise the first error of a shopper, if there is one."""
        if self._failure is not None:
            raise self._failure

    def last_change(self) -> int:
        """Change one row of every table in a last transaction, and return a log position before its commit.

        A stream that has delivered something after that position has delivered everything.
        """
        order, customer = next(self._numbers), next(self._last_customers)
        with closing(self._database.connect()) as connection, transaction(connection) as cursor:
            cursor.execute("insert into orders (id, customer_id, status) values (%s, %s, 'last')", (order, customer))
            cursor.execute("insert into order_items values (%s, 1, 'the last one', 1, 0)", (order,))
            cursor.execute("insert into customers (id, name) values (%s, 'last of the day')", (customer,))
            return self._database.latest()

    def rows(self, table: ShopTable) -> list[tuple[Any, ...]]:
        """The present rows of the table."""
        with closing(self._database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"select {', '.join(table.columns)} from {table.name}")
            return list(cursor.fetchall())

    def _shop(self, luck: int) -> None:
        chance = random.Random(luck)
        acts = [act for act, weight in ACTS for _ in range(weight)]
        try:
            with closing(self._database.connect()) as connection:
                pick = Pick(chance, self._sizes["customers"], self._sizes["orders"], self._numbers)
                due = time.monotonic()
                while not self._closing.is_set():
                    with transaction(connection) as cursor:
                        chance.choice(acts)(cursor, pick)
                    # a delayed shopper does not catch up
                    due = max(due + 1 / ACTS_PER_SECOND, time.monotonic() - 1)
                    self._closing.wait(max(0.0, due - time.monotonic()))
        except Exception as failure:
            self._failure = failure


# -- what shoppers do. Locks are always taken in the order orders, items, customers, so that shoppers cannot deadlock.
# --


class Pick:
    """Chooses a row: sometimes a hot row, otherwise any row."""

    def __init__(self, chance: random.Random, customers: int, orders: int, numbers: Iterator[int]) -> None:
        self.chance = chance
        self._customers = customers
        self.newest = orders
        self._numbers = numbers

    def number(self) -> int:
        """A new order number."""
        return next(self._numbers)

    def customer(self) -> int:
        return self._one_of(self._customers)

    def order(self) -> int:
        return self._one_of(self.newest)

    def _one_of(self, count: int) -> int:
        if self.chance.random() < 1 / 3:
            return 1 + self.chance.randrange(HOT) * count // HOT
        return self.chance.randint(1, count)


def _order(cursor: Any, pick: Pick) -> None:
    pick.newest = pick.number()
    cursor.execute("insert into orders (id, customer_id) values (%s, %s)", (pick.newest, pick.customer()))
    for line in range(1, pick.chance.randint(2, 5)):
        item = (pick.newest, line, f"sku-{pick.chance.randrange(1000)}", pick.chance.randint(1, 9), line * 3.25)
        cursor.execute("insert into order_items values (%s, %s, %s, %s, %s)", item)
    cursor.execute(
        "update orders set total = (select sum(quantity * price) from order_items where order_id = id) where id = %s",
        (pick.newest,),
    )
    cursor.execute("update customers set seen_at = current_timestamp(6) where id = %s", (pick.customer(),))


def _pay(cursor: Any, pick: Pick) -> None:
    cursor.execute("update orders set status = 'paid', total = total + 1, note = null where id = %s", (pick.order(),))
    cursor.execute("update customers set balance = balance - 1, vip = not vip where id = %s", (pick.customer(),))


def _recount(cursor: Any, pick: Pick) -> None:
    cursor.execute("update order_items set quantity = quantity + 1 where order_id = %s and line = 1", (pick.order(),))


def _cancel(cursor: Any, pick: Pick) -> None:
    order = pick.order()
    cursor.execute("delete from orders where id = %s", (order,))
    if cursor.rowcount:  # else another shopper may be about to commit it
        cursor.execute("delete from order_items where order_id = %s", (order,))


def _leave(cursor: Any, pick: Pick) -> None:
    cursor.execute("delete from customers where id = %s", (pick.customer(),))


def _come_back(cursor: Any, pick: Pick) -> None:
    """Delete a row and insert it again under the same key."""
    cursor.execute("select id, name from customers where id = %s for update", (pick.customer(),))
    for row in cursor.fetchall():
        cursor.execute("delete from customers where id = %s", row[:1])
        cursor.execute("insert into customers (id, name) values (%s, %s)", row)


def _renumber(cursor: Any, pick: Pick) -> None:
    """Move an order and its items to another key."""
    numbers = (pick.number(), pick.order())
    cursor.execute("update orders set id = %s where id = %s", numbers)
    if cursor.rowcount:
        cursor.execute("update order_items set order_id = %s where order_id = %s", numbers)


ACTS: tuple[tuple[Callable[[Any, Pick], None], int], ...] = (
    (_pay, 10),
    (_recount, 5),
    (_order, 4),
    (_come_back, 2),
    (_cancel, 1),
    (_leave, 1),
    (_renumber, 1),
)
