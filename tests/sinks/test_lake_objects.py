"""Lakes in object storage, written by the native writers, with the credentials of `[storage]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from dblog.core.settings import read_settings
from dblog.errors import SinkError
from dblog.sinks.base import Sink, SinkContext
from dblog.sinks.lake import DeltaSink, IcebergSink
from dblog.storage.put_if_absent import replaces_objects
from dblog.testing.object_server import ObjectServer
from tests.sinks.lakes import Source, T, change, read
from tests.sinks.replacing_storage import replacing

pytestmark = [pytest.mark.server, pytest.mark.spark]


class Lake:
    """A lake in a bucket, as the sink and as other programs see it."""

    def __init__(self, form: str, bucket: str, server: ObjectServer, folder: Path, spark: SparkSession) -> None:
        self.form, self.bucket, self.server, self.folder, self.spark = form, bucket, server, folder, spark

    def sink(self, **given: Any) -> Sink:
        kind = DeltaSink if self.form == "delta" else IcebergSink
        settings = {"path": self.bucket.replace("s3:", "s3a:") + "/lake", "writer": "native", **given}
        if self.form == "iceberg":
            settings |= {"catalog": "lake", "options": {"type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db"}}
        made = kind(
            read_settings("sink", settings, kind.settings), SinkContext("test", self.folder, self.server.storage)
        )
        made.check()
        made.open(self.spark)
        return made

    def rows(self) -> dict[int, tuple[Any, ...]]:
        if self.form == "delta":
            table = DeltaTable(f"{self.bucket}/lake/public.t", storage_options=self.server.storage.delta_options())
            found = table.to_pyarrow_table()
        else:
            uri = f"sqlite:///{self.folder}/catalog.db"
            catalog = load_catalog("lake", type="sql", uri=uri, **self.server.storage.iceberg_properties())
            found = catalog.load_table(("public", "t")).scan().to_arrow()
            assert isinstance(catalog, SqlCatalog)
            catalog.close()
        return {row["id"]: (row["n"], row["note"]) for row in found.to_pylist()}


@pytest.fixture(params=["delta", "iceberg"])
def lake(
    request: pytest.FixtureRequest, object_server: ObjectServer, bucket: str, tmp_path: Path, spark: SparkSession
) -> Lake:
    return Lake(request.param, bucket, object_server, tmp_path, spark)


def test_a_lake_in_a_bucket_follows_the_source(lake: Lake) -> None:
    batch = Source(lake.spark)
    sink = lake.sink()
    batches = [
        batch(read(10, 1, 1, "a"), read(10, 2, 2, "b"), read(10, 3, 3, "c")),
        batch(change("update", 20, 1, 5, None, unchanged=["note"]), change("delete", 21, 2)),
        batch(change("create", 30, 4, 4, "d"), change("update", 31, 3, 9, "cc")),
    ]
    for one in batches:
        sink.write(one)
    assert lake.rows() == {1: (5, "a"), 3: (9, "cc"), 4: (4, "d")}
    for one in batches:
        lake.sink().write(one)  # as after a crash, by another process
    assert lake.rows() == {1: (5, "a"), 3: (9, "cc"), 4: (4, "d")}
    sink.write(batch(change("truncate", 40), change("create", 41, 7, 7, "last")))
    assert lake.rows() == {7: (7, "last")}


def test_of_two_writers_of_one_batch_one_commits(lake: Lake) -> None:
    """Two processes have opened the table at the same version, as when a driver is believed dead: the storage lets
    only one of the two commits pass."""
    batch = Source(lake.spark)
    first, second = lake.sink(mode="log"), lake.sink(mode="log")
    begin = batch(change("create", 10, 1, 1, "a"))
    first.write(begin)
    second.write(begin)
    again = batch(change("create", 20, 2, 2, "b"))
    first.write(again)
    native = second._native  # type: ignore[attr-defined]
    known = native._known[T.table]
    known.refresh = lambda: None  # it does not see the commit of the first
    with pytest.raises(SinkError, match="somebody else writes to"):
        second.write(again)
    second.write(again)
    assert lake.rows() == {1: (1, "a"), 2: (2, "b")}


def test_wrong_keys_are_said_without_showing_them(lake: Lake) -> None:
    from dataclasses import replace

    right = lake.server.storage
    lake.server = type("Wrong", (), {"storage": replace(right, secret_key="not-the-secret")})()  # type: ignore[assignment]
    with pytest.raises(SinkError) as refused:
        lake.sink().write(Source(lake.spark)(change("create", 10, 1, 1, "a")))
    assert "not-the-secret" not in str(refused.value)
    assert str(right.secret_key) not in str(refused.value)


def test_a_storage_that_replaces_commits_is_refused(lake: Lake) -> None:
    """Delta's commits need put-if-absent. Those of Iceberg are made in the catalog."""
    before = lake.server.names(lake.bucket)
    right, kept = lake.server, replaces_objects(lake.server.storage, lake.bucket)
    with replacing(lake.server.storage) as storage:
        assert (kept, replaces_objects(storage, lake.bucket)) == (False, True)
        lake.server = type("Replacing", (), {"storage": storage})()  # type: ignore[assignment]
        if lake.form == "delta":
            with pytest.raises(SinkError, match=r"'s3a://\S+/lake' ignores If-None-Match") as refused:
                lake.sink()
            assert "conditional writes" in str(refused.value)
        else:
            lake.sink()
    assert right.names(lake.bucket) == before == []
