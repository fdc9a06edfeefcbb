"""A batch that is read again from another server: files of tables that it has nothing of do not stay."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dblog.capture.repeat import read_again
from dblog.capture.spool import Spool
from dblog.core.event import truncation
from dblog.core.offset import Followed, Offset
from dblog.core.schema import Column, TableName, TableSchema
from dblog.sources.base import Commits, Run

SCHEMAS = [
    TableSchema(TableName("public", name), (Column("id", "bigint", pa.int64()),), ("id",), identity=identity)
    for name, identity in (("t", "1"), ("was", "2"), ("late", "3"))
]


class OneRun:
    """A log that has one transaction on all tables. It stands for the source, too."""

    passing = True

    def repeat(self, *at: object) -> OneRun:
        return self

    def read(self, timeout: float) -> list[Run]:
        self.passing = False
        one = np.array([1])
        commits = Commits(positions=np.array([9]), xids=one, rows=one, nbytes=one)
        return [Run([(s, truncation(s.arrow, 5, n, 1, 1)) for n, s in enumerate(SCHEMAS)], commits)]

    def close(self) -> None:
        pass


def test_only_the_files_of_the_batch_stay(tmp_path: Path) -> None:
    spool, source = Spool(str(tmp_path)), OneRun()
    known = {SCHEMAS[0].table: Followed("1"), TableName("public", "now"): Followed("2")}
    log: Any = source
    segments = read_again(log, spool, Offset(1, followed=known), Offset(9, followed=known), before=False)
    assert segments is not None
    files = [f for segment in segments for f in segment]
    assert [f.table.name for f in files] == ["t", "now"]
    assert {os.path.basename(f.path) for f in files} == set(os.listdir(tmp_path / "log"))
