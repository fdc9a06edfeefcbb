"""A table of PostgreSQL's log that cannot be decoded fails at a transaction; the others go on."""

from __future__ import annotations

import pytest

from dblog.core.schema import TableName, TableSchema
from dblog.errors import DecodeError, PositionLost
from dblog.sources.base import Run
from dblog.sources.postgres.pgoutput import Decoder, Relation
from dblog.sources.table_failures import TableFailures, TableRefused
from tests.unit.sources.test_pgoutput import ITEMS, ORDERS, WATERMARK, insert, resolve, rows, transaction

T = TableName("public", "orders")


def lsns(messages: list[bytes], failures: TableFailures, step: int, refused: set[str] | None = None) -> list[str]:
    """The table and the transaction of each row, read in portions of `step` messages."""

    def resolved(found: Relation) -> TableSchema | None:
        if found.name in (refused or ()):
            raise TableRefused(TableName(found.schema, found.name), PositionLost("its key is deferrable"))
        return resolve(found)

    decoder = Decoder(resolved, watermark=WATERMARK, failures=failures)
    runs: list[Run] = []
    for at in range(0, len(messages), step):
        runs += decoder.feed(messages[at : at + step])
    return [f"{row['table']} {row['_lsn']}" for row in rows(runs)]


LOG = [
    *transaction(100, ORDERS, ITEMS, insert(1, 1, "a", "b"), insert(2, 1, "a")),
    *transaction(200, insert(1, 2, "a", "b"), insert(1, "no number", "a", "b"), insert(2, 2, "a")),
    *transaction(300, insert(1, 3, "a", "b"), insert(2, 3, "a")),
]
GOOD = ["items 100", "items 200", "items 300"]


@pytest.mark.parametrize("step", [1, 2, 4, 100])
def test_a_value_fails_its_table_and_no_other(step: int) -> None:
    failures = TableFailures()
    found = lsns(LOG, failures, step)
    assert [f for f in found if f.startswith("items")] == GOOD
    assert [f for f in found if f in ("orders 100", "orders 300")] == ["orders 100"]
    assert {t: f.lsn for t, f in failures.found.items()} == {T: 200}
    assert isinstance(failures.found[T].error, DecodeError)


@pytest.mark.parametrize("step", [1, 100])
def test_a_definition_fails_its_table_and_no_other(step: int) -> None:
    failures = TableFailures()
    assert lsns(LOG, failures, step, {"orders"}) == GOOD
    assert {t: f.lsn for t, f in failures.found.items()} == {T: 100}


def test_a_table_is_decoded_from_the_position_on_at_which_it_begins_anew() -> None:
    failures = TableFailures()
    failures.begin([T], 250)
    assert sorted(lsns(LOG, failures, 3)) == [*GOOD, "orders 300"]
    assert not failures.found


def test_without_failures_the_error_is_raised() -> None:
    with pytest.raises(DecodeError):
        Decoder(resolve, watermark=WATERMARK).feed(LOG)
