"""Schema migration: the tables of an old MariaDB become those of a new PostgreSQL, in another structure, and are
verified while people go on writing to the old one."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from examples.scenery import Rows, Scene, differences, main

HERE = Path(__file__).parent
CLIENTS, PURCHASES = 300, 1000
FIRST, LAST = ("Ada", "Bela", "Chloe", "Dana"), ("Ek", "Fall", "Gomes", "Hoang")

OLD_TABLES = (
    """
    create table clients (
        cno int primary key, name text, password_md5 char(32), vip char(1), since int unsigned,
        street text, house int, zip mediumint, city text
    )""",
    """
    create table purchases (
        pno bigint primary key auto_increment, cno int, cents int, state tinyint, bought int unsigned, test tinyint
    )""",
)

# What the new tables should have, said in the old database's own words: not those that made them.
EXPECTED = {
    "customers": "select cno, substring_index(name, ' ', 1), substring_index(name, ' ', -1), vip = 'Y', "
    "from_unixtime(since) from clients",
    "addresses": "select cno, concat(street, ' ', house), lpad(zip, 5, '0'), city from clients",
    "orders": "select pno, cno, cents / 100, elt(state + 1, 'new', 'paid', 'sent'), from_unixtime(bought) "
    "from purchases where test = 0",
}
FOUND = {
    "customers": "select id, first_name, last_name, vip, since at time zone 'utc' from customers",
    "addresses": "select customer_id, line, postcode, city from addresses",
    "orders": "select id, customer_id, total, state, ordered_at at time zone 'utc' from orders",
}


def run(scene: Scene) -> bool:
    """Whether the new database has what the old one has."""
    old, new = scene.mariadb("legacy"), scene.postgres("migrated")
    for table in OLD_TABLES:
        old.run(table)
    old.run(
        "insert into clients values (%s, %s, md5(rand()), 'N', 1500000000 + %s, 'Oak Street', 1, 1234, 'Oslo')",
        [(n, f"{FIRST[n % 4]} {LAST[n % 3]}", n) for n in range(CLIENTS)],
    )
    old.run(
        "insert into purchases (cno, cents, state, bought, test) values (%s, %s, 0, 1600000000, %s)",
        [(n % CLIENTS, n, n % 10 == 0) for n in range(PURCHASES)],
    )
    new.run((HERE / "new.sql").read_text())

    def expected() -> Rows:
        return {(table, key): tuple(rest) for table, sql in EXPECTED.items() for key, *rest in old.select(sql)}

    def found() -> Rows:
        return {(table, key): tuple(rest) for table, sql in FOUND.items() for key, *rest in new.select(sql)}

    with (
        scene.pipeline(HERE / "migration.toml", OLD_URL=old.url, NEW_URL=new.url),
        scene.busy((old, change_clients), (old, change_purchases)) as home,
    ):
        scene.until("the rows of the beginning are there", lambda: len(found()) > PURCHASES)
        scene.go_on()
        wrong = scene.suspects("people still write; old and new are compared", expected, found)
        changes = home()
        scene.settle("nobody writes any more; the last changes arrive", expected, found)
    rows = f"{len(found())} rows in {len(FOUND)} new tables from 2 old ones"
    return scene.verdict(f"{rows}, {changes} changes meanwhile", wrong | differences(expected(), found()))


def change_clients(cursor: Any, chance: Random) -> None:
    who = chance.randrange(CLIENTS)
    match chance.randrange(6):
        case 0:
            cursor.execute("delete from clients where cno = %s", [who])
        case 1:
            row = (
                who,
                f"{chance.choice(FIRST)} {chance.choice(LAST)}",
                1_700_000_000 + who,
                chance.randint(100, 99999),
            )
            cursor.execute("replace into clients values (%s, %s, 'x', 'Y', %s, 'Elm Street', 2, %s, 'Bergen')", row)
        case 2:
            cursor.execute("update clients set vip = if(vip = 'Y', 'N', 'Y'), house = house + 1 where cno = %s", [who])
        case 3:
            cursor.execute("update clients set password_md5 = md5(rand()) where cno = %s", [who])
        case _:
            name = f"{chance.choice(FIRST)} {chance.choice(LAST)}"
            cursor.execute("update clients set name = %s where cno = %s", (name, who))


def change_purchases(cursor: Any, chance: Random) -> None:
    which = chance.randint(1, PURCHASES)
    match chance.randrange(6):
        case 0 | 1:
            row = (chance.randrange(CLIENTS), chance.randrange(100_000))
            cursor.execute("insert into purchases values (null, %s, %s, 0, unix_timestamp(), 0)", row)
        case 2:
            cursor.execute("delete from purchases where pno = %s", [which])
        case 3:
            cursor.execute("update purchases set test = not test where pno = %s", [which])
        case _:
            change = "update purchases set state = least(state + 1, 2), cents = cents + 1 where pno = %s"
            cursor.execute(change, [which])


if __name__ == "__main__":
    main(run, __doc__)
