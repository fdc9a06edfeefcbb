"""The sink `sql`, batch by batch: two pipelines at one table, batches again, and what stands in the way."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from dblog.core.event import DUMP_SEQ
from dblog.core.schema import Column, TableName, TableSchema
from dblog.core.settings import read_settings
from dblog.errors import SinkError, SinkUnreachable
from dblog.sinks.base import Batch, SinkContext, TableBatch
from dblog.sinks.sql import SqlSink
from dblog.testing.mysql_server import MySQLServer
from dblog.testing.postgres_server import PostgresServer
from tests.conftest import EVERY_MYSQL_SERVER, Database, MySQLDatabase
from tests.proxy import Proxy
from tests.sinks.batches import GivenRows
from tests.sinks.sql_targets import MySQLTarget, PostgresTarget, fresh_name

pytestmark = [pytest.mark.server, pytest.mark.spark]

AnyTarget = PostgresTarget | MySQLTarget
TABLE = TableName("public", "t")
COLUMNS = (Column("id", "integer", pa.int32()), Column("v", "text", pa.string()), Column("big", "text", pa.string()))
SCHEMA = TableSchema(TABLE, COLUMNS, ("id",))
FRAME = "id int, v string, big string, _op string, _lsn long, _seq int, _unchanged array<string>"


@pytest.fixture(params=["pg18", *(name for name in ("mysql", "mariadb") if name in EVERY_MYSQL_SERVER)])
def target(
    request: pytest.FixtureRequest, servers: dict[str, PostgresServer], mysql_servers: dict[str, MySQLServer]
) -> Iterator[AnyTarget]:
    made: Database | MySQLDatabase
    if request.param in servers:
        made = Database(servers[request.param].start(), fresh_name())
        made.create()
        with Proxy(made.server) as proxy:
            yield PostgresTarget(made, proxy)
        made.drop()
    else:
        made = MySQLDatabase(mysql_servers[request.param].start(), fresh_name())
        made.create()
        with Proxy(made.server) as proxy:
            found = MySQLTarget(made, proxy)
            yield found
        found.drop()


on_postgres = pytest.mark.parametrize("target", ["pg18"], indirect=True)


@pytest.fixture
def make(target: AnyTarget, spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., SqlSink]]:
    made = []

    def sink(pipeline: str = "one", **settings: Any) -> SqlSink:
        given = read_settings("sink", {**target.settings(), **settings}, SqlSink.settings)
        made.append(SqlSink(given, SinkContext(pipeline, tmp_path)))
        made[-1].check()
        made[-1].open(spark)
        return made[-1]

    yield sink
    for one in made:
        one.close()


@dataclass(frozen=True)
class Event:
    """A change of a row, or a truncate."""

    lsn: int
    op: str
    id: int | None = None
    v: str | None = None
    big: str | None = None
    unchanged: tuple[str, ...] | None = None
    seq: int = 0

    @property
    def row(self) -> tuple[Any, ...]:
        return (
            self.id,
            self.v,
            self.big,
            self.op,
            self.lsn,
            self.seq,
            list(self.unchanged) if self.unchanged else None,
        )


@dataclass
class History:
    """What happened to a table, and what it had at any position."""

    events: list[Event] = field(default_factory=list)

    def state(self, position: int) -> dict[int, tuple[str | None, str | None]]:
        rows: dict[int, tuple[str | None, str | None]] = {}
        for event in self.events:
            if event.lsn >= position:
                continue
            if event.op == "truncate":
                rows.clear()
                continue
            assert event.id is not None
            if event.op == "delete":
                rows.pop(event.id, None)
            else:
                kept = rows[event.id][1] if event.unchanged else event.big
                rows[event.id] = (event.v, kept)
        return rows

    def batch(
        self, spark: SparkSession, number: int, begin: int, end: int, dump: Sequence[int] = (), way: str = ""
    ) -> Batch:
        """The changes of a part of the log, and rows of a dump that ends there. They come in one of the `WAYS`, from
        batch to batch in another one."""
        way = way or WAYS[number % len(WAYS)]
        inside = [e for e in self.events if begin <= e.lsn < end]
        changed = {e.id for e in inside}
        state = self.state(end)
        rows = [Event(end - 1, "read", i, *state[i], seq=DUMP_SEQ) for i in dump if i in state and i not in changed]
        truncates = [(e.lsn, e.seq) for e in inside if e.op == "truncate"]
        table = TableBatch(
            TABLE, SCHEMA, frame(spark, inside) if inside else None, frame(spark, rows) if rows else None,
            max(truncates, default=None), any(e.unchanged for e in inside),
            None if way == "frames" else given(inside, rows, 0 if way == "few" else 1 << 30),
        )  # fmt: skip
        return Batch(number, end, (table,))


WAYS = ("few", "job", "frames")
"""How the rows of a batch reach the sink: few enough for the driver, for the tasks of a job, or from Spark."""
ARROW = pa.schema([*SCHEMA.arrow, ("_op", pa.string()), ("_lsn", pa.int64()), ("_seq", pa.int32()),
                   ("_unchanged", pa.list_(pa.string()))])  # fmt: skip


def given(changes: Sequence[Event], rows: Sequence[Event], weight: int) -> GivenRows:
    """Rows for tasks: the log in parts of two changes, the rows in chunks of two."""

    def cut(events: Sequence[Event]) -> list[pa.RecordBatch]:
        groups = [events[n : n + 2] for n in range(0, len(events), 2)]
        return [
            pa.RecordBatch.from_pylist([dict(zip(ARROW.names, e.row, strict=True)) for e in g], ARROW) for g in groups
        ]

    return GivenRows(tuple((part,) for part in cut(changes)), tuple(cut(rows)), weight)


def frame(spark: SparkSession, events: Sequence[Event]) -> DataFrame:
    return spark.createDataFrame([e.row for e in events], FRAME)


def state(target: AnyTarget) -> dict[int, tuple[str | None, str | None]]:
    return {key[0]: (row["v"], row["big"]) for key, row in target.rows(TABLE).items()}


def invented(seed: int, count: int, *, truncates: bool) -> History:
    chance, history = random.Random(seed), History()
    for lsn in range(10, 10 * count, 10):
        live = history.state(lsn)
        key = chance.randrange(6)
        if truncates and chance.random() < 0.05:
            history.events.append(Event(lsn, "truncate"))
        elif key not in live:
            history.events.append(Event(lsn, "create", key, f"v{lsn}", f"big{lsn}"))
        elif chance.random() < 0.4:
            history.events.append(Event(lsn, "delete", key))
        elif chance.random() < 0.5:
            history.events.append(Event(lsn, "update", key, f"v{lsn}", None, ("big",)))
        else:
            history.events.append(Event(lsn, "update", key, f"v{lsn}", f"big{lsn}"))
    return history


def some(target: AnyTarget, book: str) -> int:
    return int(target.execute(f"select count(*) from {target.ledger(book)}")[0][0])


def tombstones(target: AnyTarget) -> int:
    [(table,)] = target.execute(f"select id from {target.ledger('tables')}")
    return some(target, f"deleted_{table}")


@pytest.mark.parametrize("seed", [1, 2])
def test_two_pipelines_never_take_a_table_back_in_time(
    target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession, seed: int
) -> None:
    """In whatever order their batches come, the table is as the source was at the position of the faster one."""
    history, chance = invented(seed, 40, truncates=seed == 2), random.Random(seed)
    sinks = {name: make(name) for name in ("fast", "slow")}
    places = {"fast": (0, 0), "slow": (0, 0)}
    # the fast one is all the way at the end before the slow one has begun, then they overtake each other
    steps = [("fast", 150), *((chance.choice(["fast", "slow"]), chance.randrange(20, 90)) for _ in range(12))]
    for name, step in [*steps, ("slow", 400), ("fast", 400)]:
        number, begin = places[name]
        end = min(begin + step, 400)
        batch = history.batch(spark, number, begin, end)
        if batch.tables[0].changes is None:
            continue
        sinks[name].write(batch)
        if chance.random() < 0.3:
            sinks[name].close()
            sinks[name] = make(name)
            sinks[name].write(batch)
        places[name] = (number + 1, end)
        assert state(target) == history.state(max(end for _, end in places.values())), (name, begin, end, places)
    assert tombstones(target) == 0


def test_a_dump_of_a_second_pipeline_meets_the_log_of_the_first(
    target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession
) -> None:
    history = invented(3, 30, truncates=False)
    first, second = make("first"), make("second")
    first.write(history.batch(spark, 0, 0, 100))
    second.write(history.batch(spark, 0, 100, 200, dump=range(6)))
    assert state(target) == history.state(200)
    first.write(history.batch(spark, 1, 100, 150, dump=range(6)))
    assert state(target) == history.state(200)
    first.write(history.batch(spark, 2, 150, 300, dump=range(6)))
    assert state(target) == history.state(300)


def test_deletions_are_remembered_only_while_somebody_may_come_with_an_older_state(
    target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession
) -> None:
    history = History([Event(10, "create", 1, "a"), Event(20, "delete", 1), Event(50, "create", 2, "b")])
    alone = make("alone")
    alone.write(history.batch(spark, 0, 0, 30))
    assert tombstones(target) == 0
    target.execute(f"delete from {target.ledger('batches')}")
    target.execute(f"delete from {target.name(TABLE)}")
    late = make("late")
    alone.write(history.batch(spark, 0, 0, 30))
    assert tombstones(target) == 1
    late.write(history.batch(spark, 0, 0, 15))
    assert state(target) == {}
    late.write(history.batch(spark, 1, 15, 60))
    alone.write(history.batch(spark, 1, 30, 60))
    assert tombstones(target) == 0
    assert state(target) == history.state(60)


def test_a_new_checkpoint_counts_its_batches_anew(
    target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession
) -> None:
    history = History([Event(10, "create", 1, "a"), Event(20, "update", 1, "b"), Event(30, "update", 1, "c")])
    sink = make()
    for number, (begin, end) in enumerate([(0, 15), (15, 25)]):
        sink.write(history.batch(spark, number + 7, begin, end))
    sink.write(history.batch(spark, 0, 25, 40))
    assert state(target) == {1: ("c", None)}


def test_an_older_batch_that_comes_again_brings_nothing_back(
    target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession
) -> None:
    history = History([Event(10, "create", 1, "a"), Event(20, "delete", 1), Event(30, "create", 2, "b")])
    sink = make()
    batches = [history.batch(spark, n, 10 * n + 5, 10 * n + 15) for n in range(3)]
    found = []
    for batch in [*batches, *batches[:2]]:
        sink.write(batch)
        found.append(state(target))
    row = ("b", None)
    assert found == [{1: ("a", None)}, {}, {2: row}, {2: row}, {2: row}]


def test_what_came_before_a_truncate_does_not_come_back(
    target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession
) -> None:
    history = History(
        [
            Event(10, "create", 1, "a"), Event(11, "create", 2, "b"), Event(20, "truncate"),
            Event(20, "create", 2, "same transaction", seq=1), Event(30, "create", 3, "c"),
        ]
    )  # fmt: skip
    fast, slow = make("fast"), make("slow")
    fast.write(history.batch(spark, 0, 0, 15))
    fast.write(history.batch(spark, 1, 15, 40))
    assert state(target) == history.state(40) == {2: ("same transaction", None), 3: ("c", None)}
    slow.write(history.batch(spark, 0, 0, 15))
    assert state(target) == history.state(40)
    slow.write(history.batch(spark, 1, 15, 25))
    assert state(target) == history.state(40)


def test_columns_that_a_change_leaves_out_stay(
    target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession
) -> None:
    history = History(
        [
            Event(10, "create", 1, "a", "A"), Event(11, "create", 2, "b", "B"),
            Event(20, "update", 1, "aa", None, ("big",)), Event(21, "update", 2, "bb", "BB"),
            Event(30, "delete", 1), Event(31, "create", 1, "new", None),
            Event(32, "update", 1, "newer", None, ("big",)),
            Event(33, "update", 2, None, None, ("v", "big")),
        ]
    )  # fmt: skip
    sink = make()
    for number in range(3):
        sink.write(history.batch(spark, number, 10 * number + 5, 10 * number + 15))
        wanted = history.state(10 * number + 15)
        if number == 2:
            wanted[2] = ("bb", "BB")
        assert state(target) == wanted


def test_a_batch_that_failed_before_it_was_applied_leaves_nothing(
    target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History([Event(10, "create", 1, "a"), Event(20, "update", 1, "b")])
    sink = make()
    sink.write(history.batch(spark, 0, 0, 15))

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sink, "_apply", crash)
        patched.setattr(sink, "_drop", lambda shares: None)  # as if the process had been killed
        with pytest.raises(KeyboardInterrupt):
            sink.write(history.batch(spark, 1, 15, 25))
    assert state(target) == {1: ("a", None)}
    assert staged(target)
    again = make()
    assert not staged(target)
    again.write(history.batch(spark, 1, 15, 25))
    assert state(target) == {1: ("b", None)}
    assert not staged(target)


def staged(target: AnyTarget) -> list[Any]:
    schema = target.ledger("").rstrip(".")
    where = f"table_schema = '{schema}' and table_name like 'staged%'"
    return target.execute(f"select table_name from information_schema.tables where {where}")


def test_rows_of_a_task_that_does_not_count_are_left_aside(
    target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark runs a task again that is slow or seems lost; the first may have written already."""
    from dblog.sinks.sql import sink as module

    history = History([Event(10, "create", 1, "a"), Event(11, "create", 2, "b")])
    real = module.run_in_tasks

    def twice(*given: Any, **more: Any) -> list[Any]:
        real(*given, **more)
        return real(*given, **more)

    monkeypatch.setattr(module, "run_in_tasks", twice)
    make().write(history.batch(spark, 0, 0, 15, way="job"))
    assert state(target) == {1: ("a", None), 2: ("b", None)}


def test_soft_deletes_keep_rows(target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession) -> None:
    history = History(
        [
            Event(10, "create", 1, "a", "A"), Event(11, "create", 2, "b", "B"), Event(12, "create", 3, "c", "C"),
            Event(20, "delete", 1), Event(21, "update", 2, "bb", None, ("big",)),
            Event(30, "create", 1, "again", None), Event(31, "delete", 9),
            Event(40, "truncate"), Event(41, "create", 3, "new", "N"),
        ]
    )  # fmt: skip
    sink = make(deletes="soft")

    def found() -> dict[int, tuple[Any, ...]]:
        return {key[0]: (row["v"], row["big"], bool(row["_deleted"])) for key, row in target.rows(TABLE).items()}

    sink.write(history.batch(spark, 0, 0, 15))
    sink.write(history.batch(spark, 1, 15, 25))
    assert found() == {1: ("a", "A", True), 2: ("bb", "B", False), 3: ("c", "C", False)}
    sink.write(history.batch(spark, 2, 25, 35))
    assert found() == {
        1: ("again", None, False), 2: ("bb", "B", False), 3: ("c", "C", False), 9: (None, None, True),
    }  # fmt: skip
    sink.write(history.batch(spark, 3, 35, 45))
    assert {key: row[2] for key, row in found().items()} == {1: True, 2: True, 3: False, 9: True}
    assert found()[3] == ("new", "N", False)


def test_a_table_that_somebody_else_made_is_left_alone(
    target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession
) -> None:
    target.execute(f"create table {target.name(TABLE)} (id int primary key, v varchar(20), big varchar(20), mine int)")
    history = History([Event(10, "create", 1, "a")])
    with pytest.raises(SinkError, match="was not created by dblog") as refused:
        make().write(history.batch(spark, 0, 0, 15))
    assert refused.value.hint is not None
    target.execute(refused.value.hint.partition("that dblog needs: ")[2])
    make().write(history.batch(spark, 0, 0, 15))
    assert state(target) == {1: ("a", None)}


@pytest.mark.parametrize("way", WAYS)
def test_a_value_that_does_not_fit_is_named_whatever_way_it_takes(
    target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession, way: str
) -> None:
    """Statements of many tables are sent together, and their error names neither the table nor the row."""
    target.execute(
        f"create table {target.name(TABLE)} (id int primary key, v varchar(3), big varchar(9), "
        "_lsn bigint not null default 0, _seq int not null default 0)"
    )
    first = Event(10, "create", 1, "abc")
    wrong, right = (History([first, Event(11, "create", 2, v)]) for v in ("abcd", "ab"))
    sink = make()
    said = r"table \w+\.t cannot store \"abcd\" in column 'v' of the row with the key \(2\): .*too long"
    with pytest.raises(SinkError, match=said):
        sink.write(wrong.batch(spark, 0, 0, 15, way=way))
    assert state(target) == {}
    sink.write(right.batch(spark, 0, 0, 15, way=way))
    assert state(target) == {1: ("abc", None), 2: ("ab", None)}
    assert not staged(target)


def test_another_key_is_an_error(target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession) -> None:
    target.execute(
        f"create table {target.name(TABLE)} (id int, v varchar(20) primary key, big varchar(20), "
        "_lsn bigint not null, _seq int not null)"
    )
    with pytest.raises(SinkError, match="has the key"):
        make().write(History([Event(10, "create", 1, "a")]).batch(spark, 0, 0, 15))


@on_postgres
def test_text_with_the_character_0_is_refused_with_its_columns_name(
    target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession
) -> None:
    said = r'store "a\\u0000b" in column .v. of the row with the key \(1\): the server cannot store the character 0'
    with pytest.raises(SinkError, match=said):
        make().write(History([Event(10, "create", 1, "a\0b")]).batch(spark, 0, 0, 15))


def test_a_value_that_does_not_fit_is_refused(
    target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession
) -> None:
    target.execute(
        f"create table {target.name(TABLE)} (id int primary key, v varchar(3), big varchar(20), "
        "_lsn bigint not null, _seq int not null)"
    )
    with pytest.raises(SinkError, match="too long") as refused:
        make().write(History([Event(10, "create", 1, "four")]).batch(spark, 0, 0, 15))
    assert not isinstance(refused.value, SinkUnreachable)
    assert "cannot store the value" in (refused.value.hint or "")
    assert state(target) == {}


def test_a_missing_right_is_named(target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession) -> None:
    user = fresh_name()
    if isinstance(target, PostgresTarget):
        target.execute(f"create role {user} login password 'secret'")
        given = {"url": target.database.server.url(target.database.name, user, "secret")}
        wanted = "GRANT CREATE ON DATABASE"
    else:
        target.execute(f"create user {user}@'%' identified by 'secret'")
        given = {"url": target.database.server.url("", user, "secret"), "records": "not_ours", "schema": "x"}
        wanted = "GRANT SELECT, INSERT"
    try:
        with pytest.raises(SinkError) as refused:
            make(**given)
        assert wanted in (refused.value.hint or "")
        assert "secret" not in str(refused.value)
    finally:
        target.execute(f"drop user {user}" if isinstance(target, MySQLTarget) else f"drop role {user}")


def test_a_hundred_thousand_rows(
    target: AnyTarget, make: Callable[..., SqlSink], spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """How long that takes is printed; on a busy machine it says little."""
    import time

    def rows(lsn: int) -> Batch:
        frame = spark.range(100_000).selectExpr(
            "cast(id as int) id", "concat('value ', id) v", "repeat('x', 50) big", "'read' _op",
            f"{lsn}L _lsn", f"{DUMP_SEQ} _seq", "cast(null as array<string>) _unchanged",
        )  # fmt: skip
        return Batch(lsn, lsn + 1, (TableBatch(TABLE, SCHEMA, None, frame, None, False),))

    sink = make()
    times = []
    for lsn in (10, 20):
        begin = time.monotonic()
        sink.write(rows(lsn))
        times.append(time.monotonic() - begin)
    [(count, least)] = target.execute(f"select count(*), min(_lsn) from {target.name(TABLE)}")
    assert (count, least) == (100_000, 20)
    with capsys.disabled():
        print(f"\n100,000 rows: new in {times[0]:.1f} s, replaced in {times[1]:.1f} s")
