from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog.core.offset import Chunk, Cursor, Extent, Followed, Offset, Taken, Tally, pinned
from dblog.core.schema import TableName
from dblog.errors import PositionLost

keys = st.lists(st.text(max_size=8), max_size=3).map(tuple)
tables = st.builds(TableName, st.text(max_size=8), st.text(max_size=8))
extents = st.one_of(
    st.builds(Extent, st.none() | keys, st.none() | keys, where=st.none() | st.text(max_size=8)),
    st.builds(Extent, keys=st.lists(keys, min_size=1, max_size=3).map(tuple)),
)
texts = st.none() | st.text(max_size=8)
chunks = st.lists(
    st.builds(Chunk, st.text(max_size=8), st.text(max_size=8), tables, extents, texts, texts),
    max_size=3,
).map(tuple)
cursors = st.builds(
    Cursor,
    st.text(max_size=8),
    tables,
    st.integers(1, 10**6),
    st.none() | keys,
    st.none() | keys,
    st.lists(extents, max_size=2).map(tuple),
    texts,
    texts,
    texts,
)
offsets = st.builds(
    Offset,
    st.none() | st.integers(0, 2**63 - 1),
    chunks,
    chunks,
    st.lists(cursors, max_size=3).map(tuple),
    st.lists(st.integers(0, 2**63 - 1), max_size=3).map(tuple),
    st.lists(tables, max_size=3).map(tuple),
    st.none() | st.builds(Taken, st.text(max_size=8), st.integers(0, 2**63 - 1)),
    st.lists(st.builds(Tally, st.text(max_size=8), tables, st.integers(0), st.integers(0)), max_size=3).map(tuple),
    texts,
    st.none() | st.dictionaries(tables, st.builds(Followed, st.text(max_size=8), st.text(max_size=8)), max_size=3),
    st.dictionaries(tables, st.text(max_size=8), max_size=2),
)

THOUSAND = tuple(TableName("inventory", f"table_{n:04}") for n in range(1000))


@given(offsets)
@settings(max_examples=2 * settings.default.max_examples)
def test_an_offset_survives_its_json(offset: Offset) -> None:
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_the_offset_in_front_of_the_first_batch_is_a_constant() -> None:
    assert Offset().to_json() == {"v": 1}
    assert Offset.from_json({"v": 1}) == Offset()


def test_position_zero_is_a_position() -> None:
    assert Offset.from_json(Offset(0).to_json()).position == 0


@pytest.mark.parametrize("data", [{}, {"v": 4, "pos": 5}, {"v": "1"}])
def test_an_offset_of_another_version_is_refused_with_the_way_out(data: dict[str, object]) -> None:
    with pytest.raises(PositionLost) as refused:
        Offset.from_json(data)
    assert repr(data.get("v")) in refused.value.message
    assert "checkpoint" in (refused.value.hint or "")


def test_a_thousand_tables_fit_into_a_hundred_kilobytes_once_they_are_dumped() -> None:
    assert len(json.dumps(Offset(2**40, tables=THOUSAND).to_json())) < 100_000


def test_a_thousand_tables_that_wait_for_their_dump_stay_far_below_what_slows_a_batch() -> None:
    waiting = Offset(2**40, dumps=tuple(Cursor("initial", t, 10_000) for t in THOUSAND), tables=THOUSAND)
    assert len(json.dumps(waiting.to_json())) < 150_000


TWO_THOUSAND = tuple(TableName("inventory", f"table_{n:04}") for n in range(2000))


def size(offset: Offset) -> int:
    return len(json.dumps(offset.to_json()))


def test_two_thousand_followed_tables_fit_into_what_spark_does_not_notice() -> None:
    followed = {table: Followed(str(16_384 + 7 * n)) for n, table in enumerate(TWO_THOUSAND)}
    assert size(Offset(2**40, tables=TWO_THOUSAND, followed=followed)) < 25_000
    waiting = tuple(Cursor("initial", table, 20_000) for table in TWO_THOUSAND)
    assert size(Offset(2**40, dumps=waiting, tables=TWO_THOUSAND, followed=followed)) < 40_000


def test_a_round_of_hundreds_of_small_tables_fits_too() -> None:
    chunks = tuple(
        Chunk(f"{7:032x}-{n}", "initial", table, Extent(None, ("100",)), "id bigint")
        for n, table in enumerate(TWO_THOUSAND[:400])
    )
    assert size(Offset(2**40, read=chunks)) < 10_000


def test_an_offset_with_long_lists_survives_its_json_and_earlier_versions_refuse_it() -> None:
    followed = {table: Followed(str(n), "p1,p2") for n, table in enumerate(THOUSAND)}
    cursors = tuple(Cursor("initial", t, 10, ("1",), ("9",)) for t in THOUSAND)
    chunks = tuple(Chunk(f"w-{n}", "initial", t, Extent(None, ("9",))) for n, t in enumerate(THOUSAND))
    tally = tuple(Tally("initial", t, 5, 1) for t in THOUSAND)
    offset = Offset(7, chunks, chunks, cursors, (), THOUSAND, None, tally, None, followed)
    data = json.loads(json.dumps(offset.to_json()))
    assert data["v"] == 2
    assert Offset.from_json(data) == offset
    shorter = Offset(7, tables=THOUSAND[:20], followed=dict(list(followed.items())[:20]))
    assert shorter.to_json()["v"] == 1


def test_an_offset_of_an_earlier_version_has_plain_lists() -> None:
    data = {
        "v": 1,
        "pos": 7,
        "tables": [list(t) for t in THOUSAND],
        "followed": [[*t, "5", ""] for t in THOUSAND],
        "dumps": [{"dump": "initial", "table": list(t), "rows": 10_000} for t in THOUSAND],
    }
    offset = Offset.from_json(data)
    assert offset.tables == THOUSAND
    assert offset.followed == dict.fromkeys(THOUSAND, Followed("5"))
    assert offset.dumps == tuple(Cursor("initial", t, 10_000) for t in THOUSAND)


def test_lists_that_do_not_change_are_written_and_read_once() -> None:
    followed = dict.fromkeys(THOUSAND, Followed("5"))
    first = Offset(1, tables=THOUSAND, followed=followed)
    second = Offset(2, tables=THOUSAND, followed=dict(followed))
    assert second.to_json()["followed"] is first.to_json()["followed"]
    read = [Offset.from_json(json.loads(json.dumps(o.to_json()))) for o in (first, second)]
    assert read[0].tables is read[1].tables
    assert read[0].followed is read[1].followed
    third = Offset(3, tables=THOUSAND[1:], followed=followed)
    assert Offset.from_json(third.to_json()) == third, "a list that changes is written again"


@pytest.mark.parametrize("text", ["%", "YWJj", ""])
def test_a_text_that_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(PositionLost, match="cannot be read"):
        Offset.from_json({"v": 2, "pos": 1, "tables": text})


def test_the_size_does_not_depend_on_how_many_chunks_were_handed_out() -> None:
    table = TableName("public", "orders")
    sizes = {
        len(
            json.dumps(
                Offset(10**9, dumps=(Cursor("initial", table, 10_000, (str(10**9 + n),), ("2000000000",)),)).to_json()
            )
        )
        for n in (1, 1_000, 100_000_000)
    }
    assert len(sizes) == 1


def test_an_offset_is_dumping_while_something_is_read_or_queued() -> None:
    table = TableName("public", "orders")
    chunk = Chunk("w-0", "initial", table, Extent(None, ("9",)))
    assert not Offset(5).dumping
    assert Offset(5, read=(chunk,)).dumping
    assert Offset(5, dumps=(Cursor("initial", table, 10),)).dumping
    assert not Offset(5, emit=(pinned(chunk, "s"),)).dumping


def test_a_cursor_is_exhausted_when_it_reached_its_end_and_nothing_is_read_again() -> None:
    table = TableName("public", "orders")
    assert not Cursor("initial", table, 10).exhausted
    assert not Cursor("initial", table, 10, ("3",), ("9",)).exhausted
    assert not Cursor("initial", table, 10, ("9",), ("9",), (Extent(None, ("3",)),)).exhausted
    assert Cursor("initial", table, 10, ("9",), ("9",)).exhausted


def test_pinning_a_chunk_keeps_the_rest() -> None:
    chunk = Chunk("w-0", "initial", TableName("public", "orders"), Extent(None, ("9",)))
    assert pinned(chunk, "s") == Chunk("w-0", "initial", chunk.table, chunk.extent, stamp="s")


def test_the_coordinate_keeps_the_json_key_of_earlier_checkpoints() -> None:
    earlier = {"v": 1, "pos": 17, "place": "gtid=0-1-7 shift=3"}
    offset = Offset.from_json(earlier)
    assert offset.coordinate == "gtid=0-1-7 shift=3"
    assert offset.to_json() == earlier
