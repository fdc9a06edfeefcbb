"""The looks at the tables, without a server."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from dblog.capture.effects import Effects
from dblog.core.offset import Followed, Offset
from dblog.core.schema import TableName
from dblog.errors import ConnectionLost
from dblog.planning.following import Following
from dblog.sources.base import Survey

T = TableName("public", "t")
START = Offset(10, followed={T: Followed("1")})


class Source:
    def __init__(self) -> None:
        self.surveys = 0
        self.lost = False

    def check_position(self, position: int, place: str | None) -> None: ...

    def survey(self, followed: Mapping[TableName, Followed]) -> Survey:
        self.surveys += 1
        if self.lost:
            self.lost = False
            raise ConnectionLost("the connection broke")
        return Survey(dict(followed))


class Capture:
    reached, log = (10, None), None

    def __init__(self) -> None:
        self.redefined = threading.Event()


def test_a_look_that_the_log_asked_for_is_done_again_when_the_connection_breaks() -> None:
    now, source, capture = [100.0], Source(), Capture()
    effects = Effects(monotonic=lambda: now[0])
    options: Any = {"renamed": False, "new": True, "seconds": 3600.0, "tell": print, "knows": bool}
    following = Following(source, **options, effects=effects)  # type: ignore[arg-type]
    following.look(START, capture)  # type: ignore[arg-type]
    assert source.surveys == 1
    now[0] += 5
    capture.redefined.set()
    source.lost = True
    with pytest.raises(ConnectionLost):
        following.look(START, capture)  # type: ignore[arg-type]
    following.look(START, capture)  # type: ignore[arg-type]
    assert source.surveys == 3
    assert not capture.redefined.is_set()
