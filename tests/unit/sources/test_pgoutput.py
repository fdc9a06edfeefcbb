"""The log decoder on hand-made messages: golden bytes, golden rows, and any cut into feeds."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog.core.event import Op, change_schema
from dblog.core.schema import TableName, TableSchema
from dblog.errors import DecodeError
from dblog.sources.base import Run
from dblog.sources.postgres import tuples
from dblog.sources.postgres.catalog import Unidentified
from dblog.sources.postgres.codecs import pg_column
from dblog.sources.postgres.column_types import PgColumn, PgType, TypeOptions
from dblog.sources.postgres.pgoutput import Decoder, Relation, RelationColumn

WATERMARK = TableName("dblog", "watermark")
INT4, TEXT, NUMERIC = 23, 25, 1700

U = object()
"""A value that the log leaves out: unchanged TOAST."""


def cstring(text: str) -> bytes:
    return text.encode() + b"\0"


def begin(lsn: int, xid: int, micros: int = 0) -> bytes:
    return b"B" + struct.pack(">qqI", lsn, micros, xid)


def commit(lsn: int, end: int, micros: int = 0) -> bytes:
    return b"C\0" + struct.pack(">qqq", lsn, end, micros)


def relation(
    oid: int, name: str, *columns: tuple[str, int, bool], schema: str = "public", identity: str = "d"
) -> bytes:
    parts = [bytes([key]) + cstring(column) + struct.pack(">Ii", kind, -1) for column, kind, key in columns]
    head = b"R" + struct.pack(">I", oid) + cstring(schema) + cstring(name) + identity.encode()
    return head + struct.pack(">H", len(columns)) + b"".join(parts)


def values(*row: Any) -> bytes:
    def one(value: Any) -> bytes:
        if value is None:
            return b"n"
        if value is U:
            return b"u"
        text = str(value).encode()
        return b"t" + struct.pack(">I", len(text)) + text

    return struct.pack(">H", len(row)) + b"".join(map(one, row))


def insert(oid: int, *row: Any) -> bytes:
    return b"I" + struct.pack(">I", oid) + b"N" + values(*row)


def update(oid: int, *row: Any, key: Sequence[Any] | None = None, old: Sequence[Any] | None = None) -> bytes:
    before = b"K" + values(*key) if key else b"O" + values(*old) if old else b""
    return b"U" + struct.pack(">I", oid) + before + b"N" + values(*row)


def delete(oid: int, *row: Any, mark: bytes = b"K") -> bytes:
    return b"D" + struct.pack(">I", oid) + mark + values(*row)


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack(">IB", len(oids), 0) + b"".join(struct.pack(">I", oid) for oid in oids)


ORDERS = relation(1, "orders", ("id", INT4, True), ("item", TEXT, False), ("note", TEXT, False))
ITEMS = relation(2, "items", ("a", INT4, True), ("b", TEXT, True))
IGNORED = relation(3, "ignored", ("id", INT4, True))
MARKS = relation(9, "watermark", ("id", INT4, True), ("token", TEXT, False), schema="dblog")


def resolve(found: Relation) -> TableSchema | None:
    if found.name == "ignored":
        return None
    columns = tuple(pg_column(c.name, c.oid, str(c.oid), PgType(c.oid), TypeOptions()) for c in found.columns)
    key = tuple(c.name for c in found.columns if c.key)
    return TableSchema(TableName(found.schema, found.name), columns, key)


def decoder(*, before: bool = False) -> Decoder:
    return Decoder(resolve, watermark=WATERMARK, before=before)


def transaction(lsn: int, *changes: bytes, xid: int = 7) -> list[bytes]:
    return [begin(lsn, xid), *changes, commit(lsn, lsn + 5)]


def rows(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Every row with its table, in commit order."""
    found = []
    for run in runs:
        for schema, batch in run.changes:
            assert batch.schema == change_schema(schema.arrow, before="_before" in batch.schema.names)
            batch.validate(full=True)
            found += [{"table": schema.table.name, **row} for row in batch.to_pylist()]
    yield from sorted(found, key=lambda row: (row["_lsn"], row["_seq"]))


def only(messages: Sequence[bytes], *names: str, before: bool = False) -> list[tuple[Any, ...]]:
    """These fields of every row that the messages, as one transaction, become."""
    made = decoder(before=before).feed(transaction(100, ORDERS, ITEMS, IGNORED, MARKS, *messages))
    return [tuple(row.get(name) for name in names) for row in rows(made)]


def test_a_relation_message_is_read() -> None:
    assert Relation.parse(relation(5, "ö", ("id", INT4, True), ("v", TEXT, False), identity="f")) == Relation(
        5, "public", "ö", "f", (RelationColumn("id", INT4, -1, True), RelationColumn("v", TEXT, -1, False))
    )
    assert Relation.parse(relation(5, "t", schema="")).schema == "pg_catalog"


def test_an_insert_an_update_and_a_delete_are_rows_with_their_transaction() -> None:
    made = decoder().feed(
        [
            begin(100, 7, micros=1_000_000),
            ORDERS,
            insert(1, 1, "pen", None),
            update(1, 1, "ink", "é"),
            delete(1, 1, None, None),
            commit(100, 140),
        ]
    )
    (run,) = made
    assert (run.position, run.token, run.commits.xids.tolist()) == (140, None, [7])
    ((schema, batch),) = run.changes
    assert schema.table == TableName("public", "orders")
    time = datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC)
    meta = {"_lsn": 100, "_txid": 7, "_committed_at": time, "_unchanged": None}
    assert batch.to_pylist() == [
        {"_op": Op.create, **meta, "_seq": 0, "id": 1, "item": "pen", "note": None},
        {"_op": Op.update, **meta, "_seq": 2, "id": 1, "item": "ink", "note": "é"},
        {"_op": Op.delete, **meta, "_seq": 4, "id": 1, "item": None, "note": None},
    ]


def test_golden_bytes() -> None:
    """The protocol's layout, written out once without the builder."""
    messages = [
        bytes.fromhex("42 0000000000000064 00000000000f4240 00000007"),
        bytes.fromhex("52 00000001 7075626c696300 7400 64 0002 01 696400 00000017 ffffffff 00 7600 00000019 ffffffff"),
        bytes.fromhex("49 00000001 4e 0002 74 00000002 2d35 74 00000003 666f6f"),
        bytes.fromhex("55 00000001 4b 0002 74 00000002 2d35 6e 4e 0002 74 00000001 36 75"),
        bytes.fromhex("54 00000001 00 00000001"),
        bytes.fromhex("43 00 0000000000000064 0000000000000065 00000000000f4240"),
    ]
    found = [(r["_op"], r["_seq"], r["id"], r["v"], r["_unchanged"]) for r in rows(decoder().feed(messages))]
    assert found == [
        (Op.create, 0, -5, "foo", None),
        (Op.delete, 2, -5, None, None),
        (Op.create, 3, 6, None, ["v"]),
        (Op.truncate, 4, None, None, None),
    ]


def test_the_old_key_of_an_update_becomes_a_delete_before_the_create() -> None:
    messages = [insert(1, 1, "a", "b"), update(1, 2, "a", "c", key=(1, None, None)), insert(1, 3, "x", "y")]
    assert only(messages, "_op", "_seq", "id", "item", "note") == [
        (Op.create, 0, 1, "a", "b"),
        (Op.delete, 2, 1, None, None),
        (Op.create, 3, 2, "a", "c"),
        (Op.create, 4, 3, "x", "y"),
    ]


def test_an_old_row_with_another_key_becomes_a_delete_before_the_create() -> None:
    messages = [
        update(1, 1, "new", "n", old=(1, "old", "o")),
        update(1, 2, "new", "n", old=(1, "old", "o")),
        update(1, 12, "new", "n", old=(1, "old", "o")),
    ]
    assert only(messages, "_op", "_seq", "id", "item") == [
        (Op.update, 0, 1, "new"),
        (Op.delete, 2, 1, "old"),
        (Op.create, 3, 2, "new"),
        (Op.delete, 4, 1, "old"),
        (Op.create, 5, 12, "new"),
    ]


def test_a_change_of_any_part_of_a_composite_key_is_a_change_of_the_key() -> None:
    messages = [
        update(2, 1, "y", old=(1, "x")),
        update(2, 1, "x", old=(1, "x")),
        update(2, 1, "Xx", key=(1, "xX")),
    ]
    assert only(messages, "_op", "a", "b") == [
        (Op.delete, 1, "x"),
        (Op.create, 1, "y"),
        (Op.update, 1, "x"),
        (Op.delete, 1, "xX"),
        (Op.create, 1, "Xx"),
    ]


def test_an_old_key_that_is_the_new_key_is_a_plain_update() -> None:
    assert only([update(1, 1, "a", "b", key=(1, None, None))], "_op", "id") == [(Op.update, 1)]


def test_an_untouched_value_is_taken_from_the_old_row_or_named() -> None:
    messages = [
        update(1, 1, U, "n", old=(1, "kept", "o")),
        update(1, 1, U, U, old=(1, "kept", None)),
        update(1, 1, U, U),
        update(1, 1, "a", U),
        update(1, 2, U, "n", key=(1, None, None)),
        update(1, U, "a", U, key=(5, None, None)),
        insert(1, 9, None, None),
    ]
    assert only(messages, "_op", "id", "item", "note", "_unchanged") == [
        (Op.update, 1, "kept", "n", None),
        (Op.update, 1, "kept", None, None),
        (Op.update, 1, None, None, ["item", "note"]),
        (Op.update, 1, "a", None, ["note"]),
        (Op.delete, 1, None, None, None),
        (Op.create, 2, None, "n", ["item"]),
        (Op.update, 5, "a", None, ["note"]),
        (Op.create, 9, None, None, None),
    ]


def test_a_delete_with_the_old_row_carries_every_column() -> None:
    messages = [delete(1, 1, "a", None, mark=b"O"), delete(1, 2, None, None)]
    assert only(messages, "_op", "id", "item") == [(Op.delete, 1, "a"), (Op.delete, 2, None)]


def test_the_old_row_is_given_when_asked_for() -> None:
    messages = [
        insert(1, 1, "a", "b"),
        update(1, 1, "c", "d"),
        update(1, 1, "e", U, old=(1, "c", "d")),
        update(1, 2, "e", "f", key=(1, None, None)),
        update(1, 3, "e", "f", old=(2, "e", "f")),
        delete(1, 3, None, None),
        delete(1, 4, "g", None, mark=b"O"),
        truncate(1),
    ]
    assert only(messages, "_op", "id", "_before", before=True) == [
        (Op.create, 1, None),
        (Op.update, 1, None),
        (Op.update, 1, {"id": 1, "item": "c", "note": "d"}),
        (Op.delete, 1, {"id": 1, "item": None, "note": None}),
        (Op.create, 2, None),
        (Op.delete, 2, {"id": 2, "item": "e", "note": "f"}),
        (Op.create, 3, None),
        (Op.delete, 3, {"id": 3, "item": None, "note": None}),
        (Op.delete, 4, {"id": 4, "item": "g", "note": None}),
        (Op.truncate, None, None),
    ]


def test_a_truncate_counts_once_for_each_of_its_relations() -> None:
    messages = [insert(1, 1, "a", "b"), truncate(2, 3, 1), insert(2, 1, "x")]
    assert only(messages, "table", "_op", "_seq", "id", "a") == [
        ("orders", Op.create, 0, 1, None),
        ("items", Op.truncate, 2, None, None),
        ("orders", Op.truncate, 6, None, None),
        ("items", Op.create, 8, None, 1),
    ]


def test_tables_that_are_not_captured_give_no_rows_but_keep_their_ordinals() -> None:
    messages = [insert(3, 1), insert(1, 1, "a", "b"), delete(3, 1), insert(1, 2, "a", "b")]
    assert only(messages, "table", "_seq", "id") == [("orders", 2, 1), ("orders", 6, 2)]


def test_interleaved_tables_are_one_batch_each_in_the_order_they_appear() -> None:
    messages = [insert(2, 1, "x"), insert(1, 1, "a", "b"), insert(2, 2, "y"), insert(1, 2, "c", "d")]
    (run,) = decoder().feed(transaction(100, ORDERS, ITEMS, *messages))
    assert [(schema.table.name, batch.num_rows) for schema, batch in run.changes] == [("items", 2), ("orders", 2)]


def test_a_feed_of_many_blocks_is_one_batch_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuples, "_BLOCK", 3)
    moves = [update(1, n + 1, "a", U, key=(n, None, None)) for n in range(7)]
    (run,) = decoder(before=True).feed(transaction(100, ORDERS, *moves))
    ((_, batch),) = run.changes
    batch.validate(full=True)
    assert batch.column("_seq").to_pylist() == list(range(14))
    assert batch.column("id").to_pylist() == [key for n in range(7) for key in (n, n + 1)]
    assert batch.column("_unchanged").to_pylist() == [None, ["note"]] * 7


def test_a_changed_relation_starts_a_new_batch_and_a_repeated_one_does_not() -> None:
    wider = relation(
        1, "orders", ("id", INT4, True), ("item", TEXT, False), ("note", TEXT, False), ("more", INT4, False)
    )
    (run,) = decoder().feed(
        transaction(
            100, ORDERS, insert(1, 1, "a", "b"), ORDERS, insert(1, 2, "a", "b"), wider, insert(1, 3, "a", "b", 4)
        )
    )
    assert [(schema.names, batch.column("id").to_pylist()) for schema, batch in run.changes] == [
        (("id", "item", "note"), [1, 2]),
        (("id", "item", "note", "more"), [3]),
    ]
    assert run.changes[0][0].version != run.changes[1][0].version


def test_a_relation_is_resolved_once_per_message() -> None:
    seen: list[str] = []

    def counting(found: Relation) -> TableSchema | None:
        seen.append(found.name)
        return resolve(found)

    made = Decoder(counting, watermark=WATERMARK)
    made.feed(transaction(100, ORDERS, MARKS, insert(1, 1, "a", "b"), ITEMS, ORDERS))
    made.feed(transaction(200, insert(1, 1, "a", "b")))
    assert seen == ["orders", "items", "orders"]


def test_a_watermark_ends_its_run_and_is_no_change() -> None:
    runs = decoder().feed(
        [
            *transaction(100, ORDERS, insert(1, 1, "a", "b"), xid=1),
            *transaction(200, MARKS, update(9, 1, "low"), insert(1, 2, "a", "b"), xid=2),
            *transaction(300, insert(1, 3, "a", "b"), xid=3),
            *transaction(400, update(9, 1, "zero"), update(9, 1, "high", old=(1, "low")), xid=4),
            *transaction(500, delete(9, 1, None), xid=5),
            *transaction(600, insert(9, 1, "again"), xid=6),
        ]
    )
    assert [(run.position, run.token, run.commits.xids.tolist()) for run in runs] == [
        (205, "low", [1, 2]),
        (405, "high", [3, 4]),
        (605, "again", [5, 6]),
    ]
    assert [[row["id"] for row in rows([run])] for run in runs] == [[1, 2], [3], []]


def test_rows_and_bytes_are_counted_up_to_every_commit() -> None:
    first = transaction(100, ORDERS, insert(1, 1, "a", "b"), insert(1, 2, "a", "b"), xid=1)
    second = transaction(200, insert(1, 3, "a", "b"), xid=2)
    marked = transaction(300, MARKS, insert(1, 4, "a", "b"), update(9, 1, "low"), xid=3)
    last = transaction(400, insert(1, 5, "a", "b"), insert(1, 6, "a", "b"), xid=4)
    rest = [begin(500, 5), insert(1, 7, "a", "b")]
    size = [sum(map(len, messages)) for messages in (first, second, marked, last, rest)]
    one, two, three = decoder().feed([*first, *second, *marked, *last, *rest])
    assert one.commits.positions.tolist() == [105, 205, 305]
    assert one.commits.rows.tolist() == [2, 3, 4], "a watermark is not a row"
    assert one.commits.nbytes.tolist() == [size[0], sum(size[:2]), sum(size[:3])]
    assert (two.commits.rows.tolist(), two.commits.nbytes.tolist()) == ([2], [size[3]])
    assert [run.nbytes for run in (one, two, three)] == [sum(size[:3]), size[3], size[4]]


def test_an_open_transaction_is_a_run_without_a_position() -> None:
    made = decoder()
    runs = made.feed([*transaction(100, ORDERS, insert(1, 1, "a", "b")), begin(200, 8), insert(1, 2, "a", "b")])
    assert [(run.position, run.commits.xids.tolist()) for run in runs] == [(105, [7]), (None, [])]
    (run,) = made.feed([insert(1, 3, "a", "b")])
    assert run.position is None
    assert [(row["_lsn"], row["_seq"], row["_txid"]) for row in rows([run])] == [(200, 2, 8)]
    (run,) = made.feed([commit(200, 205)])
    assert (run.position, run.commits.xids.tolist(), run.changes) == (205, [8], ())


def test_a_watermark_survives_the_end_of_a_feed() -> None:
    made = decoder()
    (first,) = made.feed([begin(100, 1), MARKS, update(9, 1, "mark")])
    assert (first.position, first.token) == (None, None)
    (second, third) = made.feed([commit(100, 105), *transaction(200, xid=2)])
    assert (second.position, second.token) == (105, "mark")
    assert (third.position, third.token) == (205, None)


def test_messages_that_say_nothing_to_us_are_passed_over() -> None:
    kind = b"Y" + struct.pack(">I", 77) + cstring("public") + cstring("mood")
    origin = b"O" + struct.pack(">q", 1) + cstring("elsewhere")
    text = b"M\0" + struct.pack(">q", 1) + cstring("prefix") + struct.pack(">I", 2) + b"hi"
    (run,) = decoder().feed([text, *transaction(100, origin, kind, ORDERS, insert(1, 1, "a", "b")), text])
    assert [row["_seq"] for row in rows([run])] == [0]
    assert decoder().feed([text]) == []
    assert decoder().feed([]) == []


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([b"S" + bytes(5)], r"unknown message b'S'"),
        ([b"b" + bytes(30)], r"unknown message b'b'"),
        ([insert(1, 1, "a", "b")], "outside a transaction"),
        ([begin(1, 1), begin(2, 2)], "do not alternate"),
        ([commit(1, 2)], "do not alternate"),
        ([begin(1, 1), commit(2, 3)], "does not belong to the transaction"),
        ([begin(1, 1), insert(1, 1, "a", "b")], "relation 1 without a Relation message"),
        (transaction(1, ORDERS, insert(1, 1, "a")), "does not have 3 columns"),
        (transaction(1, ORDERS, insert(1, 1, "a", "b") + b"n"), "does not end where"),
        (transaction(1, ORDERS, insert(1, 1, "a", "b")[:-1]), "does not end where"),
        (transaction(1, ORDERS, insert(1, 1, "a", "b").replace(b"t\0\0\0\1a", b"b\0\0\0\1a")), "kind b'b'"),
        (transaction(1, ORDERS, update(1, 1, "a", "b", key=(2, None, None)).replace(b"nnN", b"nnX")), "no new row"),
        (transaction(1, ORDERS, insert(1, "x", "a", "b")), "column 'id'"),
        (transaction(1, ORDERS, insert(1, U, "a", "b")), "lacks its key column 'id'"),
        (
            transaction(1, relation(9, "watermark", ("id", INT4, True), schema="dblog"), insert(9, 1)),
            "no column 'token'",
        ),
    ],
)
def test_what_is_not_understood_is_refused(messages: list[bytes], said: str) -> None:
    with pytest.raises(DecodeError, match=said):
        decoder().feed(messages)


def test_a_value_that_is_not_utf8_is_null_and_its_bytes_are_kept() -> None:
    message = insert(1, 1, "abc", "b").replace(b"abc", b"a\xffc")
    (run,) = decoder().feed(transaction(1, ORDERS, message))
    (row,) = run.changes[0][1].to_pylist()
    assert (row["item"], row["_raw_values"]) == (None, '{"item":"\\\\x61ff63"}')


def test_a_schema_that_is_not_the_relations_is_refused() -> None:
    other = TableSchema(TableName("public", "orders"), (PgColumn("x", "integer", pa.int32(), INT4, "int4"),), ("x",))
    with pytest.raises(DecodeError, match="does not match the log's relation"):
        Decoder(lambda _: other, watermark=WATERMARK).feed(transaction(1, ORDERS))


text = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)
short = st.integers(0, 9)
changes = st.one_of(
    st.builds(lambda i, t: insert(1, i, t, None), short, text),
    st.builds(lambda i, t: update(1, i, t, U), short, text),
    st.builds(lambda i, j, t: update(1, i, U, t, old=(j, "old", None)), short, short, text),
    st.builds(lambda i, j, t: update(1, i, t, t, key=(j, None, None)), short, short, text),
    st.builds(lambda i: delete(1, i, None, None), short),
    st.builds(lambda i, t: insert(2, i, t), short, text),
    st.builds(lambda i, t: delete(2, i, t, mark=b"O"), short, text),
    st.builds(lambda i: insert(3, i), short),
    st.builds(lambda t: update(9, 1, t), text),
    st.sampled_from([truncate(1, 2), truncate(3), ORDERS, b"M\0" + bytes(8)]),
)
WIDER = relation(1, "orders", ("id", INT4, True), ("item", TEXT, False), ("note", TEXT, False), identity="f")


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[bytes], list[list[bytes]]]:
    """A log, and the same log cut into feeds."""
    messages: list[bytes] = []
    for number, found in enumerate(draw(st.lists(st.lists(changes, max_size=6), min_size=1, max_size=6))):
        described = [ORDERS, ITEMS, IGNORED, MARKS] if number == 0 else draw(st.sampled_from([[], [WIDER]]))
        messages += transaction(1000 + 100 * number, *described, *found, xid=number)
    cuts = sorted(draw(st.lists(st.integers(0, len(messages)), max_size=8)))
    return messages, [messages[a:b] for a, b in zip([0, *cuts], [*cuts, len(messages)], strict=True)]


@settings(max_examples=2 * settings.default.max_examples)
@given(logs(), st.booleans())
def test_any_cut_into_feeds_gives_the_same_rows_positions_and_watermarks(
    log: tuple[list[bytes], list[list[bytes]]], before: bool
) -> None:
    messages, feeds = log
    whole = decoder(before=before).feed(messages)
    made = decoder(before=before)
    cut = [run for feed in feeds for run in made.feed(feed)]
    assert list(rows(cut)) == list(rows(whole))
    assert [(run.position, run.token) for run in cut if run.token] == [
        (run.position, run.token) for run in whole if run.token
    ]
    assert [x for run in cut for x in run.commits.xids.tolist()] == [
        x for run in whole for x in run.commits.xids.tolist()
    ]
    assert cut[-1].position == whole[-1].position
    assert sum(run.nbytes for run in cut) == sum(run.nbytes for run in whole)
    # A row belongs to the run that ends at or after its commit, and to none that ended before it.
    reached = 0
    for run in cut:
        assert all(row["_lsn"] > reached for row in rows([run]))
        reached = run.position or reached


def test_a_schema_may_leave_out_columns() -> None:
    def narrow(found: Relation) -> TableSchema | None:
        schema = resolve(found)
        assert schema is not None
        return TableSchema(schema.table, (schema.columns[0], schema.columns[2]), schema.key)

    feed = transaction(
        100, ORDERS, insert(1, 1, "pen", "a"), update(1, 2, U, U, key=(1, None, None)), delete(1, 2, None, None)
    )
    made = list(rows(Decoder(narrow, watermark=WATERMARK, before=True).feed(feed)))
    assert [(row["_op"], row["id"], row["note"], row["_unchanged"]) for row in made] == [
        (Op.create, 1, "a", None),
        (Op.delete, 1, None, None),
        (Op.create, 2, None, ["note"]),
        (Op.delete, 2, None, None),
    ]
    assert not any("item" in row or "item" in (row["_before"] or {}) for row in made)


def test_changes_that_do_not_identify_their_rows_empty_the_table() -> None:
    """Once in each transaction; the table must be dumped."""

    def lost(found: Relation) -> TableSchema | None:
        schema = resolve(found)
        return schema and Unidentified(schema.table, schema.columns, schema.key)

    first = transaction(100, ORDERS, insert(1, 1, "a", "b"), delete(1, None, "a", None))
    runs = Decoder(lost, watermark=WATERMARK).feed([*first, *transaction(200, delete(1, None, "a", None))])
    found = [(row["_op"], row["_lsn"], row["_seq"], row["id"]) for row in rows(runs)]
    assert found == [(Op.truncate, 100, 0, None), (Op.truncate, 200, 0, None)]
    assert {table.name for run in runs for table in run.replaced} == {"orders"}


def test_a_table_that_is_described_in_another_way_is_noticed() -> None:
    decode = decoder()
    decode.feed(transaction(100, ORDERS, insert(1, 1, "a", "b")))
    decode.feed(transaction(200, ORDERS, insert(1, 2, "a", "b")))
    assert not decode.redefined
    decode.feed(transaction(300, relation(1, "orders", ("id", INT4, True)), insert(1, 3)))
    assert decode.redefined
