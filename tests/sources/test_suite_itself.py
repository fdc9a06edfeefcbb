"""The suite of sources finds a source that is wrong: the journal, broken in one way after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import tests.sources.test_sources  # noqa: F401  # pytester forgets modules that are first imported within it
from dblog.core.event import BEFORE
from dblog.core.offset import Extent
from dblog.core.schema import TableName
from dblog.errors import TableUnreadable
from dblog.sources.base import Admitted, Run, Survey
from tests.sources import journal
from tests.sources.journal import JournalSource, JournalStream
from tests.sources.journal_file import Table

Break = Callable[[pytest.MonkeyPatch], None]

pytest_plugins = ["pytester"]


def changed(owner: Any, name: str, change: Callable[..., Any]) -> Break:
    """Give what a method returns, and its arguments, to `change`, and return what that returns."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        real = getattr(owner, name)
        patch.setattr(owner, name, lambda *given, **more: change(real(*given, **more), *given))

    return apply


def ignoring(owner: Any, name: str) -> Break:
    """A method that does nothing."""
    return lambda patch: patch.setattr(owner, name, lambda *given, **more: None)


def without_last(run: Run | None, *_: Any) -> Run | None:
    if run is None or not run.changes or run.changes[0][1].num_rows < 2:
        return run
    (schema, batch), *rest = run.changes
    return replace(run, changes=[(schema, batch.slice(0, batch.num_rows - 1)), *rest])


def beyond(found: tuple[Any, pa.RecordBatch], *_: Any) -> tuple[Any, pa.RecordBatch]:
    """Changes with a position behind that of their commit."""
    schema, batch = found
    rows = [{**row, "_lsn": row["_lsn"] + 1000} for row in batch.to_pylist()]
    return schema, pa.RecordBatch.from_pylist(rows, batch.schema)


def with_bound(keys: list[Any], table: Table, extent: Extent) -> list[Any]:
    """Both bounds belong to the extent."""
    lower = [] if extent.after is None else [journal.value_of(table, extent.after)]
    return [*(key for key in lower if key in table.rows), *keys]


def stale(lines: int) -> Callable[..., Table]:
    """Reads tables as they were some lines of the journal ago."""

    def readable(_: Table, source: JournalSource, table: TableName) -> Table:
        ends = [end for _, end, _ in source._journal.lines()]
        return source._journal.tables(upto=ends[-min(lines + 1, len(ends) - 2)])[table.name]

    return readable


def unlocked(source: JournalSource, table: TableName) -> Table:
    if table not in source.catalog():
        raise TableUnreadable(f"table {table} does not exist")
    return source._journal.tables()[table.name]


def begin_first(_: None, stream: JournalStream, source: JournalSource, *__: Any) -> None:
    stream.idle_position = next(source._journal.lines())[1]


def one_more(selection: Any, *_: Any) -> Any:
    rows = [{**row, "n": (row["n"] or 0) + 1} for row in selection.rows.to_pylist()]
    return replace(selection, rows=pa.RecordBatch.from_pylist(rows, selection.schema.arrow))


def without_old(found: tuple[Any, pa.RecordBatch], *_: Any) -> tuple[Any, pa.RecordBatch]:
    schema, batch = found
    names = [name for name in batch.schema.names if name != BEFORE]
    rows = [{name: row[name] for name in names} for row in batch.to_pylist()]
    return schema, pa.RecordBatch.from_pylist(rows, batch.schema)


def without_conditions(selection: Any, source: JournalSource, table: TableName, extent: Extent, *_: Any) -> Any:
    if extent.where is not None:
        raise TableUnreadable("a journal has no conditions")
    return selection


def with_all_columns(patch: pytest.MonkeyPatch) -> None:
    real = journal.schema_of
    patch.setattr(journal, "schema_of", lambda name, table, options: real(name, table, replace(options, columns=None)))


class Same(str):
    """A key that equals every other."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


BROKEN: dict[str, tuple[str, Break]] = {
    "a change is lost": ("every_commit", changed(JournalStream, "_run", without_last)),
    "a change lies behind its commit": ("every_commit", changed(JournalStream, "_batch", beyond)),
    "a stream begins too early": ("repeats_exactly", changed(JournalStream, "__init__", begin_first)),
    "a lost position is not noticed": ("lost_position", ignoring(JournalSource, "check_position")),
    "a watermark is lost": (
        "watermark_comes_back",
        changed(JournalStream, "_run", lambda run, *_: run and replace(run, token=None)),
    ),
    "a watermark's bound is too low": ("watermark_comes_back", changed(JournalSource, "write_watermark", lambda *_: 1)),
    "the high watermark is not reached": (
        "without_writing",
        changed(JournalSource, "high_watermark", lambda position, *_: position + 10),
    ),
    "rows are in two chunks": ("cuts_cover", changed(journal, "within", with_bound)),
    "the last rows are in no chunk": ("cuts_cover", changed(JournalSource, "last_key", lambda key, *_: key and ("7",))),
    "a select sees an earlier state": ("select_sees", changed(JournalSource, "_readable", stale(1))),
    "a dump sees an earlier state": ("somebody_writes", changed(JournalSource, "_readable", stale(100))),
    "values of dump and log differ": ("equals_the_same_row", changed(JournalSource, "select", one_more)),
    "an empty table cannot be dumped": ("empty_table", changed(JournalSource, "select", without_conditions)),
    "columns come that were not chosen": ("chosen_columns", with_all_columns),
    "another key is not noticed": ("cannot_be_read", changed(JournalSource, "key", lambda key, *_: Same(key))),
    "a lock is not noticed": ("cannot_be_read", lambda patch: patch.setattr(JournalSource, "_readable", unlocked)),
    "a new table is not seen": (
        "new_table_joins",
        changed(JournalSource, "survey", lambda survey, *_: Survey(dict(list(survey.tables.items())[:1]))),
    ),
    "a new table is not admitted": (
        "new_table_joins",
        changed(JournalSource, "admit", lambda admission, *_: Admitted({}, admission.position)),
    ),
    "a new column is not told": ("new_column", changed(JournalStream, "redefined", lambda *_: False)),
    "old rows do not come": (
        "old_row_comes",
        changed(JournalStream, "_batch", without_old),
    ),
}


def run(pytester: pytest.Pytester, which: str) -> dict[str, int]:
    pytester.makepyfile("from tests.sources.test_sources import TestJournal")
    return pytester.runpytest_inprocess("-q", "-x", "-k", which, "-p", "no:cacheprovider").parseoutcomes()


@pytest.mark.parametrize("fault", BROKEN)
def test_a_wrong_source_fails(fault: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    which, broken = BROKEN[fault]
    broken(monkeypatch)
    monkeypatch.setattr("tests.sources.suite.SECONDS", 5.0 if which == "somebody_writes" else 1.0)
    outcome = run(pytester, which)
    assert outcome["failed"] == 1
    assert "errors" not in outcome


def test_the_same_tests_pass_when_the_source_is_right(pytester: pytest.Pytester) -> None:
    which = dict.fromkeys(which for which, _ in BROKEN.values())
    outcome = run(pytester, " or ".join(which))
    assert outcome["passed"] >= len(which)
    assert outcome.keys() <= {"passed", "deselected", "warnings"}
