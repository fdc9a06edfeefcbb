from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dblog.core.cascades import (
    CASCADE,
    SET_NULL,
    ForeignKey,
    Rules,
    ambiguous,
    cascade_schema,
    child_of,
    from_text,
    reach,
    rules_of,
    stale,
    to_text,
)
from dblog.core.schema import Column, TableName, TableSchema


def table(name: str) -> TableName:
    return TableName("shop", name)


def schema(name: str, *columns: str, key: str = "id") -> TableSchema:
    return TableSchema(table(name), tuple(Column(c, "int", pa.int32()) for c in ("id", *columns)), (key,))


def key(child: str, parent: str, *, columns: tuple[str, ...] = ("up",), delete: str = CASCADE, update: str = "",
        referenced: tuple[str, ...] = ("id",)) -> ForeignKey:  # fmt: skip
    return ForeignKey(f"{child}_{parent}", table(child), columns, table(parent), referenced, delete, update)


P_C, C_G, T_T, C_S = key("c", "p"), key("g", "c"), key("t", "t"), key("s", "c", delete=SET_NULL)
SCHEMAS = {table(n): schema(n, "up") for n in "pcgts"}


def rules(first: ForeignKey, *others: ForeignKey) -> Rules:
    return rules_of(first, (first, *others), SCHEMAS)


def test_rules_have_everything_that_an_event_can_set_off() -> None:
    found = rules(P_C, C_G, T_T, C_S)
    assert found.others == (C_G, C_S)
    assert found.tables == {table("c"), table("g"), table("s")}
    assert found.through == {table("c")}
    assert found.needed() == {table("c"): {"up", "id"}, table("g"): {"up"}, table("s"): {"up"}}
    assert rules(T_T).through == {table("t")}
    assert rules(T_T).below(table("t")) == {table("t")}


def test_the_table_of_events_has_the_rules_and_the_child_in_its_name() -> None:
    found = cascade_schema(rules(P_C, C_G), SCHEMAS[table("p")].columns[:1])
    assert from_text(found.cascade) == rules(P_C, C_G)
    assert to_text(from_text(found.cascade)) == found.cascade
    assert child_of(found.table) == table("c")
    assert child_of(table("c")) is None
    assert found.names == ("deleted", "old_0", "new_0")
    assert found.table != cascade_schema(rules(P_C), SCHEMAS[table("p")].columns[:1]).table


def test_what_an_event_reaches() -> None:
    gone = reach(rules(P_C, C_G, C_S), deleted=True)
    assert (gone.removed, gone.moved) == ({table("c"), table("g")}, set())
    moving = key("c", "p", columns=("id",), update=CASCADE)
    found = reach(rules(moving, key("g", "c", update=CASCADE)), deleted=False)
    assert (found.removed, found.moved, found.rekeyed) == (set(), {table("c")}, {table("c")})
    assert reach(rules(P_C), deleted=False).moved == set()


def events(*values: tuple[int, int, int | None]) -> Any:
    columns = {"_lsn": [v[0] for v in values], "_seq": [0] * len(values)}
    columns |= {"old_0": [v[1] for v in values], "new_0": [v[2] for v in values]}
    return [(1, pa.RecordBatch.from_pydict(columns))]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([(1, 3, None), (2, 4, None), (3, 3, None)], False),
        ([(1, 3, 4), (2, 4, 5)], False),
        ([(1, 3, 4), (2, 4, 3)], True),
        ([(1, 3, 4), (2, 2, 3)], True),
        ([(1, 3, None), (2, 2, 3)], True),
        ([(1, 2, 3), (2, 3, None)], False),
    ],
)
def test_rows_cannot_be_told_apart_if_an_old_value_comes_back(values: Any, expected: bool) -> None:
    assert ambiguous(events(*values)) is expected


def test_the_tables_below_a_table_that_is_being_dumped_are_stale() -> None:
    assert stale([rules(P_C, C_G)], {table("c")}) == {table("g")}
    assert stale([rules(P_C, C_G)], {table("p"), table("g")}) == set()
    assert stale([rules(T_T)], {table("t")}) == {table("t")}
