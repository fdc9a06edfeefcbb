"""Progress as people see it, made from offsets alone."""

from __future__ import annotations

import pytest

from dblog.core.dump import INITIAL, REPAIR
from dblog.core.offset import Chunk, Cursor, Extent, Offset, Taken, Tally
from dblog.core.schema import TableName
from dblog.state.mirror import Delivered, mirrored, taken
from dblog.state.requests import Progress, State, TableProgress

A, B = TableName("public", "a"), TableName("public", "b")
ADMITTED = Progress(tables={"public.a": TableProgress(total=10), "public.b": TableProgress(total=5)})


def after(position: int, *, dumps: tuple[Cursor, ...] = (), read: tuple[Chunk, ...] = (), **counts: int) -> Delivered:
    """A batch; `a=3` says that three rows of table a have been emitted by now and one was dropped."""
    tally = [Tally("1-x", TableName("public", name), n, 1) for name, n in counts.items()]
    return Delivered(Offset(position, dumps=dumps, read=read, taken=Taken("store", 1)), tally, float(position))


def chunk(table: TableName) -> Chunk:
    return Chunk("w-0", "1-x", table, Extent(None, ("5",)))


def mirror(old: Progress, batch: Delivered, *, cancelled: bool = False, seconds: float = 0.0) -> Progress:
    return mirrored("1-x", old, batch, cancelled=cancelled, seconds=seconds)


def states(progress: Progress) -> dict[str, str]:
    return {name: str(t.state) for name, t in progress.tables.items()}


def test_a_dump_from_its_beginning_to_its_end() -> None:
    waiting = Cursor("1-x", B, 5)
    progress = mirror(ADMITTED, after(10, dumps=(Cursor("1-x", A, 5, ("5",), ("9",)), waiting), read=(chunk(A),)))
    assert progress.state is State.running
    assert states(progress) == {"public.a": "running", "public.b": "queued"}
    assert progress.started_at == 10.0
    progress = mirror(progress, after(20, dumps=(waiting,), read=(chunk(B),), a=4), seconds=2.0)
    assert states(progress) == {"public.a": "completed", "public.b": "running"}
    assert progress.tables["public.a"] == TableProgress(State.completed, read=5, emitted=4, dropped=1, total=10)
    progress = mirror(progress, after(30, b=3), seconds=1.5)
    assert progress.state is State.completed
    assert (progress.started_at, progress.finished_at, progress.active_seconds) == (10.0, 30.0, 3.5)


def test_a_batch_is_counted_once_however_often_it_is_seen() -> None:
    batch = after(20, dumps=(Cursor("1-x", A, 5, ("5",), ("9",)),), a=4)
    progress = mirror(mirror(ADMITTED, batch), batch)
    assert progress.tables["public.a"].read == 5


def test_a_table_that_fails_does_not_end_the_others() -> None:
    broken = Cursor("1-x", A, 5, failed="it is gone")
    progress = mirror(ADMITTED, after(10, dumps=(broken, Cursor("1-x", B, 5, ("1",), ("5",)))))
    assert progress.state is State.running
    assert states(progress) == {"public.a": "failed", "public.b": "running"}
    progress = mirror(progress, after(20, b=3))
    assert (progress.state, progress.reason) == (State.failed, "it is gone")
    assert states(progress) == {"public.a": "failed", "public.b": "completed"}


def test_what_is_left_of_a_cancelled_dump_is_cancelled() -> None:
    progress = mirror(ADMITTED, after(10, dumps=(Cursor("1-x", B, 5, ("1",), ("5",)),), a=3))
    progress = mirror(progress, after(20), cancelled=True)
    assert progress.state is State.cancelled
    assert states(progress) == {"public.a": "completed", "public.b": "cancelled"}


def test_a_dump_that_was_over_when_it_was_cancelled_is_completed() -> None:
    progress = mirror(mirror(ADMITTED, after(10, a=3, b=3)), after(20), cancelled=True)
    assert progress.state is State.completed


@pytest.mark.parametrize(
    ("store", "number", "expected"), [("store", 1, True), ("store", 2, False), ("another", 1, False)]
)
def test_a_request_is_taken_when_the_offset_says_so(store: str, number: int, expected: bool) -> None:
    assert taken("1-x", number, ADMITTED, after(10), store) is expected


def test_the_first_dump_is_taken_when_its_tables_are_known_and_a_repair_when_it_runs() -> None:
    known = Delivered(Offset(5, tables=(A,)), (), 0.0)
    assert not taken(INITIAL, None, ADMITTED, known, "store")
    assert taken(INITIAL, None, Progress(tables={"public.a": TableProgress()}), known, "store")
    assert not taken(REPAIR, None, Progress(), known, "store")
    assert taken(REPAIR, None, Progress(state=State.running), known, "store")
