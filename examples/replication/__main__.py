"""Heterogeneous replication: customers of a PostgreSQL and orders of a MariaDB become documents of one search index,
while both are written to."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from examples.scenery import Rows, Scene, differences, main

HERE = Path(__file__).parent
CUSTOMERS, ORDERS = 300, 1000
NAMES = ("Ada", "Bela", "Chloe", "Dana", "Emil", "Fatma", "Goran", "Hoa")
CITIES = ("Aarhus", "Bergen", "Cadiz", "Dakar")
ITEMS = ("tea", "coffee", "cocoa")


def run(scene: Scene) -> bool:
    """Whether every order was found in the end, with its customer."""
    customers, orders, index = scene.postgres("crm"), scene.mariadb("shop"), scene.postgres("search")
    customers.run("create table customers (id int primary key, name text, city text)")
    customers.run("insert into customers values (%s, %s, 'Aarhus')", [(n, NAMES[n % 8]) for n in range(CUSTOMERS)])
    orders.run("create table orders (id int primary key, customer_id int, item text, amount decimal(10, 2), card text)")
    orders.run("insert into orders values (%s, %s, 'tea', 1, '4111')", [(n, n % CUSTOMERS) for n in range(ORDERS)])
    index.run((HERE / "index.sql").read_text())

    def wanted() -> Rows:
        known = {key: rest for key, *rest in customers.select("select id, name, city from customers")}
        found = orders.select("select id, customer_id, item, amount from orders")
        return {key: (item, amount, *known.get(who, (None, None))) for key, who, item, amount in found}

    def found() -> Rows:
        fields = "body->>'item', (body->>'amount')::numeric, body->>'customer', body->>'city'"
        return {key: tuple(rest) for key, *rest in index.select(f"select id, {fields} from documents")}

    with (
        scene.pipeline(HERE / "customers.toml", CUSTOMERS_URL=customers.url, INDEX_URL=index.url),
        scene.pipeline(HERE / "orders.toml", ORDERS_URL=orders.url, INDEX_URL=index.url),
        scene.busy((customers, change_customers), (orders, change_orders)) as home,
    ):
        scene.until("the orders of the beginning are found", lambda: len(found()) > ORDERS // 2)
        scene.go_on()
        changes = home()
        scene.settle("nobody writes any more; the last changes arrive", wanted, found)
    ((hits,),) = index.select("select count(*) from documents where words @@ to_tsquery('simple', 'ada & bergen')")
    scene.board.say(f"   a search for 'ada & bergen' finds {hits} orders")
    text = f"{len(found())} documents from 2 databases, {changes} changes meanwhile"
    return scene.verdict(text, differences(wanted(), found()))


def change_customers(cursor: Any, chance: Random) -> None:
    """Somebody moves, marries, leaves or comes back. Orders do not know."""
    who = chance.randrange(CUSTOMERS)
    match chance.randrange(8):
        case 0:
            cursor.execute("delete from customers where id = %s", [who])
        case 1 | 2:
            row = (who, chance.choice(NAMES), chance.choice(CITIES))
            cursor.execute("insert into customers values (%s, %s, %s) on conflict do nothing", row)
        case 3:
            cursor.execute("update customers set name = %s where id = %s", (chance.choice(NAMES), who))
        case _:
            cursor.execute("update customers set city = %s where id = %s", (chance.choice(CITIES), who))


def change_orders(cursor: Any, chance: Random) -> None:
    """Orders come, change, go, get another customer, and sometimes another number."""
    which, who, new = chance.randrange(ORDERS), chance.randrange(CUSTOMERS), chance.randrange(ORDERS, 10**9)
    match chance.randrange(8):
        case 0 | 1:
            row = (new, who, chance.choice(ITEMS), chance.randrange(5000) / 100)
            cursor.execute("insert ignore into orders values (%s, %s, %s, %s, '4242')", row)
        case 2:
            cursor.execute("delete from orders where id = %s", [which])
        case 3:
            cursor.execute("update orders set customer_id = %s where id = %s", (who, which))
        case 4:
            cursor.execute("update ignore orders set id = %s where id = %s", (new, which))
        case _:
            cursor.execute("update orders set item = %s, amount = amount + 1 where id = %s", ("cocoa", which))


if __name__ == "__main__":
    main(run, __doc__)
