"""The spool on object storage: the same guarantees, and no reader ever sees a part of a file."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from dblog.capture import storage
from dblog.capture.spool import Spool
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import SpoolError
from dblog.storage.object_storage import ObjectStorage
from dblog.testing.object_server import ObjectServer
from dblog.work.tasks import Emit, Log, Select
from tests.engine.conftest import MakeQuery, on_families, rows_of
from tests.engine.query import Query
from tests.engine.writers import create_hot, versions_of, writers
from tests.families import AnyDatabase

pytestmark = pytest.mark.server
ROWS = 100
T = TableSchema(TableName("public", "t"), (Column("id", "bigint", pa.int64()),), ("id",))

Take = Callable[[pa.RecordBatch], None]


def rows(*ids: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids, pa.int64())], schema=T.arrow)


@pytest.fixture
def spool(object_server: ObjectServer, bucket: str) -> Spool:
    return Spool(f"{bucket}/spool", object_server.storage)


@pytest.fixture
def on_objects(object_server: ObjectServer, bucket: str, query: MakeQuery, tmp_path: Path) -> MakeQuery:
    """Makes queries whose spool is in a bucket."""

    def make(**options: object) -> Query:
        options |= {"spool": f"{bucket}/spool", "state": str(tmp_path / "state"), **object_server.storage.options()}
        return query(**options)

    return make


@on_families
def test_a_dump_under_concurrent_writers_converges_over_many_lives(
    database: AnyDatabase, on_objects: MakeQuery, object_server: ObjectServer, bucket: str
) -> None:
    create_hot(database, ROWS)
    stream = on_objects(chunkRows=10, parallelism=3)
    with writers(database, 4, ROWS, rate=200):
        for turn in range(9):
            if not stream.plan():
                continue
            if turn % 3 == 1:
                stream.history.deliver(stream.done, stream.rows(stream.work(), Log, Emit, Select))
            if turn % 3 == 2:
                stream.finish()
            stream.restart()
        stream.dump()
    stream.catch_up()
    stream.history.check_order()
    stream.history.check_versions(versions_of(database))
    stream.history.check_state(rows_of(database))
    secrets = [object_server.storage.secret_key, object_server.storage.access_key]
    for name, content in object_server.objects(f"{bucket}/spool").items():
        assert not any(secret and secret.encode() in content for secret in secrets), name
    assert not any(secret and secret in str(stream.offsets) for secret in secrets)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_each_scheme_means_the_same_bucket(object_server: ObjectServer, bucket: str, scheme: str) -> None:
    uri = bucket.replace("s3://", f"{scheme}://")
    Spool(f"{uri}/spool", object_server.storage).note("c-0", {"rows": 7})
    assert Spool(f"{bucket}/spool", object_server.storage).noted("c-0") == {"rows": 7}


def test_the_other_side_of_a_pickle_has_the_credentials(spool: Spool) -> None:
    staged = spool.stage("c-0", T, lambda take: take(rows(1, 2)))
    copy = pickle.loads(pickle.dumps(spool))
    assert copy.staged("c-0") == staged
    assert [b.column("id").to_pylist() for b in copy.read_chunk("c-0", staged.stamp)[1]] == [[1, 2]]


def test_a_file_is_there_when_it_is_whole(spool: Spool, object_server: ObjectServer) -> None:
    def read(take: Take) -> None:
        take(rows(*range(2_000_000)))  # more than one request can send
        assert object_server.objects(spool.uri) == {}
        assert spool.staged("c-0") is None

    staged = spool.stage("c-0", T, read)
    assert spool.staged("c-0") == staged
    assert spool.size() == sum(map(len, object_server.objects(spool.uri).values())) > 16_000_000
    assert sum(b.num_rows for b in spool.read_chunk("c-0", staged.stamp)[1]) == 2_000_000


def test_an_interrupted_select_leaves_nothing(spool: Spool, object_server: ObjectServer) -> None:
    def read(take: Take) -> None:
        take(rows(1))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spool.stage("c-0", T, read)
    assert object_server.objects(spool.uri) == {}


def test_of_tasks_that_stage_a_chunk_at_once_the_rows_of_one_count(spool: Spool) -> None:
    """None of them sees the marker of another before it writes its own, and the last one counts. Its rows were read
    before the first task ended: within the window."""
    together = threading.Barrier(6)

    def stage(number: int) -> None:
        def read(take: Take) -> None:
            take(rows(number))
            together.wait()

        pickle.loads(pickle.dumps(spool)).stage("c-0", T, read)

    tasks = [threading.Thread(target=stage, args=(number,)) for number in range(6)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    pinned = spool.staged("c-0")
    assert pinned is not None
    (found,) = [b.column("id").to_pylist() for b in spool.read_chunk("c-0", pinned.stamp)[1]]
    assert len(found) == 1
    late = spool.stage("c-0", T, lambda take: take(rows(99)))
    assert (late, spool.staged("c-0")) == (pinned, pinned), "a task that ends later changes nothing"
    spool.remove_chunks(["c-0"])
    spool.sweep_chunks(())
    assert spool._list("chunk") == []


@pytest.mark.parametrize("at_once", [0, storage.AT_ONCE])
def test_some_columns_are_read_of_small_and_of_large_files(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(storage, "AT_ONCE", at_once)
    staged = spool.stage("c-0", T, lambda take: take(rows(1, 2)))
    schema, batches = spool.read_chunk("c-0", staged.stamp, ["id"])
    assert (schema, [b.to_pydict() for b in batches]) == (T, [{"id": [1, 2]}])


def test_wrong_keys_and_a_missing_bucket_are_clear_errors(object_server: ObjectServer, bucket: str) -> None:
    wrong = replace(object_server.storage, secret_key="not-the-secret-key")
    with pytest.raises(SpoolError, match="ACCESS_DENIED") as refused:
        Spool(f"{bucket}/spool", wrong).note("c-0", {})
    assert "endpoint and keys" in str(refused.value)
    assert "not-the-secret-key" not in str(refused.value)
    with pytest.raises(SpoolError, match="NO_SUCH_BUCKET"):
        Spool("s3://no-such-bucket/spool", object_server.storage).note("c-0", {})


def test_without_keys_those_of_the_environment_are_used(
    object_server: ObjectServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = object_server.storage
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", str(given.access_key))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", str(given.secret_key))
    Spool(f"{bucket}/spool", ObjectStorage(given.endpoint)).note("c-0", {"rows": 7})
    assert Spool(f"{bucket}/spool", given).noted("c-0") == {"rows": 7}


def test_no_folders_are_made(spool: Spool, object_server: ObjectServer) -> None:
    """They would be written by each task, for nothing."""
    spool.note("c-0", {})
    files, root = object_server.storage.arrow_filesystem(spool.uri)
    found = files.get_file_info(pafs.FileSelector(root, recursive=True))
    assert {info.path.removeprefix(f"{root}/") for info in found} == {"note", "note/c-0.json"}
