"""What is said when a stream cannot go on with a server."""

from __future__ import annotations

import pytest

from dblog.databases.mysql.flavor import MYSQL
from dblog.errors import PositionLost
from dblog.sources.mysql.events import position
from dblog.sources.mysql.resume import ServerLog, resume


class Said(ServerLog):
    """A server that says these things of its log."""

    def __init__(self, name: str, **files: int) -> None:
        self.flavor = MYSQL
        self._name, self._files = name, {f"binlog.{number[1:]}": size for number, size in files.items()}

    def name(self) -> str:
        return self._name

    def files(self) -> dict[str, int]:
        return self._files


@pytest.mark.parametrize(
    ("at", "files", "hint"),
    [
        (position(3, 500), {"_000004": 200, "_000005": 900}, "binlog_expire_logs_seconds"),
        (position(3, 500), {"_000001": 900}, "the log was reset"),
        (position(3, 500), {"_000002": 900, "_000003": 499, "_000004": 900}, "the log was reset"),
    ],
)
def test_a_log_that_is_purged_is_told_from_one_that_was_reset(at: int, files: dict[str, int], hint: str) -> None:
    with pytest.raises(PositionLost) as caught:
        resume(Said("a", **files), at, "server=a")
    assert hint in (caught.value.hint or "")
    assert ("expire" in str(caught.value)) == ("expire" in hint)


def test_a_position_that_the_log_reaches_is_taken_as_it_is() -> None:
    found = resume(Said("a", _000003=500), position(10, 500), "server=a shift=7")
    assert (found.position, found.delivered) == (position(10, 500), None)


def test_without_gtids_another_server_is_refused_with_advice_that_fits() -> None:
    with pytest.raises(PositionLost, match="without GTIDs") as caught:
        resume(Said("b", _000003=500), position(3, 500), "server=a")
    assert "gtid_mode = ON" in (caught.value.hint or "")
    assert "expire" not in str(caught.value)
