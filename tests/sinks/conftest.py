"""Source databases for the tests of sinks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.conftest import MYSQL_SERVERS, SERVERS
from tests.families import AnyDatabase, OnMySQL, OnPostgres

FAMILIES = [*SERVERS[:1], *MYSQL_SERVERS[:1]]

on_families = pytest.mark.parametrize("database", FAMILIES, indirect=True)
"""The test runs on one server of each family, not on PostgreSQL alone."""


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[AnyDatabase]:
    """The source: a database of the test's own on a running server."""
    server, name = getattr(request, "param", SERVERS[0]), f"test_{uuid.uuid4().hex[:12]}"
    fresh: AnyDatabase
    if server in SERVERS:
        fresh = OnPostgres(request.getfixturevalue("servers")[server].start(), name)
    else:
        fresh = OnMySQL(request.getfixturevalue("mysql_servers")[server].start(), name)
    fresh.create()
    yield fresh
    fresh.drop()
