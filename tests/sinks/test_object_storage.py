"""Sinks whose files are in object storage, and the clients that lakes use there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

from dblog.capture.spool import Spool
from dblog.core.offset import Offset
from dblog.core.schema import TableName, TableSchema
from dblog.core.settings import read_settings
from dblog.errors import ConfigError, SinkError, SinkUnreachable
from dblog.pipelines.stream_folder import StreamFolder
from dblog.sinks.base import Sink, SinkContext
from dblog.sinks.http import HttpSink
from dblog.sinks.ndjson import NdjsonSink
from dblog.sinks.parquet import ParquetSink
from dblog.sinks.s3a import SDK, hadoop_release, s3a_settings
from dblog.storage.object_storage import NO_SETTINGS, ObjectStorage
from dblog.testing.object_server import ObjectServer
from tests.families import AnyDatabase
from tests.sinks.batches import T, batch, change, frame, read
from tests.sinks.endpoint import Endpoint
from tests.sinks.spooled import SpooledBatch

pytestmark = [pytest.mark.server, pytest.mark.spark]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    found = Endpoint()
    yield found
    found.close()


def sink(kind: type[Sink], storage: ObjectStorage, folder: Path, **given: Any) -> Any:
    return kind(read_settings("sink", given, kind.settings), SinkContext("shop", folder, storage))


def lines(server: ObjectServer, uri: str) -> dict[str, list[Any]]:
    """The JSON lines of each object below a URI, by the name in the folder."""
    root = uri.removeprefix("s3://")
    found = server.objects(uri)
    return {
        name.removeprefix(f"{root}/"): [json.loads(line) for line in content.splitlines()]
        for name, content in found.items()
    }


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_batch_of_ndjson_that_is_given_again_replaces_its_files(
    spark: SparkSession, object_server: ObjectServer, bucket: str, tmp_path: Path, scheme: str
) -> None:
    path = f"{bucket.replace('s3:', scheme + ':')}/out"
    files, root = object_server.storage.arrow_filesystem(f"{bucket}/out/public.t")
    for name in (f".{7:020d}-00000-dead.ndjson", f"{7:020d}-00004.ndjson"):  # as an attempt that was killed leaves them
        with files.open_output_stream(f"{root}/{name}") as stream:
            stream.write(b'{"half')
    for _ in range(2):
        changes = frame(spark, [change("create", n, n) for n in range(1, 7)], partitions=2)
        written = sink(NdjsonSink, object_server.storage, tmp_path, path=path)
        written.check()
        written.write(batch(7, changes, frame(spark, [read(9, 20)])))
    found = lines(object_server, f"{bucket}/out/public.t")
    assert sorted(found) == [f"{7:020d}-{part:05d}.ndjson" for part in range(3)]
    assert [line["key"]["id"] for name in sorted(found) for line in found[name]] == [*range(1, 7), 20]


def test_tasks_write_parquet_to_object_storage(
    spark: SparkSession, object_server: ObjectServer, bucket: str, tmp_path: Path
) -> None:
    """Arrow writes there, and Spark needs no library for it."""
    spooled = SpooledBatch(spark, Spool(str(tmp_path / "spool")))
    spooled.change(1, 2)
    spooled.dump(3, 4)
    files, root = object_server.storage.arrow_filesystem(f"{bucket}/out/public.t/batch=5")
    with files.open_output_stream(f"{root}/part-00007-dead.parquet") as stream:  # as a killed attempt leaves it
        stream.write(b"PAR1")
    for _ in range(2):
        written = sink(ParquetSink, object_server.storage, tmp_path, path=f"{bucket}/out")
        written.check()
        written.open(spark)
        written.write(spooled.batch(5))
    found = {info.base_name: info.path for info in files.get_file_info(pafs.FileSelector(root))}
    assert sorted(name[:10] for name in found) == ["_dblog", "part-00000", "part-00001"]
    tables = [pq.read_table(found[name], filesystem=files) for name in sorted(found) if name != "_dblog"]
    assert [row["id"] for table in tables for row in table.to_pylist()] == [1, 2, 3, 4]


def test_no_two_tables_share_a_folder(
    spark: SparkSession, object_server: ObjectServer, bucket: str, tmp_path: Path
) -> None:
    tables = [TableName("a.b", "c"), TableName("a", "b.c"), TableName("a", "what? why#1")]
    for table in tables:
        schema = TableSchema(table, T.columns, T.key)
        events = batch(1, frame(spark, [change("create", 1, 1)], schema), schema=schema)
        sink(NdjsonSink, object_server.storage, tmp_path, path=bucket).write(events)
    assert {name.partition("/")[0] for name in lines(object_server, bucket)} == {"a%2Eb.c", "a.b%2Ec", "a.what? why#1"}


def test_dead_letters_are_kept_in_object_storage(
    spark: SparkSession, object_server: ObjectServer, bucket: str, tmp_path: Path, endpoint: Endpoint
) -> None:
    endpoint.answer = lambda events: (400, {}, "no")
    given = {"url": endpoint.url, "dead_letter": f"{bucket}/letters"}
    http = sink(HttpSink, object_server.storage, tmp_path, **given)
    http.check()
    for _ in range(2):
        http.write(batch(3, frame(spark, [change("create", 1, 1)])))
    found = lines(object_server, f"{bucket}/letters/public.t")
    assert [len(letters) for letters in found.values()] == [1]


@pytest.mark.parametrize("kind", [NdjsonSink, ParquetSink])
def test_wrong_keys_and_a_missing_bucket_are_not_waited_for(
    object_server: ObjectServer, bucket: str, tmp_path: Path, kind: type[Sink]
) -> None:
    wrong = replace(object_server.storage, secret_key="not-the-secret-key")
    for storage, path in ((wrong, f"{bucket}/out"), (object_server.storage, "s3://no-such-bucket/out")):
        with pytest.raises(SinkError) as refused:
            sink(kind, storage, tmp_path, path=path).check()
        assert not isinstance(refused.value, SinkUnreachable)
        assert "bucket, endpoint and keys" in str(refused.value)
        assert "not-the-secret-key" not in str(refused.value)


def test_a_server_that_is_away_is_waited_for(object_server: ObjectServer, bucket: str, tmp_path: Path) -> None:
    object_server.kill()
    with pytest.raises(SinkUnreachable, match="NETWORK_CONNECTION"):
        sink(NdjsonSink, object_server.storage, tmp_path, path=f"{bucket}/out").check()
    object_server.start()
    sink(NdjsonSink, object_server.storage, tmp_path, path=f"{bucket}/out").check()


def test_spark_shows_no_keys_in_its_plans(
    spark: SparkSession, object_server: ObjectServer, bucket: str, database: AnyDatabase
) -> None:
    database.execute("create table t (id int primary key)")
    storage = object_server.storage
    stream = spark.readStream.format("dblog").options(url=database.url, table="t", spool=f"{bucket}/spool", state="off")
    plan = stream.options(**storage.options()).load()._jdf.queryExecution()  # type: ignore[operator]
    shown = f"{plan.toString()} {plan.logical().treeString()}"
    assert not [secret for secret in (storage.access_key, storage.secret_key) if secret and secret in shown]


def test_the_folder_of_a_stream_can_be_in_a_bucket(object_server: ObjectServer, bucket: str) -> None:
    folder = StreamFolder(f"{bucket}/kept", "lake", object_server.storage)
    assert (folder.name(), folder.resume_offset()) == (None, None)
    folder.remove_checkpoint()
    folder.make("shop")
    files, root = object_server.storage.arrow_filesystem(folder.checkpoint)
    for name in ("offsets/3", "offsets/4", "commits/3"):
        with files.open_output_stream(f"{root}/{name}") as stream:
            stream.write(f"v1\n{{}}\n{json.dumps(Offset(position=int(name[-1])).to_json())}".encode())
    again = StreamFolder(f"{bucket.replace('s3:', 's3a:')}/kept/", "lake", object_server.storage)
    assert again.name() == "shop"
    assert again.resume_offset() == Offset(position=3)
    again.remove_checkpoint()
    assert object_server.names(bucket) == [f"{bucket.removeprefix('s3://')}/kept/lake/stream"]


def test_the_folder_of_a_stream_that_is_away_is_not_taken_for_a_new_one(
    object_server: ObjectServer, bucket: str
) -> None:
    folder = StreamFolder(f"{bucket}/kept", "lake", object_server.storage)
    object_server.kill()
    for ask in (folder.name, folder.resume_offset):
        with pytest.raises(ConfigError, match="NETWORK_CONNECTION"):
            ask()


# -- what Spark needs ------------------------------------------------------------------------------------------------


def test_spark_fetches_the_s3a_of_its_hadoop() -> None:
    release = hadoop_release(Path(pyspark.__file__).parent / "jars")
    assert release in SDK
    found = s3a_settings("s3a://bucket/x", NO_SETTINGS)
    assert found["spark.jars.packages"].split(",")[0] == f"org.apache.hadoop:hadoop-aws:{release}"
    assert "software.amazon.awssdk:bundle" in found["spark.jars.excludes"]
    assert s3a_settings("hdfs://x/y", NO_SETTINGS) == s3a_settings("/x", NO_SETTINGS) == {}
    assert s3a_settings("s3://x", replace(NO_SETTINGS, package="none")) == {}
    assert s3a_settings("s3://x", replace(NO_SETTINGS, package="a:b:1")) == {"spark.jars.packages": "a:b:1"}


def test_a_hadoop_that_was_not_tested_gets_its_s3a_with_all_that_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=re.escape("storage.package")):
        s3a_settings("s3://x", NO_SETTINGS)
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "hadoop-client-api-3.9.1.jar").touch()
    assert hadoop_release(tmp_path / "jars") == "3.9.1"
    assert s3a_settings("s3://x", NO_SETTINGS) == {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.9.1"}


# -- lakes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_delta_rs_writes_with_the_same_credentials(object_server: ObjectServer, bucket: str, scheme: str) -> None:
    deltalake = pytest.importorskip("deltalake")
    options = object_server.storage.delta_options()
    uri = f"{bucket.replace('s3:', scheme + ':')}/table"
    rows = pa.table({"id": [1, 2]})
    for mode in ("overwrite", "append"):
        deltalake.write_deltalake(uri, rows, mode=mode, storage_options=options)
    assert deltalake.DeltaTable(uri, storage_options=options).version() == 1


def test_a_commit_of_delta_rs_that_another_made_first_is_a_conflict(object_server: ObjectServer, bucket: str) -> None:
    """The server keeps put-if-absent, on which the exactness of commits rests."""
    deltalake = pytest.importorskip("deltalake")
    options, uri = object_server.storage.delta_options(), f"{bucket}/table"
    deltalake.write_deltalake(uri, pa.table({"id": [1]}), storage_options=options)
    first, second = (deltalake.DeltaTable(uri, storage_options=options) for _ in range(2))
    first.delete("id = 1")
    with pytest.raises(deltalake.exceptions.CommitFailedError):
        second.delete("id = 1")


def test_pyiceberg_writes_with_the_same_credentials(object_server: ObjectServer, bucket: str, tmp_path: Path) -> None:
    catalogs = pytest.importorskip("pyiceberg.catalog.sql")
    properties = object_server.storage.iceberg_properties()
    place = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"{bucket}/lake"}
    catalog = catalogs.SqlCatalog("test", **place, **properties)
    catalog.create_namespace("public")
    rows = pa.table({"id": [1, 2]})
    table = catalog.create_table("public.t", schema=rows.schema)
    table.append(rows)
    assert catalog.load_table("public.t").scan().to_arrow().num_rows == 2
    catalog.close()
