"""The checks of promised keys (`core.promised_keys`) before a stream starts, for every family."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from dblog.core.schema import TableName
from dblog.sources.problems import Problem


def promise_problems(
    table: TableName, promised: Sequence[str], columns: Collection[str], unusable: Mapping[str, str]
) -> Iterator[Problem]:
    """Why a table cannot be followed by its promised key. `unusable` says of columns why no key can have them."""
    shown = f"the promised key ({', '.join(promised)}) of {str(table)!r}"
    if unknown := [name for name in promised if name not in columns]:
        fix = f"correct key in [[table]], or the option keys: its columns are {', '.join(columns)}"
        what = f"{shown} names the columns {', '.join(unknown)}, which it does not have"
        yield Problem(what, fix, table=table, reason="promised keys name columns that do not exist")
    for name in promised:
        if name in unusable:
            what, fix = f"{shown} has the column {name!r}: {unusable[name]}", "promise a key of other columns"
            yield Problem(what, fix, table=table, reason=f"a column of the promised key: {unusable[name]}")


def unused_promise(table: TableName, promised: Sequence[str], key: Sequence[str]) -> Problem:
    """The notice that a table is followed by a key of its own."""
    what = f"the promised key ({', '.join(promised)}) of {str(table)!r} is not used: it has the key ({', '.join(key)})"
    fix = "remove key from [[table]], or the table from the option keys"
    return Problem(what, fix, fatal=False, table=table, reason="promised keys that are not used: they have keys")
