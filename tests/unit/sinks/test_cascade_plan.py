from __future__ import annotations

from typing import Any

import pyarrow as pa

from dblog.core.cascades import CASCADE, Rules
from dblog.core.schema import TableName
from dblog.sinks.sql.cascade_plan import Plan, plan
from tests.unit.core.test_cascades import C_G, P_C, T_T, key, rules, table


def events(*values: tuple[int, int, int | None]) -> pa.Table:
    """Position, old value, and the new value; None for a parent that was deleted."""
    return pa.table(
        {
            "deleted": pa.array([v[2] is None for v in values], pa.bool_()),
            "old_0": pa.array([v[1] for v in values], pa.int32()),
            "new_0": pa.array([v[2] for v in values], pa.int32()),
            "_lsn": pa.array([v[0] for v in values], pa.int64()),
            "_seq": pa.array([0] * len(values), pa.int32()),
        }
    )


def changes(*values: tuple[int, str]) -> list[pa.Table]:
    lsn, ops = [v[0] for v in values], [v[1] for v in values]
    return [pa.table({"_op": ops, "_lsn": lsn, "_seq": [0] * len(values)})]


def planned(found: Rules, given: pa.Table, **of_tables: Any) -> Plan:
    return plan([(found, given)], {TableName("shop", name): parts for name, parts in of_tables.items()})


def begins(found: Plan) -> list[int | None]:
    return [s.begin and s.begin[0] for s in found.stretches]


def test_deleted_parents_are_one_step() -> None:
    found = planned(rules(P_C), events(*((n, n, None) for n in range(10_000))), c=changes((5000, "create")))
    assert found.steps == 1
    assert begins(found) == [None]


def test_changes_of_a_table_that_goes_on_are_cut_where_a_row_may_have_been_there_before() -> None:
    given = events((10, 1, None), (20, 2, None), (30, 3, None))
    found = planned(rules(P_C, C_G), given, c=changes((5, "create"), (15, "update"), (25, "create"), (26, "create")))
    assert begins(found) == [None, 25]
    assert found.events[P_C]["_step"].to_pylist() == [0, 0, 1]


def test_a_table_that_refers_to_itself_is_not_cut_at_deletes() -> None:
    given = events(*((n, n, None) for n in range(100)))
    deletes = changes(*((n, "delete") for n in range(100)))
    assert planned(rules(T_T), given, t=deletes).steps == 1
    assert begins(planned(rules(T_T), given, t=changes((50, "create")))) == [None, 50]
    assert begins(planned(rules(T_T), given, t=changes((50, "truncate")))) == [None, 50]


def test_values_that_follow_each_other_are_steps_of_their_own() -> None:
    moving = key("c", "p", update=CASCADE)
    assert planned(rules(moving), events((1, 1, 11), (2, 2, 12), (3, 3, 13))).steps == 1
    found = planned(rules(moving), events((1, 3, 4), (2, 2, 3), (3, 1, 2), (4, 4, None)))
    assert found.events[moving]["_step"].to_pylist() == [0, 1, 2, 3]
    assert [step.deleted for stretch in found.stretches for step in stretch.steps] == [False, False, False, True]


def test_a_table_whose_keys_change_is_cut_at_every_change() -> None:
    moving = key("c", "p", columns=("id",), update=CASCADE)
    found = planned(rules(moving), events((10, 1, 2), (20, 5, 6)), c=changes((5, "update"), (15, "delete")))
    assert begins(found) == [None, 15]
    assert found.cut == {table("c")}


def test_foreign_keys_of_different_tables_do_not_wait_for_each_other() -> None:
    one, two = key("c", "p", update=CASCADE), key("g", "p", update=CASCADE)
    given = events((1, 1, 11), (2, 2, 12), (3, 3, 13))
    assert plan([(rules(one), given), (rules(two), events((1, 1, 11), (2, 2, 12)))], {}).steps == 2
