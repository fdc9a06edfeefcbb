"""The defaults of a simple source, over a database that is a dictionary."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dblog.core.names import parse_patterns
from dblog.core.offset import NO_ROWS, Extent, Followed, Key
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import ConfigError, KeyChanged, PreconditionFailed, SourceError, TableUnreadable
from dblog.sources.base import Admitted, Commits, LogStream, Origin, Run
from dblog.sources.family import SourceOptions
from dblog.sources.simple import SimpleFamily, SimpleSelection, SimpleSource, SimpleStream
from tests.sources.journal_family import JournalAddress

A, B, BARE, OTHER = (TableName("s", name) for name in ("a", "b", "bare", "other"))
COLUMNS = (Column("id", "int", pa.int64()), Column("n", "text", pa.string()))


def table(name: TableName, *key: str) -> tuple[TableName, TableSchema]:
    return name, TableSchema(name, COLUMNS, key)


def options(tables: str = "a, b*", **more: Any) -> SourceOptions:
    return SourceOptions(JournalAddress("/x"), parse_patterns(tables, default_schema="s"), "slot", **more)


@dataclass(frozen=True)
class DictSource(SimpleSource):
    """One row with the key 1 in every table."""

    there: dict[TableName, TableSchema] = field(default_factory=lambda: dict([table(A, "id"), table(B, "id")]))
    default_schema = "s"

    def catalog(self) -> Mapping[TableName, TableSchema]:
        return {name: schema.only(self.options.columns) for name, schema in self.there.items()}

    def admit(self, tables: Collection[TableName]) -> Admitted:
        raise NotImplementedError

    def origin(self) -> Origin:
        return Origin(self.latest(), ())

    def latest(self) -> int:
        return 42

    def check_position(self, position: int, coordinate: str | None) -> None:
        raise NotImplementedError

    def stream(self, position: int, coordinate: str | None) -> LogStream:
        return DictStream(position, coordinate)

    def write_watermark(self, token: str) -> int:
        raise NotImplementedError

    def invisible(self, xids: Any, coordinate: str | None) -> tuple[int, ...]:
        raise NotImplementedError

    def last_key(self, table: TableName) -> Key | None:
        raise NotImplementedError

    def cuts(self, table: TableName, after: Key | None, upto: Key, rows: int, count: int) -> list[Key]:
        raise NotImplementedError

    def select(self, table: TableName, extent: Extent, key: str | None) -> SimpleSelection:
        self.check_select(table, extent, key)
        rows = [{"id": 1, "n": "x"}] if ("1",) in extent.keys else []
        return SimpleSelection(self.there[table], pa.RecordBatch.from_pylist(rows, self.there[table].arrow))


class DictStream(SimpleStream):
    def read(self, timeout: float, *, eager: bool = False) -> list[Run]:
        return []


class DictFamily(SimpleFamily):
    def parse(self, url: str) -> JournalAddress:
        return JournalAddress(url)

    def default_schema(self, address: Any) -> str:
        return "s"

    def source(self, options: SourceOptions) -> DictSource:
        return DictSource(options)


@pytest.fixture
def source() -> DictSource:
    return DictSource(options())


@pytest.mark.parametrize("simple", [SimpleSource, SimpleStream, SimpleFamily])
def test_a_class_that_lacks_a_needed_member_cannot_be_used(simple: type) -> None:
    assert simple.__abstractmethods__  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="abstract"):
        type("Mine", (simple,), {})()


# -- tables --------------------------------------------------------------------------------------------------


def test_the_tables_are_those_of_the_catalog_that_the_patterns_name(source: DictSource) -> None:
    source.there.update([table(OTHER, "id")])
    assert source.tables().keys() == {A, B}
    assert source.describe([A, OTHER, TableName("s", "absent")]).keys() == {A, OTHER}
    with pytest.raises(ConfigError, match=r"no table of journal:///x matches 'c\*'"):
        DictSource(options("c*")).tables()


def test_a_survey_finds_new_tables_and_those_that_are_gone_or_cannot_be_followed(source: DictSource) -> None:
    del source.there[A]
    source.there.update([table(BARE), table(OTHER, "id")])
    survey = source.survey({A: Followed()})
    assert survey.tables == {B: Followed()}
    assert survey.gone == {A}
    assert survey.left_out == {BARE: "table 's.bare' has no key"}
    assert not survey.replaced
    assert not survey.away


def test_a_followed_table_that_the_patterns_do_not_name_any_more_is_not_gone(source: DictSource) -> None:
    assert source.survey({OTHER: Followed()}).gone == frozenset()


def test_a_followed_table_that_loses_its_key_is_unfit(source: DictSource) -> None:
    source.there.update([table(B)])
    (error,) = source.survey({A: Followed(), B: Followed()}).unfit.values()
    assert isinstance(error, PreconditionFailed)
    assert "table 's.b' has no key" in error.message
    assert source.unfit([A, B]).keys() == {B}


def test_a_new_stream_needs_all_its_tables(source: DictSource) -> None:
    source.prepare(followed=None)
    source.there.update([table(BARE)])
    source.prepare(followed=None)  # a pattern has brought it
    assert [p.table for p in source.problems() if p.left_out] == [BARE]
    assert source.tables().keys() == {A, B}
    del source.there[A]
    with pytest.raises(PreconditionFailed, match=r"1 problem:.*\n.*s\.a.*does not exist"):
        source.prepare(followed=None)


def test_a_new_stream_can_be_refused_for_a_table_that_a_pattern_brings(source: DictSource) -> None:
    source.there.update([table(BARE)])
    strict = replace(source, options=replace(source.options, skips=False))
    with pytest.raises(PreconditionFailed, match=r"1 problem:.*\n.*s\.bare.*has no key"):
        strict.prepare(followed=None)
    for named in (A, B):
        del source.there[named]
    with pytest.raises(PreconditionFailed, match=r"s\.bare.*has no key"):
        replace(source, options=options("*")).prepare(followed=None)  # there is nothing else


def test_a_stream_that_goes_on_needs_those_that_it_follows_or_that_are_named(source: DictSource) -> None:
    source.there.update([table(BARE)])
    source.prepare(followed=[A, B])
    with pytest.raises(PreconditionFailed, match=r"1 problem:.*\n.*s\.bare"):
        source.prepare(followed=[A, B, BARE])
    del source.there[B]
    source.prepare(followed=[A, B])  # the survey finds that it is gone
    del source.there[A]
    with pytest.raises(PreconditionFailed, match=r"1 problem:.*\n.*s\.a"):
        source.prepare(followed=[A, B])


# -- the log -------------------------------------------------------------------------------------------------


def test_a_position_means_something_in_one_log_only(source: DictSource) -> None:
    assert source.coordinate("log 1", Commits(*np.ones((4, 1), np.int64)), 9) == "log 1"
    assert source.comparable("log 1", "log 1")
    assert source.comparable(None, None)
    assert not source.comparable("log 1", "log 2")
    assert source.repeat(1, "log 1", "log 1", 2) is None


@pytest.mark.parametrize("changed", [{"columns": ("n",)}, {"decimals": "string"}, {"own": {"dates": "text"}}], ids=str)
def test_another_option_that_rows_may_depend_on_is_another_decoding(
    source: DictSource, changed: dict[str, Any]
) -> None:
    assert replace(source, options=options(**changed)).decoding != source.decoding


def test_a_new_definition_is_told_once() -> None:
    stream = DictStream(7, "log 1")
    assert (stream.idle_position, stream.coordinate, stream.passing) == (7, "log 1", False)
    assert not stream.redefined()
    stream.defined = True
    assert stream.redefined()
    assert not stream.redefined()


# -- chunks and requests -------------------------------------------------------------------------------------


def test_a_key_is_known_by_its_columns_and_types(source: DictSource) -> None:
    assert source.key(A) == "id int"
    source.select(A, Extent(), "id int")
    source.select(A, Extent(), None)
    source.select(A, Extent(where=NO_ROWS), "id int")
    with pytest.raises(KeyChanged):
        source.select(A, Extent(), "id text")
    with pytest.raises(TableUnreadable):
        source.key(OTHER)


def test_keys_that_no_row_has_are_missing(source: DictSource) -> None:
    assert source.missing(A, [("2",), ("1",), ("3",)]) == [("2",), ("3",)]


def test_what_the_database_cannot_do_is_refused(source: DictSource) -> None:
    for refused in (lambda: source.check_condition(A, "n > 1"), lambda: source.select(A, Extent(where="n > 1"), None)):
        with pytest.raises(TableUnreadable, match="takes no conditions"):
            refused()
    with pytest.raises(SourceError, match="answers no queries"):
        source.probe("select 1")
    family = DictFamily()
    with pytest.raises(ConfigError, match="no replication slots"):
        family.slots(JournalAddress("/x"))
    with pytest.raises(ConfigError, match="no publications"), family.temporary_stream(options(), "mine"):
        pass


def test_people_are_told_what_is_known(source: DictSource) -> None:
    assert source.estimate(A) is None
    assert source.identity() == {"source": "journal:///x"}
    assert source.health() == {"latest": source.high_watermark()} == {"latest": 42}
    assert replace(source, options=options(writes=False)).writes is False


# -- the family ----------------------------------------------------------------------------------------------


def test_a_stream_has_the_same_name_however_its_tables_are_written() -> None:
    family, address = DictFamily(), JournalAddress("/x")
    assert family.slot(address, None, "a, b") == family.slot(address, None, "s.a, s.b")
    assert family.slot(address, A, "") == family.slot(address, None, "a")


def test_a_preflight_finds_the_problems_of_the_source() -> None:
    family = DictFamily()
    with family.preflight(options("*, absent")) as found:
        assert list(found.tables) == [A, B]
        assert [problem.what for problem in found.problems()] == ["table 's.absent' does not exist"]
    with pytest.raises(PreconditionFailed, match="absent"), family.temporary_stream(options("*, absent"), None):
        pass
    with family.temporary_stream(options(), None) as stream:
        assert stream.idle_position == 42
