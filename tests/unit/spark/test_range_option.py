"""The option `range` names a file of the spool. Whatever a user puts there, nothing is executed."""

from __future__ import annotations

import base64
import os
import pickle
import zlib
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from dblog.capture.spool import Spool
from dblog.errors import ConfigError
from dblog.spark.format import DBLogSource


class MakesFolder:
    """An object that, when it is unpickled, makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.folder),)


def refused(tmp_path: Path, **options: str) -> None:
    """Neither Spark's call for columns nor the one for partitions takes the options, and nothing is executed."""
    source = DBLogSource(options)
    for read in (source.schema, lambda: source.reader(StructType()).partitions()):
        with pytest.raises(ConfigError, match="option 'range'"):
            read()
        assert not (tmp_path / "made").exists()


def test_a_pickle_is_not_executed(tmp_path: Path) -> None:
    data = pickle.dumps(MakesFolder(tmp_path / "made"))
    for text in (base64.b64encode(zlib.compress(data, 1)).decode(), base64.b64encode(data).decode()):
        refused(tmp_path, range=text, spool=str(tmp_path / "spool"))


def test_a_file_with_a_pickle_is_not_executed(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"))
    name, path = spool.write_range_file([])
    Path(path).write_bytes(pickle.dumps(MakesFolder(tmp_path / "made")))
    refused(tmp_path, range=f"{name}.0", spool=spool.uri)


@pytest.mark.parametrize("name", ["../x", "x", "a/b", ""])
def test_a_name_outside_the_spool_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.jsonl").write_text("{}")
    refused(tmp_path, range=name, spool=str(tmp_path / "spool"))


def test_a_range_without_a_spool_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, range=f"{'a' * 32}.0")
