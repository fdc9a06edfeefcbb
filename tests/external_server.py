"""A server that somebody else runs: DBLOG_TEST_MYSQL_URL=mysql://root:secret@host:3306 make test

The account needs every right. What ends, starts or reaches into a server is left out on this one.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NoReturn, Self

import pytest

from dblog.databases.mysql.connect import parse
from dblog.testing.mysql_server import USER

GIVEN = os.environ.get("DBLOG_TEST_MYSQL_URL")


class GivenServer:
    """In the place of a `MySQLServer`."""

    def __init__(self, url: str) -> None:
        self._address = parse(url)
        self.port = self._address.port

    def url(self, database: str = "", user: str = USER, password: str | None = None) -> str:
        at = self._address if user == USER else replace(self._address, user=user, password=password or "")
        return replace(at, database=database).masked.replace(":***@", f":{at.password}@")

    def start(self) -> Self:
        return self

    def stop(self) -> None:
        pass

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip(f"the server is not ours: {name}")
