"""What is done to rows and tables, each to a table of its own: a target has to follow all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.families import AnyDatabase


@dataclass(frozen=True)
class Case:
    """A table, how it is made, and what is done to it: transactions, after each of which the target follows."""

    table: str
    create: Sequence[str]
    done: Sequence[Sequence[str]]
    key: tuple[str, ...] = ("id",)


def twenty(database: AnyDatabase, table: str) -> list[str]:
    """The statements that make a table of the keys 1 to 20."""
    return [
        f"create table {table} (id int primary key, n int, note varchar(100))",
        f"insert into {table} select i, 0, concat('row ', i) from {database.series(1, 20)}",
    ]


def cases(database: AnyDatabase) -> list[Case]:
    return [
        Case(
            "brief",
            twenty(database, "brief"),
            [
                [
                    "insert into brief values (30, 1, 'a'), (31, 1, 'b')",
                    "update brief set n = 2 where id = 30",
                    "delete from brief where id = 31",
                    "delete from brief where id = 5",
                    "insert into brief values (5, 9, null)",
                    "update brief set n = 10 where id = 5",
                    "delete from brief where id = 6",
                    "insert into brief values (6, 9, 'again')",
                    "delete from brief where id = 6",
                ]
            ],
        ),
        Case(
            "moved",
            twenty(database, "moved"),
            [
                ["update moved set id = id + 100 where id <= 5"],
                [
                    "update moved set id = -1 where id = 7",
                    "update moved set id = 7, n = 70 where id = 8",
                    "update moved set id = 8, n = 80 where id = -1",
                    "delete from moved where id = 9",
                    "update moved set id = 9 where id = 10",
                ],
            ],
        ),
        Case(
            "emptied",
            twenty(database, "emptied"),
            [
                ["truncate emptied"],
                ["insert into emptied values (1, 1, 'after')"],
                [
                    "update emptied set n = 2",
                    "insert into emptied values (2, 2, 'lost')",
                    "truncate emptied",
                    "insert into emptied values (2, 3, 'kept'), (3, 3, 'kept')",
                    "update emptied set n = 4 where id = 3",
                ],
            ],
        ),
        Case(
            "large",  # PostgreSQL does not write a large value that an update does not touch
            [
                "create table large (id int primary key, n int, big text)",
                "alter table large alter big set storage external",
                f"insert into large select i, 0, concat({database.large}, i) from {database.series(1, 6)}",
            ],
            [
                ["update large set n = 1 where id <= 3"],
                [
                    "update large set n = 2 where id = 1",
                    "update large set n = 3 where id = 1",
                    "update large set big = null where id = 2",
                    "update large set n = 3 where id = 2",
                    f"update large set big = concat({database.large}, 'new') where id = 3",
                    "update large set n = 3 where id = 3",
                    f"insert into large values (7, 0, {database.large})",
                    "update large set n = 3 where id = 7",
                    "delete from large where id = 4",
                    f"insert into large values (4, 0, {database.large})",
                    "update large set n = 3 where id = 4",
                ],
                ["update large set id = 60 where id = 6"],
            ],
        ),
        Case(
            "narrowed",
            twenty(database, "narrowed"),
            [
                [
                    "update narrowed set note = 'last', n = 1 where id = 1",
                    "insert into narrowed values (30, 3, 'short life')",
                    "alter table narrowed drop column note",
                    "update narrowed set n = 2 where id in (1, 2, 30)",
                    "insert into narrowed values (31, 3)",
                ],
                ["update narrowed set n = 4", "delete from narrowed where id = 5"],
            ],
        ),
        Case(
            "grown",
            twenty(database, "grown"),
            [
                [
                    "update grown set n = 7 where id = 2",
                    "alter table grown alter n type bigint",
                    "update grown set n = 5000000000 where id = 1",
                ],
                ["update grown set n = n + 1"],
            ],
        ),
    ]


ODD = Case(
    "Order",
    [
        'create table "Order" ("from" int primary key, "two words" text, "a.b" text, "Größe" int, "q""`q" int)',
        """insert into "Order" values (1, 'a', 'b', 1, 2)""",
    ],
    [["""insert into "Order" values (2, null, 'c', 3, 4)""", """update "Order" set "a.b" = 'd'"""]],
    key=("from",),
)
"""Only where a target can have columns with dots and spaces in their names."""
