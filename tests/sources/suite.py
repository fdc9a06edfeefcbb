"""What every source does. A family passes it with a class that says what its databases are:

class TestJournal(SourceSuite):
    @pytest.fixture
    def database(self, tmp_path: Path) -> SourceDatabase: ...

The suite calls the members of `Source` as the engine does, and in the end runs the engine itself.
"""

from __future__ import annotations

import pickle
import random
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from dblog.core.event import BEFORE, CHANGE_FIELDS, Op
from dblog.core.offset import Extent, Key
from dblog.core.schema import TableName
from dblog.errors import (
    ConfigError,
    KeyChanged,
    PositionLost,
    PreconditionFailed,
    SourceError,
    TableLocked,
    TableUnreadable,
)
from dblog.planning.retry import retrying
from dblog.sources.base import LogStream, Origin, Run, Source, joined
from dblog.sources.family import shown_position
from dblog.spark.options import read_options
from tests.engine.query import Query
from tests.history import Row

SECONDS = 20.0
"""How long the suite waits for something that must happen."""
NOTES = ("", "plain", 'it\'s "quoted" \\ and\ttabbed\nnew', "äöü 日本 🙂", None)
METADATA = [field.name for field in CHANGE_FIELDS]


class Change(NamedTuple):
    """One change of a transaction: "insert" with all columns, "update" with the key and others, "delete" with the key,
    or "truncate", which is alone in its transaction."""

    op: str
    table: str
    row: Row | None


def insert(key: int, n: int | None = 0, note: str | None = "new", table: str = "t") -> Change:
    return Change("insert", table, {"id": key, "n": n, "note": note})


def update(key: int, table: str = "t", **values: Any) -> Change:
    return Change("update", table, {"id": key, **values})


def delete(key: int, table: str = "t") -> Change:
    return Change("delete", table, {"id": key})


def truncate(table: str = "t") -> Change:
    return Change("truncate", table, None)


class SourceDatabase(ABC):
    """A database of a family that is one test's own, and what the suite does to it as its users would."""

    schema: str
    """Where its tables are."""
    queries = True
    """Whether users can write conditions and queries."""
    options: ClassVar[Mapping[str, str]] = {}
    """Options that every stream of it needs."""

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def create(self, table: str) -> None:
        """Create a table with the columns `id` (a whole number, the key), `n` (a whole number) and `note` (text)."""

    @abstractmethod
    def commit(self, *changes: Change) -> None:
        """Commit changes as one transaction."""

    @abstractmethod
    def rows(self, table: str) -> list[Row]:
        """All rows of a table, in any order."""

    @abstractmethod
    def add_column(self, table: str, column: str) -> None:
        """Give a table one more column of text."""

    @abstractmethod
    def keep_old_rows(self, table: str) -> None:
        """Have the log carry the whole old row of a change, where it does not anyway."""

    @abstractmethod
    def lock(self, table: str) -> AbstractContextManager[object]:
        """Keep everybody else from reading a table."""

    @abstractmethod
    def lose_log(self) -> None:
        """Make the log that was written so far unreadable, as time or an administrator would."""


def events(runs: Sequence[Run]) -> list[Row]:
    """The changes of the runs in order, each with its table in `_table`."""
    found: list[Row] = []
    for run in runs:
        mine = [{**row, "_table": schema.table.name} for schema, batch in run.changes for row in batch.to_pylist()]
        found += sorted(mine, key=lambda row: (row["_lsn"], row["_seq"]))
    return found


def brief(runs: Sequence[Run]) -> list[tuple[str, int | None]]:
    """The operation and key of every change."""
    return [(Op(e["_op"]).name, e["id"]) for e in events(runs)]


def values(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in (*METADATA, BEFORE, "_table")}


class Log:
    """A source whose log is open, and what has been read from it."""

    def __init__(self, source: Source, origin: Origin | None = None) -> None:
        self.source = source
        if origin is None:
            source.prepare(followed=None)
            origin = source.origin()
            source.admit(tuple(source.tables()))
        self.origin = origin
        self.stream: LogStream = retrying(lambda: source.stream(origin.position, origin.coordinate), SECONDS)
        self.runs: list[Run] = []

    def until(self, ready: Callable[[], object]) -> list[Run]:
        """Read until something is true; all runs so far."""
        deadline = time.monotonic() + SECONDS
        while not ready():
            assert time.monotonic() < deadline, f"not reached: {brief(self.runs)}"
            self.runs += self.stream.read(0.1, eager=True)
        return self.runs

    def read(self, changes: int) -> list[Run]:
        """Read until this many changes have come, and all their transactions have ended."""
        return self.until(lambda: len(events(self.runs)) >= changes and self.runs[-1].position is not None)

    @property
    def position(self) -> int:
        """How far the log has been read."""
        ended = [run.position for run in self.runs if run.position is not None]
        return max(ended[-1] if ended else self.origin.position, self.stream.idle_position)

    @property
    def commits(self) -> Any:
        return joined([run.commits for run in self.runs])

    def at(self, position: int) -> Origin:
        """A position that has been read, with its coordinate."""
        commits = self.commits.between(self.origin.position, position)
        return Origin(position, (), self.source.coordinate(self.origin.coordinate, commits, position))

    def close(self) -> None:
        self.stream.close()


MakeSource = Callable[..., Source]
OpenLog = Callable[..., Log]
MakeQuery = Callable[..., Query]


class SourceSuite:
    @pytest.fixture
    def database(self) -> SourceDatabase:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _short_polls(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dblog.planning.planner.POLL_SECONDS", 0.05)

    @pytest.fixture
    def table(self, database: SourceDatabase) -> TableName:
        """The table `t`, with the keys 1 to 3."""
        database.create("t")
        database.commit(*(insert(i, n=i) for i in (1, 2, 3)))
        return TableName(database.schema, "t")

    @pytest.fixture
    def source(self, database: SourceDatabase) -> MakeSource:
        def make(tables: str = "*", **options: str) -> Source:
            return read_options({"url": database.url, "tables": tables, **database.options, **options}).source

        return make

    @pytest.fixture
    def log(self, source: MakeSource, table: TableName) -> Iterator[OpenLog]:
        """Opens the log of a source over all tables."""
        opened: list[Log] = []

        def open_log(again: Log | None = None, at: Origin | None = None, **options: str) -> Log:
            opened.append(Log(source(**options) if again is None else again.source, at))
            return opened[-1]

        yield open_log
        for each in opened:
            each.close()

    @pytest.fixture
    def query(self, database: SourceDatabase, tmp_path: Path) -> Iterator[MakeQuery]:
        """Runs the engine over the table `t`, as Spark would."""
        made: list[Query] = []

        def make(**options: Any) -> Query:
            given = {"table": "t", **database.options, **options}
            made.append(Query(database.url, str(tmp_path / f"spool{len(made)}"), **given))
            return made[-1]

        yield make
        for each in made:
            each.stop()

    # -- tables ----------------------------------------------------------------------------------------------

    def test_a_table_is_described(self, source: MakeSource, table: TableName) -> None:
        there = source()
        (schema,) = there.tables().values()
        assert (schema.table, schema.names, schema.key) == (table, ("id", "n", "note"), ("id",))
        assert [pa.types.is_integer(c.arrow) for c in schema.columns] == [True, True, False]
        absent = TableName(table.schema, "absent")
        assert there.describe((table, absent)) == {table: schema}
        assert there.default_schema == table.schema
        assert there.estimate(table) is None or there.estimate(table) >= 0  # type: ignore[operator]

    def test_a_source_goes_to_other_processes(self, source: MakeSource, table: TableName) -> None:
        used = source()
        found = used.tables()
        again: Source = pickle.loads(pickle.dumps(used))
        assert again == used
        assert again.tables() == found
        assert again.decoding == used.decoding

    def test_a_table_that_does_not_exist_is_refused_at_the_start(self, source: MakeSource, table: TableName) -> None:
        with pytest.raises(PreconditionFailed, match=f"{table.schema}.absent"):
            source("t, absent").prepare(followed=None)
        with pytest.raises(ConfigError, match=r"absent_\*"):
            source("absent_*").tables()

    # -- the log ---------------------------------------------------------------------------------------------

    def test_every_commit_comes_in_order(self, database: SourceDatabase, log: OpenLog) -> None:
        reading = log()
        database.commit(insert(10, 1, "a"), update(10, n=2), insert(11))
        database.commit(update(1, n=-7, note=None))
        database.commit(delete(2), insert(12))
        database.commit(truncate())
        database.commit(insert(13, None, None))
        runs = reading.read(8)
        assert brief(runs) == [
            *[("create", 10), ("update", 10), ("create", 11)],
            ("update", 1),
            *[("delete", 2), ("create", 12)],
            ("truncate", None),
            ("create", 13),
        ]
        found = events(runs)
        assert [values(e) for e in (found[1], found[3], found[7])] == [
            {"id": 10, "n": 2, "note": "a"},
            {"id": 1, "n": -7, "note": None},
            {"id": 13, "n": None, "note": None},
        ]
        orders = [(e["_lsn"], e["_seq"]) for e in found]
        assert orders == sorted(set(orders)), "they are strictly ordered"
        assert all(e["_committed_at"] is not None for e in found)
        self.check_transactions(reading, [3, 1, 2, 1, 1])

    def check_transactions(self, reading: Log, sizes: list[int]) -> None:
        """Each transaction lies between two positions, the second of which is its commit's."""
        found, at = events(reading.runs), 0
        ends = [int(p) for p in reading.commits.positions]
        assert ends == sorted(set(ends)), "positions increase"
        assert ends[0] > reading.origin.position
        for size in sizes:
            mine, at = found[at : at + size], at + size
            assert len({e["_lsn"] for e in mine}) == 1
            (end,) = {next((p for p in ends if p > e["_lsn"]), None) for e in mine}
            assert end is not None, f"{mine} lies behind the commits, at {ends}"
            assert all(e["_lsn"] >= end for e in found[at:])
        assert reading.source.latest() >= ends[-1]
        for run in reading.runs:
            assert len(run.commits.xids) == len(run.commits.rows) == len(run.commits.nbytes) == len(run.commits)

    def test_the_old_row_comes_when_it_is_asked_for(
        self, database: SourceDatabase, log: OpenLog, table: TableName
    ) -> None:
        database.keep_old_rows("t")
        reading = log(before="true")
        database.commit(update(1, n=5), delete(2), insert(9))
        assert [e[BEFORE] for e in events(reading.read(3))] == [
            {"id": 1, "n": 1, "note": "new"},
            {"id": 2, "n": 2, "note": "new"},
            None,
        ]

    def test_a_stream_that_goes_on_repeats_exactly_what_follows(self, database: SourceDatabase, log: OpenLog) -> None:
        reading = log()
        for n in range(4):
            database.commit(update(1, n=n), insert(10 + n))
        found = events(reading.read(8))
        ends = sorted({next(int(p) for p in reading.commits.positions if p > e["_lsn"]) for e in found})
        reading.close()
        for position, rest in [(reading.origin.position, 8), *zip(ends, (6, 4, 2), strict=False)]:
            at = reading.at(position)
            reading.source.check_position(at.position, at.coordinate)
            again = log(reading, at)
            assert events(again.read(rest)) == found[8 - rest :]
            assert again.source.comparable(reading.origin.coordinate, at.coordinate)
            again.close()

    def test_an_idle_stream_moves_on_and_may_be_acknowledged(self, database: SourceDatabase, log: OpenLog) -> None:
        reading = log()
        database.commit(insert(10))
        reading.read(1)
        position = reading.position
        reading.stream.acknowledge(position)
        database.commit(insert(11))
        reading.read(2)
        assert reading.position > position
        assert reading.stream.heard <= time.monotonic()
        assert not reading.stream.passing
        reading.close()
        at = reading.at(position)
        assert brief(log(reading, at).read(1)) == [("create", 11)]

    def test_a_lost_position_is_said_to_be(self, database: SourceDatabase, log: OpenLog) -> None:
        reading = log()
        database.commit(insert(10))
        reading.read(1)
        reading.close()
        database.commit(insert(11))
        database.lose_log()
        for lost in (reading.source.check_position, reading.source.stream):
            with pytest.raises(PositionLost):
                retrying(lambda: lost(reading.origin.position, reading.origin.coordinate), SECONDS)  # noqa: B023

    # -- watermarks ------------------------------------------------------------------------------------------

    def test_a_watermark_comes_back_after_what_was_committed_before_it(
        self, database: SourceDatabase, log: OpenLog
    ) -> None:
        reading = log()
        assert reading.source.writes
        database.commit(insert(10))
        token = uuid.uuid4().hex[:16]  # MySQL counts no row as written that had the token before
        bound = reading.source.write_watermark(token)
        database.commit(insert(11))
        runs = reading.read(2)
        (at,) = [number for number, run in enumerate(runs) if run.token is not None]
        assert runs[at].token == token
        assert runs[at].position is not None, "it ends its run"
        assert runs[at].position <= bound
        assert (brief(runs[: at + 1]), brief(runs[at + 1 :])) == ([("create", 10)], [("create", 11)])

    def test_without_writing_the_log_reaches_what_a_select_has_seen(
        self, database: SourceDatabase, log: OpenLog, table: TableName
    ) -> None:
        reading = log(watermark="none")
        assert not reading.source.writes
        database.commit(insert(10))
        assert 10 in self.ids(reading.source, table)
        position = reading.source.high_watermark()
        runs = reading.until(lambda: reading.position >= position)
        assert brief(runs) == [("create", 10)]

    def test_a_select_sees_what_the_log_has_shown(
        self, database: SourceDatabase, log: OpenLog, table: TableName
    ) -> None:
        reading = log()
        for number in range(5):
            database.commit(insert(20 + number))
            reading.read(number + 1)
            shown = np.array(reading.commits.xids, np.int64)
            coordinate = reading.at(reading.position).coordinate
            deadline = time.monotonic() + SECONDS
            while reading.source.invisible(shown, coordinate):
                assert time.monotonic() < deadline
            assert 20 + number in self.ids(reading.source, table)

    # -- chunks ----------------------------------------------------------------------------------------------

    def selected(self, source: Source, table: TableName, extent: Extent) -> list[Row]:
        selection = source.select(table, extent, source.key(table))
        batches: list[pa.RecordBatch] = []
        selection.read(batches.append)
        assert all(batch.schema.equals(selection.schema.arrow) for batch in batches)
        return [row for batch in batches for row in batch.to_pylist()]

    def ids(self, source: Source, table: TableName, extent: Extent | None = None) -> list[int]:
        return sorted(row["id"] for row in self.selected(source, table, extent or Extent()))

    def test_a_selected_row_equals_the_same_row_in_the_log(
        self, database: SourceDatabase, log: OpenLog, table: TableName
    ) -> None:
        database.commit(truncate())
        reading = log()
        database.commit(*(insert(i - 2, i * 1000 - 1, note) for i, note in enumerate(NOTES)))
        runs = reading.read(len(NOTES))
        found = {e["id"]: values(e) for e in events(runs)}
        assert [found[i]["note"] for i in sorted(found)] == list(NOTES)
        assert {row["id"]: row for row in self.selected(reading.source, table, Extent())} == found
        assert {row["id"]: row for row in database.rows("t")} == found
        ((schema, batch),) = [change for run in runs for change in run.changes]
        assert schema == reading.source.select(table, Extent(), None).schema == reading.source.describe([table])[table]
        assert batch.schema.names == [*METADATA, *schema.names]

    def test_only_chosen_columns_come(self, database: SourceDatabase, table: TableName) -> None:
        database.keep_old_rows("t")
        given = {"url": database.url, "table": "t", "columns": "n", "before": "true", **database.options}
        there = read_options(given).source
        assert there.decoding != read_options({**given, "columns": "note"}).source.decoding
        assert there.describe([table])[table].names == ("id", "n")
        assert {"id": 1, "n": 1} in self.selected(there, table, Extent())
        reading = Log(there)
        try:
            database.commit(update(1, n=5))
            (found,) = events(reading.read(1))
        finally:
            reading.close()
        assert (values(found), found[BEFORE]) == ({"id": 1, "n": 5}, {"id": 1, "n": 1})

    def test_cuts_cover_every_key_exactly_once(
        self, database: SourceDatabase, source: MakeSource, table: TableName
    ) -> None:
        there = source()
        database.commit(truncate())
        assert there.last_key(table) is None
        assert there.small([table], 10) in ({}, {table: (there.key(table), None)})
        keys = [*range(-12, 0), 5, 7, *range(90, 125)]
        database.commit(*map(insert, random.Random(1).sample(keys, len(keys))))
        last = there.last_key(table)
        assert last == ("124",)
        assert there.small([table], len(keys) - 1) == {}
        assert there.small([table], len(keys)) in ({}, {table: (there.key(table), last)})
        after: Key | None = None
        found: list[int] = []
        while after != last:
            cuts = there.cuts(table, after, last, 10, 2)
            assert 0 < len(cuts) <= 2
            for cut in cuts:
                chunk = self.ids(there, table, Extent(after, cut))
                assert 0 < len(chunk) <= 10
                found, after = [*found, *chunk], cut
        assert found == keys, "in the order of the keys"
        assert self.ids(there, table, Extent(("0",), ("90",))) == [5, 7, 90], "the bounds need not be there"

    def test_rows_are_selected_by_keys_and_conditions(
        self, database: SourceDatabase, source: MakeSource, table: TableName
    ) -> None:
        there = source()
        assert self.ids(there, table, Extent(keys=(("1",), ("3",), ("99",)))) == [1, 3]
        assert there.missing(table, [("1",), ("99",), ("-5",)]) == [("99",), ("-5",)]
        with pytest.raises(TableUnreadable):
            there.missing(table, [("1", "2")])
        with pytest.raises(TableUnreadable):
            there.check_condition(table, "no_such_column = 1")
        if database.queries:
            there.check_condition(table, "n > 1")
            assert self.ids(there, table, Extent(where="n > 1")) == [2, 3]

    def test_a_table_that_cannot_be_read_is_told_apart_from_one_that_is_locked(
        self, database: SourceDatabase, source: MakeSource, table: TableName
    ) -> None:
        there = source()
        key = there.key(table)
        assert key == there.key(table)
        with pytest.raises(KeyChanged):
            there.select(table, Extent(), f"{key} and more")
        with pytest.raises(TableUnreadable):
            there.select(TableName(table.schema, "absent"), Extent(), None)
        with database.lock("t"), pytest.raises(TableLocked):
            self.selected(there, table, Extent())
        assert self.ids(there, table) == [1, 2, 3]

    # -- tables that come and change -------------------------------------------------------------------------

    def test_a_new_table_joins(self, database: SourceDatabase, log: OpenLog, table: TableName) -> None:
        reading = log()
        there = reading.source
        followed = dict(there.admit([table]).tables)
        assert there.survey(followed).tables.keys() == {table}
        database.create("u")
        new = TableName(table.schema, "u")
        survey = there.survey(followed)
        assert survey.tables.keys() == {table, new}
        assert not {**survey.replaced, **survey.away, **survey.left_out, **dict.fromkeys(survey.gone)}
        absent = TableName(table.schema, "absent")
        admission = there.admit([new])
        assert admission.tables.keys() == {new}
        database.commit(insert(1, table="u"), insert(50))
        found = events(reading.read(2))
        assert [(e["_table"], e["id"]) for e in found] == [("u", 1), ("t", 50)]
        assert reading.position > admission.position
        assert absent not in there.describe([absent])
        reading.close()
        again = pickle.loads(pickle.dumps(there))
        again.follow({**followed, **admission.tables})
        at = Log(again, reading.origin)
        assert events(at.read(2)) == found
        at.close()

    def test_a_new_column_is_in_the_log_and_in_selects_alike(
        self, database: SourceDatabase, log: OpenLog, table: TableName
    ) -> None:
        reading = log()
        database.commit(update(1, n=10))
        reading.read(1)
        reading.stream.redefined()
        assert not reading.stream.redefined()
        database.add_column("t", "extra")
        database.commit(update(2, extra="x"))
        runs = reading.read(2)
        assert reading.stream.redefined()
        assert not reading.stream.redefined(), "it is told once"
        old, new = (schema for run in runs for schema, _ in run.changes)
        assert (old.names, new.names) == (("id", "n", "note"), ("id", "n", "note", "extra"))
        assert old.version != new.version
        assert new == reading.source.describe([table])[table] == reading.source.select(table, Extent(), None).schema
        assert values(events(runs)[-1]) == {"id": 2, "n": 2, "note": "new", "extra": "x"}
        assert {row["id"]: row["extra"] for row in self.selected(reading.source, table, Extent())} == {
            1: None,
            2: "x",
            3: None,
        }

    # -- for people ------------------------------------------------------------------------------------------

    def test_people_are_told_what_there_is(
        self, database: SourceDatabase, source: MakeSource, table: TableName
    ) -> None:
        options = read_options({"url": database.url, "table": "t", **database.options})
        there = options.source
        there.prepare(followed=None)
        assert there.identity()["source"] == str(options.address)
        assert not any(secret in str(there.identity()) for secret in options.address.secrets)
        latest = there.latest()
        assert there.health()["latest"] >= latest
        assert shown_position(database.url, latest) == options.family.shown(latest)
        if database.queries:
            assert there.probe("select 42") == 42.0
        with pytest.raises(SourceError):
            there.probe("no such query")
        with options.family.preflight(options.of_source) as preflight:
            assert list(preflight.tables) == [table]
            assert not [problem for problem in preflight.problems() if problem.fatal]
            assert isinstance(preflight.admin_sql(), str)
        there.abandon()

    def test_a_temporary_stream_begins_now(self, database: SourceDatabase, table: TableName) -> None:
        options = read_options({"url": database.url, "tables": "t", **database.options})
        found: list[Run] = []
        deadline = time.monotonic() + SECONDS
        with options.family.temporary_stream(options.of_source, None) as stream:
            database.commit(insert(10))
            while not events(found):
                assert time.monotonic() < deadline
                found += stream.read(0.1)
        assert brief(found) == [("create", 10)]

    # -- the engine ------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("watermark", ["table", "none"])
    def test_a_dump_converges_while_somebody_writes(
        self, database: SourceDatabase, query: MakeQuery, table: TableName, watermark: str
    ) -> None:
        database.commit(*(insert(i) for i in range(4, 120)))
        stream = query(chunkRows=7, parallelism=2, watermark=watermark)
        with writing(database, dict.fromkeys(range(1, 120), True)) as written:
            stream.dump()
            deadline = time.monotonic() + SECONDS
            while written() < 20:
                assert time.monotonic() < deadline
                stream.step()
        self.check(stream, database)
        assert stream.history.count("read") > 0
        assert stream.history.count("update") > 0

    def test_the_dump_of_an_empty_table_ends(
        self, database: SourceDatabase, query: MakeQuery, table: TableName
    ) -> None:
        database.commit(truncate())
        stream = query()
        stream.dump()
        database.commit(insert(7))
        self.check(stream, database)
        assert stream.history.count("read") == 0

    def test_a_stream_goes_on_where_it_stopped_in_a_dump(
        self, database: SourceDatabase, query: MakeQuery, table: TableName
    ) -> None:
        database.commit(*(insert(i) for i in range(4, 60)))
        stream = query()
        stream.open_window()
        database.commit(update(1, n=77), delete(2), insert(500))
        stream.plan()  # and the process ends before the batch does
        database.commit(update(59, n=78), update(500, n=79))
        stream.restart()
        self.check(stream, database)
        stream.stop()
        database.commit(update(1, n=80), delete(3))
        stream.restart()
        self.check(stream, database)

    def check(self, stream: Query, database: SourceDatabase) -> None:
        """Every event is in its order, and together they give the table's rows."""
        stream.catch_up()
        stream.history.check_order()
        stream.history.check_state(database.rows("t"))


@contextmanager
def writing(database: SourceDatabase, there: dict[int, bool]) -> Iterator[Callable[[], int]]:
    """Somebody who commits changes to the keys of `there` until the block ends; how many transactions so far."""
    stop, written, failed = threading.Event(), [0], []

    def write() -> None:
        chosen = random.Random(7)
        try:
            while not stop.is_set():
                changes = []
                for key in chosen.sample(sorted(there), 2):
                    gone = there[key] and chosen.random() < 0.2
                    change = (
                        delete(key) if gone else update(key, n=written[0]) if there[key] else insert(key, written[0])
                    )
                    there[key] = not gone
                    changes.append(change)
                database.commit(*changes)
                written[0] += 1
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield lambda: written[0]
    finally:
        stop.set()
        thread.join(SECONDS)
    assert failed == []
    assert written[0] > 0
