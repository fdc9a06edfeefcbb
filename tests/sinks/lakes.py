"""What the sinks of a lake do, on batches that are made up: no source is needed.

The same suite runs for each writer. The native one needs no connector, and runs on every PySpark. Spark's connectors
are built for one minor version of Spark: `tests/sinks/connectors` runs their tests on it.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table as IcebergTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from dblog.core.event import DUMP_SEQ
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import ConfigError, SinkError
from dblog.sinks.base import Batch, Sink, TableBatch
from dblog.sinks.folder import folder_name
from dblog.work.rows import Typed
from dblog.work.table_rows import TableRows
from tests.sinks.target import Key, Row, Target
from tests.spark.home import QUICK_START, local_session

NAME = TableName("public", "t")
ID, N, NOTE = (
    Column("id", "integer", pa.int32()),
    Column("n", "integer", pa.int32()),
    Column("note", "text", pa.string()),
)
T = TableSchema(NAME, (ID, N, NOTE), ("id",))
OURS = ("_lsn", "_seq", "valid_from", "valid_to")


class Lake(Target):
    """Tables in a folder, written by one of the writers."""

    writer = "spark"

    def __init__(self, folder: Path, spark: SparkSession | None) -> None:
        self.folder = folder
        self.spark: SparkSession = spark  # type: ignore[assignment]

    def settings(self) -> dict[str, Any]:
        return {"path": str(self.folder), "writer": self.writer}

    def table(self, table: TableName = NAME) -> str:
        """The table for Spark's SQL."""
        sink = self.make(self.folder)
        return sink._spark_tables().name(table)  # type: ignore[attr-defined,no-any-return]

    def commits(self) -> int:
        """How often the table has been written to."""
        raise NotImplementedError

    def all(self, table: TableName = NAME) -> list[Row]:
        try:
            found = self.spark.newSession().table(self.table(table))
        except Exception as error:
            if "cannot be found" in str(error) or "doesn't exist" in str(error) or "not exist" in str(error):
                return []
            raise
        return [row.asDict(recursive=True) for row in found.collect()]

    def rows(self, table: TableName) -> dict[Key, Row]:
        keys = (("id",), ("a", "b"), ("from",), ("key",))
        found = {}
        for row in self.all(table):
            key = next(key for key in keys if set(key) <= set(row))
            found[tuple(row[name] for name in key)] = {n: v for n, v in row.items() if n not in OURS}
        return found


class Delta(Lake):
    sink = "delta"

    def commits(self) -> int:
        return self.spark.sql(f"DESCRIBE HISTORY {self.table()}").count()


class CatalogDelta(Delta):
    """In Spark's own catalog, with a database for each test."""

    def __init__(self, folder: Path, spark: SparkSession | None) -> None:
        super().__init__(folder, spark)
        self.database = f"d{uuid.uuid4().hex}"

    def settings(self) -> dict[str, Any]:
        return {"catalog": "spark_catalog", "database": self.database}


class NativeDelta(Lake):
    """Written by Python, and read by delta-rs."""

    sink = "delta"
    writer = "native"

    def opened(self, table: TableName = NAME) -> DeltaTable | None:
        uri = f"{self.folder}/{folder_name(table)}"
        return DeltaTable(uri) if DeltaTable.is_deltatable(uri) else None

    def commits(self) -> int:
        found = self.opened()
        assert found is not None
        return found.version()

    def all(self, table: TableName = NAME) -> list[Row]:
        found = self.opened(table)
        return [] if found is None else found.to_pyarrow_table().to_pylist()


class Iceberg(Lake):
    """A catalog is set up when Spark starts, so that the tests have a database each."""

    sink = "iceberg"

    def __init__(self, folder: Path, spark: SparkSession | None) -> None:
        super().__init__(folder, spark)
        self.database = uuid.uuid4().hex

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "database": self.database}

    def commits(self) -> int:
        return self.spark.table(f"{self.table()}.snapshots").count()


class NativeIceberg(Lake):
    """Written by Python, and read by pyiceberg: in a folder with a catalog of its own."""

    sink = "iceberg"
    writer = "native"

    @cached_property
    def catalog(self) -> Catalog:
        """As another program opens it, which knows nothing of the sink."""
        return load_catalog("lake", type="sql", uri=f"sqlite:///{self.folder}/catalog.db")

    def opened(self, table: TableName = NAME) -> IcebergTable | None:
        if not self.folder.exists():
            return None
        try:
            return self.catalog.load_table((table.schema or "default", table.name))
        except NoSuchTableError:
            return None

    def commits(self) -> int:
        found = self.opened()
        assert found is not None
        return len(found.snapshots())

    def all(self, table: TableName = NAME) -> list[Row]:
        found = self.opened(table)
        return [] if found is None else found.scan().to_arrow().to_pylist()


class CatalogIceberg(NativeIceberg):
    """In a catalog that is named, with a database for each test."""

    def __init__(self, folder: Path, spark: SparkSession | None, **options: str) -> None:
        super().__init__(folder, spark)
        self.options = options
        self.database = f"d{uuid.uuid4().hex}"

    def settings(self) -> dict[str, Any]:
        return {"catalog": "prod", "options": self.options, "database": self.database, "writer": self.writer}

    @cached_property
    def catalog(self) -> Catalog:
        return load_catalog("prod", **self.options)

    def opened(self, table: TableName = NAME) -> IcebergTable | None:
        try:
            return self.catalog.load_table((self.database, table.name))
        except NoSuchTableError:
            return None


def lake_session(sink: Sink, folder: Path) -> Iterator[SparkSession]:
    settings = {
        **sink.spark_settings,
        "spark.driver.extraJavaOptions": f"-Xss16m {QUICK_START}",
        "spark.python.authenticate.socketTimeout": "2m",  # a busy machine is slow, not wrong
    }
    yield from local_session(folder / "warehouse", settings)


# -- batches ---------------------------------------------------------------------------------------------------------


def at(lsn: int) -> datetime.datetime:
    """When what has this position was committed."""
    return datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=lsn)


def change(op: str, lsn: int, key: int | None = None, *values: Any, seq: int = 0, unchanged: Any = None) -> Row:
    return {"op": op, "lsn": lsn, "seq": seq, "values": (key, *values), "committed": at(lsn), "unchanged": unchanged}


def read(lsn: int, key: int, *values: Any) -> Row:
    return {"op": "read", "lsn": lsn, "seq": DUMP_SEQ, "values": (key, *values), "dump": "initial"}


class Source:
    """Makes batches, as a stream would number them."""

    def __init__(self, spark: SparkSession, first: int = 0) -> None:
        self.spark = spark
        self.next = first

    def __call__(self, *events: Row, schema: TableSchema = T) -> Batch:
        changes, rows = [e for e in events if e["op"] != "read"], [e for e in events if e["op"] == "read"]
        truncates = [(e["lsn"], e["seq"]) for e in changes if e["op"] == "truncate"]
        table = TableBatch(
            schema.table,
            schema,
            partial(self._frame, changes, schema) if changes else None,
            partial(self._frame, rows, schema) if rows else None,
            max(truncates, default=None),
            any(e["unchanged"] for e in changes),
            MadeRows(_arrow(changes, schema), _arrow(rows, schema)),
        )
        self.next += 1
        return Batch(self.next - 1, max(e["lsn"] for e in events) + 1, (table,))

    def _frame(self, events: list[Row], schema: TableSchema) -> DataFrame:
        kind = from_arrow_schema(Typed(schema, before=False).arrow, prefer_timestamp_ntz=True)
        return self.spark.createDataFrame(_tuples(events, schema), kind)


def _tuples(events: list[Row], schema: TableSchema) -> list[tuple[Any, ...]]:
    width = len(schema.columns)
    return [
        (
            *(e["values"][n] if n < len(e["values"]) else None for n in range(width)),
            *(e["op"], e["lsn"], e["seq"], 1),
            *(e.get("committed"), e.get("dump"), schema.version, e.get("unchanged"), None),
        )
        for e in events
    ]


def _arrow(events: list[Row], schema: TableSchema) -> tuple[pa.RecordBatch, ...]:
    kind = Typed(schema, before=False).arrow
    columns = zip(*_tuples(events, schema), strict=True)
    made = [pa.array(list(column), field.type) for column, field in zip(columns, kind, strict=False)]
    return (pa.RecordBatch.from_arrays(made, schema=kind),) if events else ()


@dataclass(frozen=True)
class MadeRows(TableRows):
    """Rows that do not come from a spool. Each record batch is a part."""

    _changes: tuple[pa.RecordBatch, ...] = ()
    _rows: tuple[pa.RecordBatch, ...] = ()

    def __init__(
        self, changes: tuple[pa.RecordBatch, ...], rows: tuple[pa.RecordBatch, ...], *, overlapping: bool = False
    ) -> None:
        object.__setattr__(self, "_changes", changes)
        object.__setattr__(self, "_rows", rows)
        object.__setattr__(self, "overlapping", overlapping)

    def changes(self) -> Iterator[pa.RecordBatch]:
        return iter(self._changes)

    def dump_rows(self) -> Iterator[pa.RecordBatch]:
        return iter(self._rows)

    def split(self) -> list[TableRows]:
        parts = [MadeRows((), (rows,)) for rows in self._rows]
        return [MadeRows(self._changes, ()), *parts] if self._changes else list(parts)

    @property
    def weight(self) -> int:
        return sum(batch.nbytes for batch in (*self._changes, *self._rows))


# -- the tests -------------------------------------------------------------------------------------------------------


class LakeSuite:
    @pytest.fixture
    def target(self) -> Lake:
        raise NotImplementedError

    @pytest.fixture
    def batch(self, spark: SparkSession) -> Source:
        return Source(spark)

    def opened(self, target: Lake, **settings: Any) -> Sink:
        sink = target.make(target.folder, **{"maintain": "off", **settings})  # a test leaves many of them open
        sink.open(target.spark)
        return sink

    def state(self, target: Lake) -> dict[int, tuple[Any, ...]]:
        return {row["id"]: tuple(v for n, v in row.items() if n != "id" and n not in OURS) for row in target.all()}

    # -- current -------------------------------------------------------------------------------------------------

    def test_the_table_is_as_it_is_now(self, target: Lake, batch: Source) -> None:
        sink = self.opened(target)
        sink.write(batch(*(read(10, i, 0, f"row {i}") for i in range(1, 6))))
        sink.write(
            batch(
                change("update", 20, 1, 1, "one"),
                change("update", 21, 1, 2, None, unchanged=["note"]),
                change("update", 22, 2, 5, None, unchanged=["note"]),
                change("delete", 23, 3),
                change("delete", 24, 4),
                change("create", 25, 4, 4, None, unchanged=["note"]),
                change("create", 26, 7, 7, "seven"),
                change("create", 27, 8, 8, "eight"),
                change("delete", 28, 8),
            )
        )
        assert self.state(target) == {
            1: (2, "one"),
            2: (5, "row 2"),
            4: (4, None),
            5: (0, "row 5"),
            7: (7, "seven"),
        }

    def test_a_truncate_takes_what_was_there_before(self, target: Lake, batch: Source) -> None:
        sink = self.opened(target)
        sink.write(batch(*(read(10, i, 0, "old") for i in range(1, 4))))
        sink.write(
            batch(
                change("create", 20, 9, 1, "lost"),
                change("truncate", 21),
                change("create", 22, 2, 2, "new"),
                read(23, 3, 3, "read"),
            )
        )
        assert self.state(target) == {2: (2, "new"), 3: (3, "read")}
        sink.write(batch(change("truncate", 30)))
        assert self.state(target) == {}

    def test_a_row_is_never_replaced_by_an_older_state(self, target: Lake, batch: Source) -> None:
        self.opened(target).write(batch(change("create", 20, 1, 2, "newer")))
        batch.next = 7  # the mark does not know it
        self.opened(target).write(batch(change("update", 19, 1, 1, "older"), change("create", 20, 2, 0, "beside")))
        assert self.state(target) == {1: (2, "newer"), 2: (0, "beside")}

    def test_a_batch_that_comes_again_changes_nothing(self, target: Lake, batch: Source) -> None:
        first = batch(change("create", 10, 1, 1, "a"), change("create", 11, 2, 1, "b"))
        second = batch(change("delete", 20, 1), change("update", 21, 2, 2, "b"))
        sink = self.opened(target)
        for each in (first, second):
            sink.write(each)
            commits, rows = target.commits(), self.state(target)
            sink.write(each)
            again = self.opened(target)  # as after a crash, by another process
            again.write(each)
            again.write(first)
            assert (target.commits(), self.state(target)) == (commits, rows)
        assert self.state(target) == {2: (2, "b")}

    def test_a_stream_that_begins_anew_is_taken(self, target: Lake, batch: Source) -> None:
        for number in range(3):
            self.opened(target).write(batch(change("create", 10 + number, number, 0, "first")))
        anew = Source(target.spark)
        self.opened(target).write(anew(read(50, 0, 1, "second"), read(50, 5, 1, "second")))
        assert self.state(target) == {0: (1, "second"), 1: (0, "first"), 2: (0, "first"), 5: (1, "second")}

    # -- history -------------------------------------------------------------------------------------------------

    def versions(self, target: Lake, key: int) -> list[tuple[Any, ...]]:
        def seconds(value: datetime.datetime | None) -> Any:
            """The position of the commit; "now" for what a dump says."""
            if value is None:
                return None
            passed = (value.astimezone(datetime.UTC) - at(0)).total_seconds()
            return int(passed) if passed < 1e6 else "now"

        found = sorted((r for r in target.all() if r["id"] == key), key=lambda r: (r["_lsn"], r["_seq"]))
        return [(r["n"], r["note"], seconds(r["valid_from"]), seconds(r["valid_to"])) for r in found]

    def test_every_state_is_kept_with_the_time_it_was_valid(self, target: Lake, batch: Source) -> None:
        sink = self.opened(target, mode="history")
        sink.write(batch(change("create", 10, 1, 0, "a"), change("create", 10, 2, 0, "b", seq=1)))
        sink.write(
            batch(
                change("update", 20, 1, 1, None, unchanged=["note"]),
                change("update", 21, 1, 2, "aa"),
                change("update", 22, 1, 3, None, unchanged=["note"]),
                change("delete", 23, 2),
                change("create", 24, 2, 9, "again"),
                change("create", 25, 3, 0, "c"),
                change("delete", 26, 3),
            )
        )
        sink.write(batch(change("delete", 30, 1), change("update", 31, 2, 10, None, unchanged=["note"])))
        assert self.versions(target, 1) == [(0, "a", 10, 20), (1, "a", 20, 21), (2, "aa", 21, 22), (3, "aa", 22, 30)]
        assert self.versions(target, 2) == [(0, "b", 10, 23), (9, "again", 24, 31), (10, "again", 31, None)]
        assert self.versions(target, 3) == [(0, "c", 25, 26)]

    def test_a_dump_opens_a_version_only_where_there_is_another(self, target: Lake, batch: Source) -> None:
        sink = self.opened(target, mode="history")
        sink.write(batch(change("create", 10, 1, 0, None), change("create", 10, 2, 0, "b", seq=1)))
        sink.write(batch(read(20, 1, 0, None), read(20, 2, 5, "b"), read(20, 3, 0, "c")))
        assert self.versions(target, 1) == [(0, None, 10, None)]
        assert self.versions(target, 2) == [(0, "b", 10, "now"), (5, "b", "now", None)]
        assert self.versions(target, 3) == [(0, "c", "now", None)]
        sink.write(batch(change("update", 30, 3, 1, "c")))  # its clock is behind ours: times do not run backwards
        assert self.versions(target, 3) == [(0, "c", "now", "now"), (1, "c", "now", None)]

    def test_a_truncate_closes_what_is_open(self, target: Lake, batch: Source) -> None:
        sink = self.opened(target, mode="history")
        sink.write(batch(*(change("create", 10, i, 0, "a", seq=i) for i in range(1, 5))))
        sink.write(
            batch(
                change("update", 20, 1, 1, "a"),
                change("truncate", 21),
                change("create", 22, 2, 2, "b"),
                change("create", 22, 1, 3, "b", seq=1),
                change("truncate", 23),
                change("create", 24, 1, 4, "c"),
                read(25, 3, 0, "a"),
            )
        )
        assert self.versions(target, 1) == [(0, "a", 10, 20), (1, "a", 20, 21), (3, "b", 22, 23), (4, "c", 24, None)]
        assert self.versions(target, 2) == [(0, "a", 10, 21), (2, "b", 22, 23)]
        assert self.versions(target, 3) == [(0, "a", 10, 21), (0, "a", "now", None)]
        assert self.versions(target, 4) == [(0, "a", 10, 21)]

    @pytest.mark.parametrize("mode", ["history", "log"])
    def test_nothing_is_kept_twice(self, target: Lake, batch: Source, mode: str) -> None:
        batches = [
            batch(read(10, 1, 0, "a"), read(10, 2, 0, "b")),
            batch(change("update", 20, 1, 1, "a"), change("delete", 21, 2), read(22, 3, 0, "c")),
        ]
        for each in batches:
            self.opened(target, mode=mode).write(each)
        once = sorted(target.all(), key=str)
        for each in batches:
            self.opened(target, mode=mode).write(each)
        assert sorted(target.all(), key=str) == once
        assert len(once) == (4 if mode == "history" else 5)

    # -- log -----------------------------------------------------------------------------------------------------

    def test_every_change_is_kept(self, target: Lake, batch: Source) -> None:
        sink = self.opened(target, mode="log")
        sink.write(batch(read(10, 1, 0, "a"), change("create", 9, 2, 0, "b")))
        sink.write(batch(change("update", 20, 1, 1, None, unchanged=["note"]), change("truncate", 21)))
        found = sorted(target.all(), key=lambda row: (row["_lsn"], row["_seq"]))
        assert [(r["_op"], r["id"], r["n"], r["note"], r["_unchanged"], r["_dump"]) for r in found] == [
            ("create", 2, 0, "b", None, None),
            ("read", 1, 0, "a", None, "initial"),
            ("update", 1, 1, None, ["note"], None),
            ("truncate", None, None, None, None, None),
        ]

    # -- columns -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("mode", ["current", "history", "log"])
    def test_columns_follow_the_source(self, target: Lake, batch: Source, mode: str) -> None:
        sink = self.opened(target, mode=mode)
        sink.write(batch(change("create", 10, 1, 1, "a"), change("create", 11, 2, 2, "b")))
        wide = Column("n", "bigint", pa.int64())
        more = (Column("when", "timestamp", pa.timestamp("us")), Column("two words", "text", pa.string()))
        schema = TableSchema(NAME, (ID, wide, NOTE, *more), ("id",))
        moment = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456)
        sink.write(
            batch(
                change("update", 20, 1, 5_000_000_000, "a", moment, "x"),
                change("update", 21, 2, 3, "b", None, None, unchanged=["when", "two words"]),
                schema=schema,
            )
        )
        sink.write(batch(change("create", 30, 3, 1, "narrow")))
        last = {r["id"]: r for r in sorted(target.all(), key=lambda r: r["_lsn"])}
        found = {key: (r["n"], r["note"], r["when"], r["two words"]) for key, r in last.items()}
        assert found == {1: (5_000_000_000, "a", moment, "x"), 2: (3, "b", None, None), 3: (1, "narrow", None, None)}

    def test_columns_may_be_left_out_or_end_it(self, target: Lake, batch: Source) -> None:
        self.opened(target).write(batch(change("create", 10, 1, 1, "a")))
        schema = TableSchema(
            NAME, (ID, Column("n", "text", pa.string()), NOTE, Column("more", "text", pa.string())), ("id",)
        )
        new = batch(change("update", 20, 1, "no number", "b", "more"), schema=schema)
        with pytest.raises(SinkError, match=r"'more' \(string\), 'n' \(string\)"):
            self.opened(target, schema_changes="fail").write(new)
        with pytest.raises(SinkError, match=r"'n' of .* is int, and cannot become string"):
            self.opened(target).write(new)
        self.opened(target, schema_changes="ignore").write(new)
        assert self.state(target) == {1: (1, "b")}
        rekeyed = TableSchema(NAME, (*T.columns, Column("more", "text", pa.string())), ("more",))
        with pytest.raises(SinkError, match=r"the key columns \['more'\]"):
            self.opened(target, schema_changes="ignore").write(
                batch(change("create", 30, 1, 1, "a", "b"), schema=rekeyed)
            )

    def test_types_are_kept(self, target: Lake, batch: Source) -> None:
        moment = datetime.datetime(1500, 5, 6, 7, 8, 9, 123456)
        cases: list[tuple[pa.DataType, Any]] = [
            (pa.bool_(), True),
            (pa.int16(), -(2**15)),
            (pa.int64(), 2**63 - 1),
            (pa.float32(), 0.5),
            (pa.float64(), float("-inf")),
            (pa.decimal128(38, 6), Decimal("12345678901234567890.123456")),
            (pa.string(), "ü\0'\\"),
            (pa.binary(), b"\0\xff"),
            (pa.date32(), datetime.date(1, 2, 3)),
            (pa.timestamp("us"), moment),
            (pa.timestamp("us", tz="UTC"), datetime.datetime(2024, 5, 6, tzinfo=datetime.UTC)),
            (pa.list_(pa.string()), ["a", None]),
            (pa.list_(pa.int32()), []),
        ]
        columns = tuple(Column(f"c{n}", str(kind), kind) for n, (kind, _) in enumerate(cases))
        schema = TableSchema(NAME, (ID, *columns), ("id",))
        values = [value for _, value in cases]
        sink = self.opened(target)
        sink.write(
            batch(read(10, 1, *values), change("create", 9, 2, *values), change("create", 9, 3, seq=1), schema=schema)
        )
        sink.write(batch(change("update", 20, 3, *values), schema=schema))
        for row in target.all():
            found = [row[c.name] for c in columns]
            shown = [
                v.astimezone(datetime.UTC) if k == cases[10][0] else v for v, (k, _) in zip(found, cases, strict=True)
            ]
            assert [bytes(v) if isinstance(v, bytearray) else v for v in shown] == values

    # -- errors --------------------------------------------------------------------------------------------------

    def test_a_table_of_another_mode_is_refused(self, target: Lake, batch: Source) -> None:
        self.opened(target).write(batch(change("create", 10, 1, 1, "a")))
        with pytest.raises(SinkError, match="not of the mode 'history'"):
            self.opened(target, mode="history").write(batch(change("create", 20, 1, 1, "a")))

    def test_names_that_differ_only_in_case_are_refused(self, target: Lake, batch: Source) -> None:
        schema = TableSchema(NAME, (ID, Column("valid_TO", "text", pa.string())), ("id",))
        with pytest.raises(ConfigError, match="'valid_TO'"):
            self.opened(target, mode="history").write(batch(change("create", 10, 1, "x"), schema=schema))
