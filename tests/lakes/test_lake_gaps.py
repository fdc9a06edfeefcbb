"""The native writer of a lake is killed in every gap of a batch, and another process writes the batch again: every
table has it once."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog.core.schema import Column, TableName, TableSchema
from dblog.sinks.base import Batch
from dblog.sinks.lake.native import writer
from dblog.sinks.lake.native.delta import DeltaFolder, DeltaLakeTable
from dblog.sinks.lake.native.iceberg import IcebergCatalog, IcebergTable
from tests.lakes.native_lakes import LAKES, Killed, in_this_process, joined, killed, opened, shown
from tests.sinks.lakes import ID, NAME, NOTE, Lake, NativeDelta, NativeIceberg, Source, T, change, read

U = TableSchema(TableName("public", "u"), T.columns, ("id",))
WIDE = TableSchema(NAME, (ID, Column("n", "bigint", pa.int64()), NOTE, Column("more", "text", pa.string())), ("id",))
FORMATS = {"delta": (DeltaFolder, DeltaLakeTable), "iceberg": (IcebergCatalog, IcebergTable)}
GAPS = [
    ("create", 1, "after"),
    ("create", 2, "before"),
    ("change", 1, "before"),
    ("change", 1, "after"),
    ("files", 1, "before"),
    ("files", 1, "after"),
    ("commit", 1, "after"),
    ("commit", 2, "before"),
    ("commit", 2, "after"),
]
"""The step of the writer at which it is killed, which call of it, and whether before or after the call."""


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)
    monkeypatch.setattr(writer, "AT_ONCE", 1)


def batches() -> list[Batch]:
    """Of two tables: dumps, changes with new columns, a truncate."""
    both = Source(None), Source(None)  # type: ignore[arg-type]
    made = [
        (
            both[0](*(read(10, key, 0, f"row {key}") for key in range(1, 5))),
            both[1](*(read(10, key, 0, f"row {key}") for key in range(1, 5)), schema=U),
        ),
        (
            both[0](
                change("update", 20, 1, 5_000_000_000, None, "x", unchanged=["note"]),
                change("delete", 21, 2),
                change("create", 22, 7, 7, "seven", "y"),
                read(23, 3, 0, "row 3", "z"),
                schema=WIDE,
            ),
            both[1](change("update", 20, 1, 1, "one"), change("delete", 21, 2), schema=U),
        ),
        (
            both[0](change("delete", 30, 7), change("create", 31, 7, 8, "again", "y"), schema=WIDE),
            both[1](change("truncate", 30), change("create", 31, 9, 9, "nine"), schema=U),
        ),
    ]
    return [joined(*pair) for pair in made]


def marks(lake: Lake, table: TableName) -> list[str]:
    """The marks of a table's commits."""
    found: Any = lake.opened(table)  # type: ignore[attr-defined]
    if isinstance(lake, NativeDelta):
        return [commit["userMetadata"] for commit in found.history() if "userMetadata" in commit]
    assert isinstance(lake, NativeIceberg)
    return [s.summary["dblog-batch"] for s in found.snapshots() if "dblog-batch" in s.summary]


@pytest.mark.parametrize("mode", ["current", "history", "log"])
@pytest.mark.parametrize("kind", list(LAKES))
def test_a_batch_is_written_once_wherever_its_writer_is_killed(kind: str, mode: str, tmp_path: Path) -> None:
    whole = LAKES[kind](tmp_path / "whole", None)
    lakes = {gap: LAKES[kind](tmp_path / "-".join(map(str, gap)), None) for gap in GAPS}
    happened = dict.fromkeys(GAPS, 0)
    tables, table = FORMATS[kind]
    owners = {"create": tables, "change": table, "files": writer, "commit": table}
    for number, batch in enumerate(batches()):
        opened(whole, mode=mode).write(batch)
        wanted = [shown(whole, t.schema.table) for t in batch.tables]
        for (step, call, when), lake in lakes.items():
            named = "run_in_tasks" if step == "files" else step
            with suppress(Killed), killed(owners[step], named, call, after=when == "after"):
                opened(lake, mode=mode).write(batch)
                happened[step, call, when] -= 1
            happened[step, call, when] += 1
            for _ in range(2):
                opened(lake, mode=mode).write(batch)
                assert [shown(lake, t.schema.table) for t in batch.tables] == wanted, f"{step} {call} {when}, {number}"
            for t in batch.tables:
                found = marks(lake, t.schema.table)
                assert len(found) == len(set(found)) == number + 1, f"{step} {call} {when}: {found}"
    wanted_kills = {gap: 1 if gap[0] in ("create", "change") else 3 for gap in GAPS}
    assert happened == wanted_kills
