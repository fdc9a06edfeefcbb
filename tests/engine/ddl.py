"""Ways to alter a table `t` with a number `n`, in the words of each family."""

from __future__ import annotations

from tests.families import AnyDatabase, OnPostgres

DDL = {
    "add": ["add extra int default 7"],
    "drop": ["drop n"],
    "rename": ["rename column n to m"],
    "widen": ["alter n type bigint"],
    "retype": ["alter n type text using 'n' || n"],
    "swap": ["rename column n to m", "add n varchar(9) default 'new'"],
}
MYSQL_DDL = {**DDL, "widen": ["modify n bigint"], "retype": ["modify n varchar(9)"]}


def alter(database: AnyDatabase, how: str) -> None:
    spelled = DDL if isinstance(database, OnPostgres) else MYSQL_DDL
    database.execute(*(f"alter table t {step}" for step in spelled[how]))
