"""Iceberg tables by pyiceberg, in a folder with a SQLite catalog: commits, conflicts, marks, bounds, foreign tables."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, NestedField, UUIDType
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    LongType,
    StringType,
    TimestampNTZType,
)
from pyspark.sql.types import IntegerType as Int

from dblog.core.schema import TableName
from dblog.errors import SinkError, SinkUnreachable
from dblog.sinks.lake.marks import BatchMark, iceberg_mark
from dblog.sinks.lake.native import iceberg_commit
from dblog.sinks.lake.native.files import NewFile
from dblog.sinks.lake.native.iceberg import IcebergCatalog, IcebergTable
from dblog.sinks.lake.native.iceberg_catalog import OpenCatalog

T = TableName("public", "t")
COLUMNS: dict[str, DataType] = {"id": Int(), "note": StringType(), "_lsn": LongType(), "_seq": Int()}


@pytest.fixture
def lake(tmp_path: Path) -> IcebergCatalog:
    return opened(tmp_path)


def opened(folder: Path, pipeline: str = "p") -> IcebergCatalog:
    """The tables, as another process opens them."""
    return IcebergCatalog(OpenCatalog("lake", options(folder), folder), None, pipeline)


def options(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder)}


@pytest.fixture
def foreign(lake: IcebergCatalog, tmp_path: Path) -> Catalog:
    """The catalog as another program opens it, which knows nothing of ours."""
    lake.find(T)
    found = load_catalog("lake", **options(tmp_path))
    found.create_namespace_if_not_exists("public")
    return found


def rows(table: IcebergTable, ids: Sequence[int], note: str = "n") -> pa.Table:
    made = {"id": list(ids), "note": [note] * len(ids), "_lsn": [5] * len(ids), "_seq": [0] * len(ids)}
    return pa.table({f.name: pa.array(made.get(f.name, [None] * len(ids)), f.type) for f in table.files().schema})


def written(table: IcebergTable, ids: Sequence[int], note: str = "n") -> list[NewFile]:
    """Files that a task has written."""
    files = pickle.loads(pickle.dumps(table.files()))
    made: list[NewFile] = pickle.loads(pickle.dumps(files.write([rows(table, ids, note)])))
    return made


def ids(table: IcebergTable) -> list[int]:
    """The table as a task reads it."""
    table.refresh()
    found = [table.files().read(file, ["note", "id"]) for file in table.listed("id")]
    return sorted(i for t in found for i in t["id"].to_pylist())


def both(lake: IcebergCatalog, folder: Path) -> tuple[IcebergTable, IcebergTable]:
    """A table that two writers have opened at the same version."""
    other = opened(folder).find(T)
    mine = lake.find(T)
    assert mine is not None
    assert other is not None
    return mine, other


# -- commits ---------------------------------------------------------------------------------------------------------


def test_of_two_appends_to_the_same_version_the_second_fails(lake: IcebergCatalog, tmp_path: Path) -> None:
    lake.create(T, COLUMNS)
    for first in (1, 11):  # onto no snapshot, and onto one
        mine, other = both(lake, tmp_path)
        mine.commit(written(mine, [first]), [], BatchMark(first, 10))
        with pytest.raises(SinkUnreachable, match=r"somebody else writes to lake\.public\.t"):
            other.commit(written(other, [first]), [], BatchMark(first, 10))
    assert ids(mine) == [1, 11]


def test_of_two_commits_that_replace_the_same_file_the_second_fails(lake: IcebergCatalog, tmp_path: Path) -> None:
    made = lake.create(T, COLUMNS)
    made.commit(written(made, [1, 2]), [], BatchMark(0, 10))
    mine, other = both(lake, tmp_path)
    mine.commit(written(mine, [1, 3]), mine.listed("id"), BatchMark(1, 20))
    with pytest.raises(SinkUnreachable, match="somebody else"):
        other.commit(written(other, [2, 4]), other.listed("id"), BatchMark(1, 20))
    assert ids(mine) == [1, 3]


def test_a_file_that_is_no_longer_there_is_not_replaced(lake: IcebergCatalog, tmp_path: Path) -> None:
    made = lake.create(T, COLUMNS)
    made.commit(written(made, [1]), [], BatchMark(0, 10))
    mine, other = both(lake, tmp_path)
    old = other.listed("id")
    mine.commit(written(mine, [2]), mine.listed("id"), BatchMark(1, 20))
    other.refresh()
    with pytest.raises(SinkUnreachable, match="no longer has the files"):
        other.commit(written(other, [3]), old, BatchMark(2, 30))
    assert ids(mine) == [2]


def test_a_commit_fails_if_another_writer_has_changed_the_columns(lake: IcebergCatalog, tmp_path: Path) -> None:
    lake.create(T, COLUMNS)
    mine, other = both(lake, tmp_path)
    new = written(mine, [1])
    other.change({"more": StringType()}, {})
    with pytest.raises(SinkUnreachable, match="somebody else"):
        mine.commit(new, [], BatchMark(0, 10))


def test_a_table_that_was_made_anew_is_not_taken_for_the_old_one(lake: IcebergCatalog, foreign: Catalog) -> None:
    mine = lake.create(T, COLUMNS)
    mine.commit(written(mine, [1]), [], BatchMark(0, 10))
    foreign.drop_table(("public", "t"))
    with pytest.raises(SinkError, match="does not exist"):
        mine.refresh()
    lake.create(T, COLUMNS)
    with pytest.raises(SinkError, match="made anew"):
        mine.refresh()
    with pytest.raises(SinkUnreachable):
        mine.commit([], [], BatchMark(1, 20))


def test_a_batch_that_adds_and_removes_nothing_has_a_mark(lake: IcebergCatalog, foreign: Catalog) -> None:
    made = lake.create(T, COLUMNS)
    made.commit([], [], BatchMark(0, 10))
    assert (made.last_mark(), ids(made)) == (BatchMark(0, 10), [])
    made.commit(written(made, [1]), [], BatchMark(1, 20))
    made.commit([], made.listed("id"), BatchMark(2, 30))
    made.refresh()
    made.commit([], [], BatchMark(3, 40))
    assert (made.last_mark(), ids(made)) == (BatchMark(3, 40), [])
    found = foreign.load_table(("public", "t"))
    assert [s.summary.operation.value for s in found.snapshots() if s.summary] == [
        "append", "append", "delete", "append",
    ]  # fmt: skip
    assert found.scan().to_arrow().num_rows == 0


def test_manifests_and_old_metadata_do_not_pile_up(lake: IcebergCatalog, foreign: Catalog, tmp_path: Path) -> None:
    replaced = lake.create(T, COLUMNS)
    for batch in range(30):
        replaced.commit(written(replaced, [batch]), replaced.listed("id"), BatchMark(batch, batch))
        replaced.refresh()
    appended = lake.create(TableName("public", "log"), COLUMNS)
    for batch in range(iceberg_commit.MERGE_MANIFESTS + 10):
        appended.commit(written(appended, [batch]), [], BatchMark(batch, batch))
    found = foreign.load_table(("public", "t"))
    assert len(manifests(found)) == 1
    assert found.scan().to_arrow()["id"].to_pylist() == [29]
    log = foreign.load_table(("public", "log"))
    assert len(manifests(log)) <= iceberg_commit.MERGE_MANIFESTS
    assert ids(appended) == sorted(log.scan().to_arrow()["id"].to_pylist()) == list(range(batch + 1))
    entries = [entry for manifest in manifests(log) for entry in manifest.fetch_manifest_entry(log.io)]
    assert sorted(entry.sequence_number or 0 for entry in entries) == list(range(1, batch + 2))
    summary = log.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert summary["total-records"] == str(batch + 1)
    assert len(list((tmp_path / "public" / "log" / "metadata").glob("*.metadata.json"))) <= 21


def manifests(table: Table) -> list[ManifestFile]:
    current = table.current_snapshot()
    return [] if current is None else current.manifests(table.io)


def test_many_tables_are_written_at_the_same_time(tmp_path: Path) -> None:
    """From the threads of two processes: none of them finds the database locked."""

    def write(lake: IcebergCatalog, number: int) -> list[int]:
        table = lake.create(TableName(f"s{number % 2}", f"t{number}"), COLUMNS)
        for batch in range(5):
            table.refresh()
            table.commit(written(table, [batch]), [], BatchMark(batch, batch))
        return ids(table)

    lakes = [opened(tmp_path), opened(tmp_path)]
    for lake in lakes:
        lake.find(T)
    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(lambda n: write(lakes[n % 4 // 2], n), range(16)))
    assert done == [[0, 1, 2, 3, 4]] * 16


# -- marks -----------------------------------------------------------------------------------------------------------


def test_a_mark_of_sparks_writer_counts_if_it_is_later(lake: IcebergCatalog, foreign: Catalog) -> None:
    made = lake.create(T, COLUMNS)
    made.commit(written(made, [1]), [], BatchMark(3, 30))
    found = foreign.load_table(("public", "t"))
    found.append(rows(made, [2]), snapshot_properties=iceberg_mark(BatchMark(4, 40), "p"))
    found.append(rows(made, [3]), snapshot_properties=iceberg_mark(BatchMark(9, 90), "another pipeline"))
    made.refresh()
    assert made.last_mark() == BatchMark(4, 40)
    made.commit(written(made, [3]), [], BatchMark(5, 50))
    assert made.last_mark() == BatchMark(5, 50)


def test_a_mark_stays_when_its_snapshot_is_expired(lake: IcebergCatalog, foreign: Catalog, tmp_path: Path) -> None:
    made = lake.create(T, COLUMNS)
    made.commit(written(made, [1]), [], BatchMark(3, 30))
    found = foreign.load_table(("public", "t"))
    ours = found.snapshots()[-1].snapshot_id
    found.append(rows(made, [2]))
    found.maintenance.expire_snapshots().by_id(ours).commit()
    again = opened(tmp_path).find(T)
    assert again is not None
    assert again.last_mark() == BatchMark(3, 30)
    found.append(rows(made, [2]), snapshot_properties=iceberg_mark(BatchMark(4, 40), "p"))
    again.refresh()
    assert again.last_mark() == BatchMark(4, 40)
    other = opened(tmp_path, "other").find(T)
    assert other is not None
    assert other.last_mark() is None


def test_a_commit_that_was_rolled_back_has_no_mark(lake: IcebergCatalog, foreign: Catalog) -> None:
    made = lake.create(T, COLUMNS)
    made.commit(written(made, [1]), [], BatchMark(3, 30))
    made.commit(written(made, [2]), [], BatchMark(4, 40))
    found = foreign.load_table(("public", "t"))
    found.manage_snapshots().rollback_to_snapshot(found.snapshots()[0].snapshot_id).commit()
    made.refresh()
    assert (made.last_mark(), ids(made)) == (BatchMark(3, 30), [1])


# -- columns ---------------------------------------------------------------------------------------------------------


def test_files_from_before_a_change_of_columns_are_read(lake: IcebergCatalog) -> None:
    odd: dict[str, DataType] = {"a.b": StringType(), "two words": Int(), "l": ArrayType(Int()), "d": DecimalType(5, 2)}
    made = lake.create(T, {**COLUMNS, **odd})
    made.commit(written(made, [1]), [], BatchMark(0, 10))
    wider: dict[str, DataType] = {"ID": LongType(), "two words": LongType(), "l": ArrayType(LongType())}
    made.change({"new.one": ArrayType(StringType()), "e": DateType()}, {**wider, "d": DecimalType(9, 2)})
    assert made.columns["id"] == LongType()
    assert made.columns["l"] == ArrayType(LongType())
    made.commit(written(made, [5_000_000_000]), [], BatchMark(1, 20))
    made.refresh()
    assert [f.bounds for f in made.listed("id")] == [(5_000_000_000, 5_000_000_000), (1, 1)]
    names = ["new.one", "two words", "a.b", "id"]
    found = [made.files().read(file, names) for file in made.listed("id")]
    assert [t.schema for t in found] == [pa.schema([made.files().schema.field(n) for n in names])] * 2
    assert sorted(i for t in found for i in t["id"].to_pylist()) == [1, 5_000_000_000]


@pytest.mark.parametrize("kind", [DecimalType(20, 0), TimestampNTZType()])
def test_types_widen_as_far_as_iceberg_allows(lake: IcebergCatalog, kind: DataType) -> None:
    made = lake.create(T, COLUMNS)
    with pytest.raises(SinkError, match=r"'id' of lake\.public\.t cannot become") as raised:
        made.change({}, {"id": kind})
    assert raised.value.hint is not None
    assert "schema_changes = ignore" in raised.value.hint


# -- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        ["a"],
        ["prefix of sixteen characters " + c for c in "abz"],
        ["\U0010ffff" * 20, "\U0010ffff" * 17 + "a"],
        ["\ud7ff" * 20],
        ["ü" * 20, "\0"],
    ],
)
def test_bounds_of_texts_enclose_them(lake: IcebergCatalog, keys: list[str]) -> None:
    made = lake.create(T, {"key": StringType(), "_lsn": LongType()})
    table = pa.table({"key": keys, "_lsn": pa.array([7] * len(keys), pa.int64())})
    made.commit(made.files().write([table]), [], BatchMark(0, 10))
    (file,) = made.listed("key")
    assert file.newest == 7
    assert file.bounds is None or all(file.bounds[0] <= key <= file.bounds[1] for key in keys)
    assert file.bounds is not None or keys[0][0] in "\U0010ffff\ud7ff"  # there is no text after it that pyiceberg finds


def test_dates_that_python_does_not_have_are_written(lake: IcebergCatalog) -> None:
    columns: dict[str, DataType] = {"id": Int(), "d": DateType(), "t": TimestampNTZType(), "_lsn": LongType()}
    made = lake.create(T, columns)
    far = pa.table([[1], [2**31 - 1], [2**63 - 1], [7]], schema=pa.schema([(n, pa.int64()) for n in columns]))
    kinds = made.files().schema
    table = pa.table([far[0].cast(pa.int32()), far[1].cast(pa.int32()).cast(pa.date32()), far[2].cast(pa.timestamp("us")), far[3]], schema=kinds)  # fmt: skip  # noqa: E501
    made.commit(made.files().write([table]), [], BatchMark(0, 10))
    assert [(f.bounds, f.newest) for f in made.listed("id")] == [((1, 1), 7)]
    assert made.listed("d")[0].bounds is None
    assert made.files().read(made.listed("d")[0], ["d"])["d"].cast(pa.int32()).to_pylist() == [2**31 - 1]


def test_bounds_of_dates_are_dates(lake: IcebergCatalog) -> None:
    made = lake.create(T, {"d": DateType(), "_lsn": LongType()})
    days = [datetime.date(1, 1, 1), datetime.date(2024, 2, 29)]
    made.commit(made.files().write([pa.table({"d": days, "_lsn": [1, 2]})]), [], BatchMark(0, 10))
    assert made.listed("d")[0].bounds == tuple(days)


# -- tables of others ------------------------------------------------------------------------------------------------


def test_rows_that_another_writer_has_deleted_by_position_stay_deleted(lake: IcebergCatalog, foreign: Catalog) -> None:
    made = lake.create(T, COLUMNS)
    made.commit(written(made, [1, 2, 3]), [], BatchMark(0, 10))
    found = foreign.load_table(("public", "t"))
    delete(found, made.listed("id")[0].name, 1)
    assert (ids(made), made.unsupported) == ([1, 3], None)
    (file,) = made.listed("id")
    kept = pickle.loads(pickle.dumps(made.files())).read(file, made.files().schema.names)
    new = made.files().write([pa.concat_tables([kept, rows(made, [4])])])
    made.commit(new, [file], BatchMark(1, 20))
    assert ids(made) == [1, 3, 4]
    found.refresh()
    assert sorted(found.scan().to_arrow()["id"].to_pylist()) == [1, 3, 4]


def test_tables_that_need_sparks_writer_say_why(lake: IcebergCatalog, foreign: Catalog) -> None:
    plain = Schema(NestedField(1, "id", IntegerType(), required=False))
    identity = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    cases: dict[str, tuple[Schema, dict[str, Any]]] = {
        "it is or was partitioned": (plain, {"partition_spec": identity}),
        "it has the format version 1": (plain, {"properties": {"format-version": "1"}}),
        "types that are not written: u (uuid)": (Schema(NestedField(1, "u", UUIDType(), required=False)), {}),
        "cannot be null: id": (Schema(NestedField(1, "id", IntegerType(), required=True)), {}),
    }
    for number, (why, (schema, given)) in enumerate(cases.items()):
        foreign.create_table(("public", f"t{number}"), schema, **given)
        table = lake.find(TableName("public", f"t{number}"))
        assert table is not None
        assert why in (table.unsupported or "")
    made = lake.create(T, COLUMNS)
    made.commit(written(made, [1]), [], BatchMark(0, 10))
    delete(foreign.load_table(("public", "t")), "", 0, DataFileContent.EQUALITY_DELETES)
    made.refresh()
    assert made.unsupported == "it has equality deletes"


class DeleteManifestWriter(ManifestWriterV2):
    """Writes manifests of delete files, which pyiceberg does not."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete(table: Table, path: str, position: int, content: DataFileContent = DataFileContent.POSITION_DELETES) -> None:
    """Delete a row by its position in a file, as Spark does with merge-on-read."""
    name = f"{table.location()}/data/delete.parquet"
    ids = {"file_path": (2147483546, pa.string()), "pos": (2147483545, pa.int64())}
    fields = [pa.field(n, k, metadata={"PARQUET:field_id": str(i)}) for n, (i, k) in ids.items()]
    pq.write_table(pa.table([[path], [position]], schema=pa.schema(fields)), name)
    file = DataFile.from_args(
        content=content, file_path=name, file_format=FileFormat.PARQUET, partition=Record(), record_count=1,
        file_size_in_bytes=Path(name).stat().st_size, equality_ids=[1] if content.value == 2 else None,
    )  # fmt: skip
    file.spec_id = 0
    transaction = table.transaction()
    producer = transaction.update_snapshot(snapshot_properties={"total-delete-files": "1"}).fast_append()

    def manifests() -> list[ManifestFile]:
        output = producer.new_manifest_output()
        with DeleteManifestWriter(table.spec(), table.schema(), output, producer.snapshot_id, "deflate") as writer:
            writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=file))
        return [writer.to_manifest_file(), *producer._existing_manifests()]

    producer._manifests = manifests  # type: ignore[method-assign]
    producer._summary = summarised(producer._summary)  # type: ignore[method-assign]
    producer.commit()
    transaction.commit_transaction()


def summarised(real: Any) -> Any:
    def summary(given: Mapping[str, str]) -> Any:
        made = real({})
        made["total-delete-files"] = "1"
        return made

    return summary
