"""Folders of Delta tables with odd names: delta-rs finds each table where it was made."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import LongType

from dblog.core.schema import TableName
from dblog.sinks.folder import Folder, delta_folder_name
from dblog.sinks.lake.native.delta import DeltaFolder

NAMES = (
    "t",
    "a.b",
    "a/b",
    "a%2Eb",
    "a~2Eb",
    "..",
    "back\\slash",
    "tab\tline\n",
    "a b",
    "a*b?[c]#",
    "\U0001f418",
    "it's",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_of_any_name_is_made_and_found(tmp_path: Path, name: str) -> None:
    lake = DeltaFolder(Folder(str(tmp_path)), "p")
    table = TableName("s", name)
    assert lake.find(table) is None
    lake.create(table, {"id": LongType()})
    assert lake.find(table) is not None
    assert [path.name for path in tmp_path.iterdir()] == [delta_folder_name(table)]


def test_no_two_tables_share_a_folder() -> None:
    tables = [TableName("s", name) for name in NAMES] + [TableName("s.a", "b"), TableName("s", "a~2E~7E2Eb")]
    assert len({delta_folder_name(table) for table in tables}) == len(tables)
