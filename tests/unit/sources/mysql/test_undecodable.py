"""A table that cannot be decoded fails at a transaction; the others have the changes that they have without it."""

from __future__ import annotations

from typing import Any

import pytest

from dblog.core.schema import STOP, TableName, TableSchema
from dblog.core.value_rules import ValueRules
from dblog.databases.mysql.flavor import MARIADB
from dblog.errors import DecodeError, PreconditionFailed
from dblog.sources.base import Run
from dblog.sources.mysql.codecs import table_schema
from dblog.sources.mysql.column_types import TypeOptions
from dblog.sources.mysql.decoder import Decoder
from dblog.sources.mysql.statements import Definition
from dblog.sources.mysql.tablemap import TableMap
from dblog.sources.table_failures import TableFailures, TableRefused
from tests.unit.sources.mysql.build import short
from tests.unit.sources.mysql.log import Log
from tests.unit.sources.mysql.test_decoder import COLUMNS, INSERT, WATERMARK, Shop, row, told

T = TableName("shop", "t")


class Strict(Shop):
    """Values that do not fit stop their table."""

    def schema(self, mapped: TableMap) -> TableSchema:
        return table_schema(mapped, MARIADB, TypeOptions(values=ValueRules(default=STOP)))


def both(log: Log, *keys: int, bad: bool = False) -> int:
    """A transaction of the tables t and u; where it began."""
    begin = log.begin(len(log.events))
    log.map(COLUMNS, "t", 77)
    log.rows(INSERT, *map(row, keys), table=77)
    if bad:
        log.rows(INSERT, [row(99)[0], short(b"\xff\xfe")], table=77)
    log.map(COLUMNS, "u", 78)
    log.rows(INSERT, *map(row, keys), table=78)
    log.commit()
    return begin


def read(log: Log, step: int, tables: Shop | None = None) -> tuple[dict[str, list[Any]], TableFailures]:
    """The changes of each table, read in portions of `step` events, and what has failed."""
    failures = TableFailures()
    decoder = Decoder(tables or Strict(), MARIADB, 0, watermark=WATERMARK, failures=failures)
    runs: list[Run] = []
    for at in range(0, len(log.events), step):
        runs += decoder.feed(log.packets(at, at + step))
    found: dict[str, list[Any]] = {"t": [], "u": []}
    for name, op, lsn, seq, key in told(runs):
        found[name].append((op, lsn, seq, key))
    return found, failures


@pytest.mark.parametrize("step", [1, 2, 3, 5, 8, 100])
def test_a_value_fails_its_table_and_no_other(step: int) -> None:
    log = Log()
    first, bad, last = both(log, 1, 2), both(log, 3, bad=True), both(log, 4, 5)
    found, failures = read(log, step)
    assert failures.found.keys() == {T}
    assert failures.found[T].lsn == bad
    assert isinstance(failures.found[T].error, DecodeError)
    assert [change[3] for change in found["t"] if change[1] < bad] == [1, 2]
    assert not [change for change in found["t"] if change[1] > bad]
    assert [(change[1], change[3]) for change in found["u"]] == [(first, 1), (first, 2), (bad, 3), (last, 4), (last, 5)]
    assert found["u"][-2:] == [("create", last, 0, 4), ("create", last, 2, 5)]


@pytest.mark.parametrize("step", [1, 3, 100])
def test_a_definition_fails_its_table_and_no_other(step: int) -> None:
    class Altered(Shop):
        def check(self, said: Definition) -> None:
            raise TableRefused(said.table, PreconditionFailed("it is of MyISAM"))

    log = Log()
    both(log, 1)
    altered = log.begin(50, statement=True)
    log.query("ALTER TABLE t ENGINE = MyISAM")
    both(log, 2)
    found, failures = read(log, step, Altered())
    assert (failures.found[T].lsn, failures.found[T].error.message) == (altered, "it is of MyISAM")
    assert [change[3] for change in found["t"]] == [1]
    assert [change[3] for change in found["u"]] == [1, 2]


def test_without_failures_the_error_is_raised() -> None:
    log = Log()
    both(log, 1, bad=True)
    with pytest.raises(DecodeError):
        Decoder(Strict(), MARIADB, 0, watermark=WATERMARK).feed(log.packets())
