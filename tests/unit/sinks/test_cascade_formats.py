"""Cascade events in the formats of events."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa

from dblog.core.cascades import ForeignKey, cascade_schema, rules_of
from dblog.core.event import Op, change_schema
from dblog.core.schema import Column, TableName, TableSchema
from dblog.sinks.debezium import Debezium
from dblog.sinks.formats import Formatter, envelope
from dblog.work.rows import Typed

CHILD = TableSchema(
    TableName("shop", "c"),
    (
        Column("id", "int", pa.int32()),
        Column("n", "decimal(9,2)", pa.decimal128(9, 2)),
        Column("day", "date", pa.date32()),
        Column("raw", "varbinary(9)", pa.binary()),
    ),
    ("id",),
)
KEY = ForeignKey("f", CHILD.table, ("n", "day", "raw"), TableName("shop", "p"), ("a", "b", "c"), "set null", "cascade")
DAY = datetime.date(2024, 5, 6)


def cascade_events(form: Formatter) -> tuple[list[Any], list[Any]]:
    """The values and the keys of a cascade by an update, and one by a delete."""
    events = cascade_schema(rules_of(KEY, [KEY], {CHILD.table: CHILD}), CHILD.columns[1:])
    old = {"old_0": Decimal("1.50"), "old_1": DAY, "old_2": b"xy"}
    new = {"new_0": Decimal("2.00"), "new_1": DAY, "new_2": b"z"}
    meta = {"_op": int(Op.cascade), "_txid": 3}
    rows = [
        {**meta, "_lsn": 7, "_seq": 4, "deleted": False, **old, **new},
        {**meta, "_lsn": 7, "_seq": 6, "deleted": True, **old},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=change_schema(events.arrow))
    shown = Typed(CHILD, before=False, cascades=True).project(events, batch, None)
    made = form(shown, CHILD)
    return tuple([json.loads(t) for t in made.column(name).to_pylist()] for name in ("value", "key"))  # type: ignore[return-value]


def test_an_envelope_says_what_a_foreign_key_did() -> None:
    (moved, deleted), keys = cascade_events(envelope)
    assert (moved["schema"], moved["table"], moved["op"]) == ("shop", "c", "cascade")
    assert moved["key"] is moved["before"] is moved["after"] is None
    assert (moved["lsn"], moved["seq"], moved["txid"]) == (7, 4, 3)
    assert moved["cascade"] == {
        "foreign_key": "f",
        "rule": "on update cascade",
        "parent": "shop.p",
        "referenced": ["a", "b", "c"],
        "old": {"n": 1.5, "day": "2024-05-06", "raw": "eHk="},
        "new": {"n": 2.0, "day": "2024-05-06", "raw": "eg=="},
        "then": [],
    }
    assert deleted["cascade"]["rule"] == "on delete set null"
    assert deleted["cascade"]["new"] == {"n": None, "day": None, "raw": None}
    assert keys == [{"cascade": "f", "lsn": 7, "seq": 4}, {"cascade": "f", "lsn": 7, "seq": 6}]


def test_debezium_has_a_letter_and_a_member_of_its_own_for_it() -> None:
    (moved, deleted), keys = cascade_events(Debezium("shop"))
    assert [moved["op"], deleted["op"]] == ["x", "x"]
    assert (moved["before"], moved["after"]) == (None, None)
    assert moved["cascade"]["old"] == {"n": 1.5, "day": "2024-05-06", "raw": "eHk="}
    assert len({json.dumps(key) for key in keys}) == 2
