"""Steps: definitions. Each keeps the table to itself, so that the ledger knows what came before and what after it.

Where a definition gives a table other rows, or takes some away, without a word in the log, the table is marked as
`loose`: the stream may empty it and dump it again, at a place of its choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.life.life import Life
from tests.life.world import FENCE, Id, Session, Table, Transaction
from tests.life.writers import Dice


def pick(life: Life, dice: Dice, *, partitioned: bool = False) -> Table:
    names = [n for n, t in life.world.tables.items() if n != FENCE and (partitioned or "partition" not in t.extra)]
    return life.world.tables[dice.choice(sorted(names))]


@contextmanager
def owned(life: Life, table: Table, *, loose: bool = False) -> Iterator[None]:
    """Nobody else writes to the table in this block."""
    with life.world.locks.tables({table.name}):
        life.epoch.defined.add(table.name)
        if loose:
            life.epoch.loose.add(table.name)
        yield


def rewritten(life: Life, table: Table) -> bool:
    """Whether a statement that gives a table new files has it dumped again: PostgreSQL does not say whose rows the new
    files of a partition hold."""
    return life.on_postgres and "partition" in table.extra


def change(life: Life, table: Table, dice: Dice, count: int = 6) -> None:
    """Change some rows of a table that is owned."""
    session = Session(life.world)

    def act(tx: Transaction) -> None:
        for _ in range(count):
            key = table.id(dice.randint(1, min(table.keys, 40)))
            row = tx.row(table.name, key)
            if row is None:
                tx.insert(table.name, key, **dice.values(table.name, new=True))
            elif dice.random() < 0.3:
                tx.delete(table.name, key)
            else:
                tx.update(table.name, key, **dice.values(table.name, new=False))

    life.world.write(session, set(), act)
    session.close()


def look(life: Life, dice: Dice, most: int = 3) -> None:
    """Let the stream see what there is now; or not."""
    for _ in range(dice.randint(0, most)):
        life.stream.step()
    if dice.random() < 0.2:
        life.stream.kill()


def new_name(life: Life) -> str:
    life.names += 1
    return f"x{life.names}"


def plain(table: Table) -> list[str]:
    return [c for c, kind in table.columns.items() if kind in ("int", "text")]


# -- columns -----------------------------------------------------------------------------------------------


def add_a_column(life: Life, dice: Dice) -> None:
    table, name = pick(life, dice, partitioned=True), new_name(life)
    kind, default = dice.choice([("int", 7), ("int", None), ("text", "'new'"), ("text", None)])
    with owned(life, table):
        given = "" if default is None else f" default {default}"
        life.database.execute(f"alter table {table.at} add {name} {life.world.types[kind]}{given}")
        table.columns[name] = kind
        for row in table.rows.values():
            row[name] = default.strip("'") if isinstance(default, str) else default


def drop_a_column(life: Life, dice: Dice) -> None:
    table = pick(life, dice, partitioned=True)
    columns = plain(table)
    if len(columns) < 2:
        return add_a_column(life, dice)
    name = dice.choice(columns)
    with owned(life, table):
        life.database.execute(f"alter table {table.at} drop column {name}")
        del table.columns[name]
        for row in table.rows.values():
            del row[name]
    return None


def rename_a_column(life: Life, dice: Dice) -> None:
    table, name = pick(life, dice, partitioned=True), new_name(life)
    if not plain(table):
        return
    old = dice.choice(plain(table))
    with owned(life, table):
        life.database.execute(f"alter table {table.at} rename column {old} to {name}")
        table.columns = {name if c == old else c: kind for c, kind in table.columns.items()}
        for key, row in table.rows.items():
            table.rows[key] = {name if c == old else c: v for c, v in row.items()}


def change_a_type(life: Life, dice: Dice) -> None:
    table = pick(life, dice, partitioned=True)
    if not plain(table):
        return
    column = dice.choice(plain(table))
    kind = table.columns[column]
    to = dice.choice(["bigint", "varchar(80)"]) if kind == "int" else "varchar(90)"
    if life.on_postgres:
        how = f"alter column {column} drop default, alter column {column} type {to} using {column}::{to}"
    else:
        how = f"modify {column} {to}"
    with owned(life, table, loose=rewritten(life, table)):
        life.database.execute(f"alter table {table.at} {how}")
        table.columns[column] = "int" if to == "bigint" else "text"
        for row in table.rows.values():
            row[column] = row[column] if to == "bigint" or row[column] is None else str(row[column])


def change_the_replica_identity(life: Life, dice: Dice) -> None:
    table = pick(life, dice)
    with owned(life, table):
        life.database.execute(f"alter table {table.at} replica identity {dice.choice(['full', 'default'])}")


# -- rows that come and go ---------------------------------------------------------------------------------


def truncate(life: Life, dice: Dice) -> None:
    table = pick(life, dice, partitioned=True)
    with owned(life, table, loose=rewritten(life, table)):
        session = Session(life.world)
        session.execute(f"truncate table {table.at}")
        life.world.note_emptied(table, session)
        session.close()


def drop_and_create_again(life: Life, dice: Dice) -> None:
    table = pick(life, dice)
    with owned(life, table, loose=True):
        life.database.execute(f"drop table {table.at}")
        life.world.note_emptied(table)
        try:
            look(life, dice)
        finally:
            life.world.create_table(table)
            change(life, table, dice)


def _away_and_back(life: Life, dice: Dice, table: Table, away: str, leave: str, back: str) -> None:
    with owned(life, table, loose=True):
        life.database.execute(leave)
        table.elsewhere = away
        try:
            change(life, table, dice)
            look(life, dice)
            change(life, table, dice)
        finally:
            life.database.execute(back)
            table.elsewhere = None
        change(life, table, dice)


def rename_there_and_back(life: Life, dice: Dice) -> None:
    table = pick(life, dice)
    away = dice.choice([f"spare_{table.name}", f"{table.name}_away"])
    leave, back = f"alter table {table.name} rename to {away}", f"alter table {away} rename to {table.name}"
    _away_and_back(life, dice, table, away, leave, back)


def set_schema_there_and_back(life: Life, dice: Dice) -> None:
    table, other, home = pick(life, dice), life.other, life.schema
    if life.on_postgres:
        leave = f"alter table {table.name} set schema {other}"
        back = f"alter table {other}.{table.name} set schema {home}"
    else:
        leave = f"rename table {home}.{table.name} to {other}.{table.name}"
        back = f"rename table {other}.{table.name} to {home}.{table.name}"
    _away_and_back(life, dice, table, f"{other}.{table.name}", leave, back)


def rename_another_table_in(life: Life, dice: Dice) -> None:
    table = pick(life, dice)
    _swap(life, dice, table, f"spare_{table.name}_in", f"spare_{table.name}_out")


def swap_by_the_names_of_a_tool(life: Life, dice: Dice) -> None:
    """The names of pt-online-schema-change and gh-ost, and only half of the rows."""
    table = pick(life, dice)
    new, old = dice.choice([("_{}_new", "_{}_old"), ("_{}_gho", "_{}_del")])
    _swap(life, dice, table, new.format(table.name), old.format(table.name))


def _swap(life: Life, dice: Dice, table: Table, new: str, old: str) -> None:
    """Put a table of half of the rows, each with a new version, in the place of the table."""
    with owned(life, table, loose=True):
        kept = {k: dict(row) for k, row in sorted(table.rows.items()) if dice.random() < 0.5}
        life.world.create_table(table, new)
        session = Session(life.world)

        def copy(tx: Transaction) -> None:
            table.elsewhere, table.rows = new, {}
            tx.insert_many(table.name, kept)

        life.database.execute(f"drop table if exists {old}")
        try:
            life.world.note_emptied(table)
            life.world.write(session, set(), copy)
            session.close()
            if life.on_postgres:
                both = f"alter table {table.name} rename to {old}; alter table {new} rename to {table.name}"
                life.database.execute(f"begin; {both}; commit")
            else:
                life.database.execute(f"rename table {table.name} to {old}, {new} to {table.name}")
        finally:
            table.elsewhere = None
        look(life, dice)
        change(life, table, dice)
        life.database.execute(f"drop table {old}")


def _gone(life: Life, table: Table, keys: list[Id]) -> None:
    """Rows went without a word in the log: enter them as deleted."""
    life.world.note_rows(table, "delete", dict.fromkeys(keys))


def detach_and_attach_a_partition(life: Life, dice: Dice) -> None:
    table = life.world.tables["p"]
    with owned(life, table, loose=True):
        life.database.execute("alter table p detach partition p2")
        inside = {key: row for key, row in table.rows.items() if key[0] >= 20}
        _gone(life, table, list(inside))
        try:
            look(life, dice)
            session = Session(life.world)

            def touch(tx: Transaction) -> None:
                table.elsewhere = "p2"
                for key, row in inside.items():
                    table.rows[key] = row
                    tx.update("p", key)

            life.world.write(session, set(), touch)
            session.close()
        finally:
            table.elsewhere = None
            life.database.execute("alter table p attach partition p2 for values from (20) to (maxvalue)")
        change(life, table, dice)


def truncate_a_partition(life: Life, dice: Dice) -> None:
    table = life.world.tables["p"]
    with owned(life, table, loose=True):
        life.database.execute("truncate p1" if life.on_postgres else "alter table p truncate partition p1")
        _gone(life, table, [key for key in table.rows if key[0] < 20])
        look(life, dice)
        change(life, table, dice)


# -- tables that come and go -------------------------------------------------------------------------------


def create_a_table_and_restart(life: Life, dice: Dice) -> None:
    _create(life, dice)
    life.stream.kill()
    life.stream.step()


def create_a_table(life: Life, dice: Dice) -> None:
    _create(life, dice)


def _create(life: Life, dice: Dice) -> None:
    table = Table(f"new_{new_name(life)}", {"n": "int", "note": "text"}, keys=20)
    life.world.create_table(table)
    with life.world.locks.tables({table.name}):
        life.world.tables[table.name] = table
        life.epoch.loose.add(table.name)
        life.epoch.defined.add(table.name)
        change(life, table, dice)
        look(life, dice)
        change(life, table, dice)


def drop_a_table_for_good(life: Life, dice: Dice) -> None:
    names = sorted(n for n in life.world.tables if n.startswith("new_"))
    if names:
        table = life.world.tables[dice.choice(names)]
        with owned(life, table, loose=True):
            del life.world.tables[table.name]
            life.database.execute(f"drop table {table.name}")


# -- preconditions -----------------------------------------------------------------------------------------


def _broken(life: Life, dice: Dice, table: Table, broken: str, mended: str, act: Callable[[], None]) -> None:
    """Break what capture needs of a table, change its rows, and wait for the stream to stop or to follow. The operator
    mends it when the stream has stopped, or when it has followed everything."""
    with owned(life, table, loose=True):
        life.database.execute(broken)
        life.undo.append(lambda: life.database.execute(mended) and None)
        look(life, dice)
        act()
        look(life, dice)


def take_a_table_out_of_the_publication(life: Life, dice: Dice) -> None:
    table = pick(life, dice)
    out, back = (f"alter publication life {verb} table {table.name}" for verb in ("drop", "add"))
    _broken(life, dice, table, out, back, lambda: change(life, table, dice))


def publish_only_some_columns(life: Life, dice: Dice) -> None:
    table = life.world.tables["a"]
    narrow = f"alter publication life drop table a; alter publication life add table a ({', '.join(table.names[:2])})"
    back = "alter publication life drop table a; alter publication life add table a"
    _broken(life, dice, table, narrow, back, lambda: change(life, table, dice))


def publish_only_some_rows(life: Life, dice: Dice) -> None:
    table = life.world.tables["a"]
    narrow = "alter publication life drop table a; alter publication life add table a where (id < 5)"
    back = "alter publication life drop table a; alter publication life add table a"
    _broken(life, dice, table, narrow, back, lambda: change(life, table, dice))


def inherit(life: Life, dice: Dice) -> None:
    table = life.world.tables["a"]

    def act() -> None:
        life.database.execute("insert into spare_kid (id, version) values (777777, 1)")

    _broken(life, dice, table, "create table spare_kid () inherits (a)", "drop table spare_kid", act)


def defer_a_key(life: Life, dice: Dice) -> None:
    """A deferrable key, and two rows that change places in one statement."""
    table = life.world.tables["f"]
    key = "alter table f drop constraint f_pkey, add constraint f_pkey primary key (id)"
    first, second = (1,), (2,)

    def swap() -> None:
        session = Session(life.world)

        def act(tx: Transaction) -> None:
            for key in (first, second):
                if tx.row("f", key) is None:
                    tx.insert("f", key, n=0)
            old = {key: dict(tx.row("f", key) or {}) for key in (first, second)}
            versions = [life.world.next_version() for _ in range(2)]
            tx.sql(f"update f set id = 3 - id, version = {versions[0]} + id - 1 where id in (1, 2)")
            tx.changed("f", "update", second, {**old[first], "version": versions[0]})
            tx.changed("f", "update", first, {**old[second], "version": versions[1]})

        life.world.write(session, set(), act)
        session.close()

    full = "alter table f replica identity full; "
    _broken(life, dice, table, f"{full}{key} deferrable initially immediate", f"{full}{key}", swap)


def delete_by_cascade(life: Life, dice: Dice) -> None:
    """A foreign key with ON DELETE CASCADE is added, and a parent is deleted."""
    table, column = life.world.tables["a"], new_name(life)
    parent = f"spare_parent_{column}"
    life.database.execute(f"create table {parent} (id int primary key)", f"insert into {parent} values (1), (2)")
    with owned(life, table):
        life.database.execute(f"alter table a add {column} int")
        table.columns[column] = "reference"
        for row in table.rows.values():
            row[column] = None

    def act() -> None:
        session = Session(life.world)

        def refer(tx: Transaction) -> None:
            for key in [k for k in sorted(table.rows) if dice.random() < 0.4]:
                tx.update("a", key, **{column: dice.choice([1, 2])})

        def delete(tx: Transaction) -> None:
            tx.sql(f"delete from {parent} where id = 1")
            for key in [k for k, row in table.rows.items() if row[column] == 1]:
                tx.changed("a", "delete", key, None)

        life.world.write(session, set(), refer)
        look(life, dice)
        life.world.write(session, set(), delete)
        session.close()

    key = f"foreign key ({column}) references {parent} (id) on delete cascade"
    added = f"alter table a add constraint by_{column} {key}"
    _broken(life, dice, table, added, f"alter table a drop foreign key by_{column}", act)


def version_by_the_system(life: Life, dice: Dice) -> None:
    table = life.world.tables["a"]
    added, dropped = (f"alter table a {verb} system versioning" for verb in ("add", "drop"))
    _broken(life, dice, table, added, dropped, lambda: change(life, table, dice, 15))


def change_the_engine(life: Life, dice: Dice) -> None:
    table = life.world.tables["a"]
    added, dropped = (f"alter table a engine = {engine}" for engine in ("MyISAM", "InnoDB"))
    _broken(life, dice, table, added, dropped, lambda: change(life, table, dice))
