"""A table fails at the first transaction that cannot be decoded, in whatever portions the log is read."""

from __future__ import annotations

import numpy as np
import pytest

from dblog.core.schema import TableName
from dblog.errors import ConnectionLost, DecodeError, PreconditionFailed
from dblog.sources.table_failures import TableFailures, TableRefused, about

T, U = TableName("s", "t"), TableName("s", "u")
LSN = np.array([1, 1, 3, 5, 5, 9], np.int64)


def decoded(failures: TableFailures, bad: set[int], lsn: np.ndarray = LSN) -> list[int] | None:
    """The transactions of the changes that are decoded, if those of `bad` cannot be."""

    def decode(part: slice) -> list[int]:
        if wrong := bad & set(lsn[part].tolist()):
            raise DecodeError(f"bad {min(wrong)}")
        return list(lsn[part].tolist())

    return failures.decoded(T, lsn, decode)


@pytest.mark.parametrize("cuts", [[], [1], [3], [2, 4, 5]])
def test_it_fails_at_the_first_transaction_that_cannot_be_decoded(cuts: list[int]) -> None:
    failures = TableFailures()
    found = [decoded(failures, {5, 9}, part) or [] for part in np.split(LSN, cuts)]
    assert [n for part in found for n in part if n < 5] == [1, 1, 3]
    failure = failures.found[T]
    assert (failure.lsn, failure.error.message) == (5, "bad 5")
    assert decoded(failures, set(), np.array([10], np.int64)) is None
    assert U not in failures.found


def test_it_begins_anew_after_a_position() -> None:
    failures = TableFailures()
    assert decoded(failures, {1}) is None
    failures.begin([T], 5)
    assert not failures.found
    assert decoded(failures, {1, 3}) == [5, 5, 9]
    failures.fail(T, 4, DecodeError("before the beginning"))
    assert not failures.found


def test_a_refused_definition_fails_where_the_table_has_changes() -> None:
    failures = TableFailures()
    failures.begin([T], 4)
    failures.refused(T, np.array([1, 3], np.int64), PreconditionFailed("no key"))
    assert not failures.found
    failures.refused(T, LSN, PreconditionFailed("no key"))
    assert failures.found[T].lsn == 5


def test_only_errors_of_the_table_are_about_it() -> None:
    with pytest.raises(TableRefused) as refused, about(T):
        raise PreconditionFailed("no key")
    assert refused.value.table == T
    with pytest.raises(ConnectionLost), about(T):
        raise ConnectionLost("gone")
