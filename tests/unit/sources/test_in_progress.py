"""Transactions in progress on hand-made messages: what is decoded of them equals what protocol 1 would have sent."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog.errors import DecodeError, SpoolError
from dblog.sources.base import Run
from dblog.sources.postgres import transaction_file
from dblog.sources.postgres.in_progress import Committed, InProgress
from dblog.sources.postgres.pgoutput import Decoder
from dblog.sources.postgres.transaction_file import HEADER, TransactionFile
from tests.unit.sources.test_pgoutput import (
    INT4,
    ITEMS,
    MARKS,
    ORDERS,
    TEXT,
    begin,
    commit,
    decoder,
    delete,
    insert,
    relation,
    rows,
    transaction,
    truncate,
    update,
)


def start(xid: int, *, first: bool = True) -> bytes:
    return b"S" + struct.pack(">IB", xid, first)


def inside(xid: int, message: bytes) -> bytes:
    """A message as it is sent within a block."""
    return message[:1] + struct.pack(">I", xid) + message[1:]


def block(xid: int, *messages: bytes, first: bool = True) -> list[bytes]:
    return [start(xid, first=first), *(inside(xid, message) for message in messages), b"E"]


def stream_commit(xid: int, lsn: int, end: int, micros: int = 0) -> bytes:
    return b"c" + struct.pack(">IBqqq", xid, 0, lsn, end, micros)


def stream_abort(xid: int, subtransaction: int | None = None) -> bytes:
    return b"A" + struct.pack(">II", xid, subtransaction or xid)


def decoded(arrived: Sequence[list[bytes] | Committed], into: Decoder) -> list[Run]:
    found: list[Run] = []
    for each in arrived:
        if isinstance(each, Committed):
            found += [run for runs in each.decode(into) for run in runs]
        else:
            found += into.feed(each)
    return found


def flat(runs: Sequence[Run]) -> tuple[list[Any], list[Any], int]:
    """All rows, all commits with their watermarks, and the number of bytes."""
    commits: list[Any] = []
    for run in runs:
        commits += zip(run.commits.positions.tolist(), run.commits.xids.tolist(), strict=True)
        if run.token is not None:
            commits.append(run.token)
    return list(rows(runs)), commits, sum(run.nbytes for run in runs)


@pytest.fixture
def in_progress(tmp_path: Path) -> Iterator[InProgress]:
    made = InProgress(str(tmp_path))
    yield made
    made.close()


def same(in_progress: InProgress, streamed: Sequence[bytes], plain: Sequence[bytes]) -> list[Any]:
    """Check that the messages of protocol 2 are decoded as those of protocol 1; the rows."""
    into = decoder()
    arrived = [each for message in streamed for each in in_progress.sort([message])]
    found = flat(decoded(arrived, into))
    assert found == flat(decoder().feed(plain))
    return found[0]


# -- one transaction -------------------------------------------------------------------------------------------


def test_a_transaction_in_blocks_is_decoded_like_one_that_came_after_its_commit(in_progress: InProgress) -> None:
    changes = [insert(1, 1, "pen", None), update(1, 1, "ink", "é"), delete(1, 1, None, None), truncate(1, 2)]
    streamed = [
        *block(7, ORDERS, ITEMS, *changes[:2]),
        *block(7, *changes[2:], first=False),
        stream_commit(7, 100, 105, 1_000_000),
    ]
    found = same(in_progress, streamed, [begin(100, 7, 1_000_000), ORDERS, ITEMS, *changes, commit(100, 105)])
    assert [(row["_lsn"], row["_seq"], row["_txid"]) for row in found] == [(100, 2 * n, 7) for n in range(5)]


def test_other_transactions_pass_it_and_it_is_decoded_where_its_commit_is(in_progress: InProgress) -> None:
    small = [transaction(lsn, ORDERS, insert(1, lsn, "small", None), xid=lsn) for lsn in (50, 110)]
    streamed = [
        *block(7, ORDERS, insert(1, 1, "a", None)),
        *small[0],
        *block(7, insert(1, 2, "b", None), first=False),
        stream_commit(7, 100, 105),
        *small[1],
    ]
    plain = [*small[0], *transaction(100, ORDERS, insert(1, 1, "a", None), insert(1, 2, "b", None)), *small[1]]
    assert [row["_lsn"] for row in same(in_progress, streamed, plain)] == [50, 100, 100, 110]


def test_what_a_subtransaction_did_is_left_out_if_it_is_rolled_back_and_takes_no_numbers(
    in_progress: InProgress,
) -> None:
    streamed = [
        start(7),
        inside(7, ORDERS),
        inside(7, insert(1, 1, "a", None)),
        inside(8, insert(1, 2, "rolled back", None)),
        inside(9, insert(1, 3, "kept", None)),
        b"E",
        stream_abort(7, 8),
        *block(7, ORDERS, insert(1, 4, "b", None), first=False),
        stream_commit(7, 100, 105),
    ]
    kept = [insert(1, 1, "a", None), insert(1, 3, "kept", None), insert(1, 4, "b", None)]
    into = decoder()
    found, commits, _ = flat(decoded(in_progress.sort(streamed), into))
    assert found == flat(decoder().feed(transaction(100, ORDERS, *kept)))[0]
    assert commits == [(105, 7)]


def test_a_transaction_that_is_rolled_back_leaves_nothing(in_progress: InProgress) -> None:
    assert not in_progress.sort([*block(7, ORDERS, insert(1, 1, "a", None)), stream_abort(7)])
    assert len(in_progress) == in_progress.nbytes == 0
    assert not in_progress.sort([stream_abort(7)])


def test_an_empty_transaction_in_blocks_is_a_commit_without_rows(in_progress: InProgress) -> None:
    assert same(in_progress, [*block(7), stream_commit(7, 100, 105)], [begin(100, 7), commit(100, 105)]) == []


def test_a_watermark_is_seen_while_a_transaction_is_in_progress_and_within_one(in_progress: InProgress) -> None:
    into = decoder()
    small = transaction(50, MARKS, update(9, 1, "first"), xid=3)
    (run,) = decoded(in_progress.sort([*block(7, ORDERS, insert(1, 1, "a", None)), *small]), into)
    assert (run.token, run.position) == ("first", 55)
    large = [*block(7, MARKS, update(9, 1, "second"), first=False), stream_commit(7, 100, 105)]
    runs = decoded(in_progress.sort(large), into)
    assert [run.token for run in runs if run.token] == ["second"]
    assert runs[-1].position == 105


# -- any interleaving ------------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    """Messages of protocol 2, and those of protocol 1 for the same transactions.

    While a subtransaction is open, all changes of its transaction belong to it or to others in it."""
    streamed: list[bytes] = []
    plain: list[bytes] = []
    tops = list(range(100, 100 + draw(st.integers(1, 3))))
    begun: set[int] = set()
    described: set[int] = set()
    known = False
    changes: dict[int, list[tuple[int, bytes]]] = {top: [] for top in tops}
    nested: dict[int, set[int]] = {top: set() for top in tops}
    fresh = 1000
    lsn = 0
    while tops:
        lsn += 10
        step = draw(st.sampled_from(["commit", "abort", "block", "block", "block", "small", "roll back", "release"]))
        top = draw(st.sampled_from(tops))
        if step == "small":
            rows_of_it = [insert(1, lsn, "small", None)] * draw(st.integers(1, 3))
            streamed += transaction(lsn, *([] if known else [ORDERS]), *rows_of_it, xid=3)
            plain += transaction(lsn, ORDERS, *rows_of_it, xid=3)
            known = True
        elif step == "block":
            streamed.append(start(top, first=top not in begun))
            begun.add(top)
            if draw(st.booleans()):
                streamed.append(b"O" + bytes(8) + b"origin\0")
            for _ in range(draw(st.integers(0, 4))):
                if draw(st.booleans()):
                    fresh += 1
                    nested[top].add(fresh)
                xid = draw(st.sampled_from(sorted(nested[top]))) if nested[top] else top
                if top not in described:
                    streamed.append(inside(xid, ORDERS))
                    described.add(top)
                number = len(changes[top])
                change = draw(st.sampled_from([insert(1, number, "x" * number, None), truncate(1, 1)]))
                streamed.append(inside(xid, change))
                changes[top].append((xid, change))
            streamed.append(b"E")
        elif step == "roll back" and top in begun:
            streamed += [stream_abort(top, xid) for xid in sorted(nested[top])]
            changes[top] = [(xid, change) for xid, change in changes[top] if xid not in nested[top]]
            if nested[top]:
                described.discard(top)
            nested[top] = set()
        elif step == "release":
            nested[top] = set()
        elif step in ("commit", "abort"):
            tops.remove(top)
            if top not in begun:
                continue
            if step == "abort":
                streamed.append(stream_abort(top))
            else:
                streamed.append(stream_commit(top, lsn, lsn + 5, lsn * 1000))
                plain += [begin(lsn, top, lsn * 1000), ORDERS, *(c for _, c in changes[top]), commit(lsn, lsn + 5)]
                known |= top in described
    return streamed, plain


@settings(max_examples=3 * settings.default.max_examples)
@given(history=histories(), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_any_transactions_in_any_blocks_and_portions_equal_protocol_1(
    history: tuple[list[bytes], list[bytes]], cuts: list[int]
) -> None:
    """A rolled back subtransaction may have had the description: the server sends it again."""
    streamed, plain = history
    in_progress = InProgress(tempfile.gettempdir())
    into, found = decoder(), []
    bounds = sorted({0, *(min(cut, len(streamed)) for cut in cuts), len(streamed)})
    for first, last in pairwise(bounds):
        for each in in_progress.sort(streamed[first:last]):
            found += decoded([each], into)
    assert flat(found)[:2] == flat(decoder().feed(plain) if plain else [])[:2]
    assert len(in_progress) == 0


# -- definitions -----------------------------------------------------------------------------------------------

OLD = relation(1, "orders", ("id", INT4, True), ("item", TEXT, False))
NEW = relation(1, "orders", ("id", INT4, True), ("note", TEXT, False))


def names(found: Sequence[Run]) -> list[tuple[int, str]]:
    """The position of each row, and the name of its column that is not the key."""
    return [(row["_lsn"], "item" if "item" in row else "note") for row in rows(found)]


def test_a_definition_within_a_transaction_holds_for_others_after_its_commit(in_progress: InProgress) -> None:
    into = decoder()
    found = decoded(in_progress.sort(transaction(10, OLD, insert(1, 1, "x"))), into)
    assert not into.redefined
    found += decoded(in_progress.sort(block(7, OLD, insert(1, 2, "x"), NEW, insert(1, 3, "x"))), into)
    found += decoded(in_progress.sort(transaction(20, insert(1, 4, "x"))), into)
    assert not into.redefined
    found += decoded(in_progress.sort([stream_commit(7, 30, 35), *transaction(40, insert(1, 5, "x"))]), into)
    assert names(found) == [(10, "item"), (20, "item"), (30, "item"), (30, "note"), (40, "note")]
    assert into.redefined


def test_a_definition_of_a_transaction_that_is_rolled_back_vanishes_with_it(in_progress: InProgress) -> None:
    into = decoder()
    found = decoded(in_progress.sort(transaction(10, OLD, insert(1, 1, "x"))), into)
    found += decoded(in_progress.sort([*block(7, NEW, insert(1, 2, "x")), stream_abort(7)]), into)
    found += decoded(in_progress.sort(transaction(20, insert(1, 3, "x"))), into)
    assert names(found) == [(10, "item"), (20, "item")]
    assert not into.redefined


def test_a_definition_of_a_subtransaction_that_is_rolled_back_vanishes_with_it(in_progress: InProgress) -> None:
    into = decoder()
    found = decoded(in_progress.sort(transaction(10, OLD, insert(1, 1, "x"))), into)
    block_with_sub = [start(7), inside(8, NEW), inside(8, insert(1, 2, "x")), b"E"]
    found += decoded(in_progress.sort([*block_with_sub, stream_abort(7, 8), stream_commit(7, 30, 35)]), into)
    found += decoded(in_progress.sort(transaction(40, insert(1, 3, "x"))), into)
    assert names(found) == [(10, "item"), (40, "item")]


def test_a_definition_that_came_after_those_of_a_transaction_in_progress_outlives_its_commit(
    in_progress: InProgress,
) -> None:
    """The publication was changed meanwhile, which no lock of the transaction prevents. The server does not describe
    the table once more."""
    into = decoder()
    found = decoded(in_progress.sort(block(7, OLD, insert(1, 1, "x"))), into)
    found += decoded(in_progress.sort(transaction(20, NEW, insert(1, 2, "x"))), into)
    found += decoded(in_progress.sort([stream_commit(7, 30, 35), *transaction(40, insert(1, 3, "x"))]), into)
    assert names(found) == [(20, "note"), (30, "item"), (40, "note")]


def test_of_two_transactions_in_progress_the_later_description_holds(in_progress: InProgress) -> None:
    for first, second in ((7, 8), (8, 7)):
        into = decoder()
        both = [*block(7, OLD, insert(1, 1, "x")), *block(8, NEW, insert(1, 2, "x"))]
        ends = [stream_commit(first, 30, 35), stream_commit(second, 40, 45)]
        found = decoded(in_progress.sort([*both, *ends, *transaction(50, insert(1, 3, "x"))]), into)
        assert names(found)[-1] == (50, "note")


# -- what must not be --------------------------------------------------------------------------------------------


def test_blocks_without_their_beginning_and_commits_without_their_blocks_are_refused(in_progress: InProgress) -> None:
    with pytest.raises(DecodeError, match="no beginning of transaction 7"):
        in_progress.sort(block(7, first=False))
    with pytest.raises(DecodeError, match="commit of transaction 7 without its changes"):
        in_progress.sort([stream_commit(7, 10, 15)])
    in_progress.sort(block(7))
    with pytest.raises(DecodeError, match="a second beginning of transaction 7"):
        in_progress.sort(block(7))
    with pytest.raises(DecodeError, match="too short"):
        in_progress.sort([start(7, first=False), b"I123"])


def test_a_change_without_a_description_in_its_own_transaction_is_refused(in_progress: InProgress) -> None:
    into = decoder()
    decoded(in_progress.sort(transaction(10, OLD, insert(1, 1, "x"))), into)
    with pytest.raises(DecodeError, match="without a Relation message"):
        decoded(in_progress.sort([*block(7, insert(1, 2, "x")), stream_commit(7, 30, 35)]), into)


def test_the_messages_of_two_phase_commits_and_ends_outside_blocks_are_refused(in_progress: InProgress) -> None:
    for message in (b"E", b"p" + bytes(30)):
        with pytest.raises(DecodeError, match="unknown message"):
            decoded(in_progress.sort([message]), decoder())


# -- the file ----------------------------------------------------------------------------------------------------


def contents(file: TransactionFile) -> list[list[tuple[int, bytes]]]:
    """The messages of each portion, with the ids of their transactions."""
    found = []
    for parts, sizes in file.portions():
        whole, ends = b"".join(parts), np.cumsum(sizes).tolist()
        cut = [whole[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)]
        found.append([(int.from_bytes(message[:HEADER]), message[HEADER:]) for message in cut])
    return found


def test_a_file_is_read_in_portions_of_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_file, "PORTION_BYTES", 1000)
    file = TransactionFile(str(tmp_path))
    messages = [bytes([65 + n % 26]) * (n % 300 + 1) for n in range(500)]
    for at in range(0, len(messages), 3):
        file.append([inside(at, message) for message in messages[at : at + 3]])
    assert file.nbytes == sum(map(len, messages)) + HEADER * len(messages)
    file.roll_back(6)
    file.roll_back(300)
    portions = contents(file)
    assert max(sum(len(m) + HEADER for _, m in portion) for portion in portions) < 1000 + 3 * 304
    assert [m for portion in portions for m in portion] == [
        (at - at % 3, message) for at, message in enumerate(messages) if at - at % 3 not in (6, 300)
    ]
    file.close()


def test_the_folder_shows_no_file_and_the_process_keeps_none_after_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    in_progress = InProgress(str(folder))
    in_progress.sort([*block(7, ORDERS), *block(8, ORDERS), *block(9, ORDERS)])
    assert folder.stat().st_mode & 0o077 == 0
    assert list(folder.iterdir()) == []
    assert len(open_files(folder)) == 3
    aborted = in_progress._open[7].file._file
    in_progress.sort([stream_abort(7)])
    assert aborted.closed
    (committed,) = in_progress.sort([stream_commit(8, 10, 15)])
    assert len(open_files(folder)) == 2
    decoded([committed], decoder())
    assert len(open_files(folder)) == 1
    in_progress.close()
    assert open_files(folder) == []


def open_files(folder: Path) -> list[str]:
    """The files in a folder that this process has open."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # that of the listing itself
            continue
    return [name for name in names if name.startswith(f"{folder}/")]


def test_a_folder_that_cannot_be_written_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    in_progress = InProgress(str(tmp_path / "file"))
    with pytest.raises(SpoolError, match="cannot keep a transaction in progress") as refused:
        in_progress.sort(block(7, ORDERS))
    assert "streamInProgress" in str(refused.value.hint)
