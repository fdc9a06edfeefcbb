"""A log that does not describe its columns is read with the help of the catalog, or not at all."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dblog.core.offset import Extent, Followed
from dblog.core.schema import TableName
from dblog.errors import DecodeError
from dblog.sources.mysql.source import MySQL
from dblog.sources.mysql.stream import MySQLLog
from dblog.spark.options import read_options
from dblog.testing.mysql_server import MySQLServer
from tests.conftest import MYSQL_SERVERS, MySQLDatabase, mysql_server_of

pytestmark = pytest.mark.server

T = TableName("shop", "t")
# Each type once, in an order in which a column that is read as its neighbour would show.
COLUMNS = {
    "a": ("tinyint unsigned", "200"),
    "b": ("tinyint not null", "-100"),
    "c": ("bigint unsigned", "18446744073709551615"),
    "d": ("year", "2026"),
    "e": ("decimal(12,4) unsigned", "1234.5678"),
    "f": ("float", "1.5"),
    "g": ("double unsigned", "2.25"),
    "h": ("varchar(20) character set latin1", "'é'"),
    "i": ("varchar(20) character set utf8mb4", "'é😀'"),
    "j": ("varbinary(20)", "x'00ff'"),
    "k": ("char(5) character set ucs2", "'ж'"),
    "l": ("binary(5)", "x'01'"),
    "m": ("mediumtext character set utf8mb3", "'ж'"),
    "n": ("blob", "x'80'"),
    "o": ("enum('x','é') character set latin1", "'é'"),
    "p": ("set('u','v','w')", "'u,w'"),
    "q": ("bit(11)", "b'10000000001'"),
    "r": ("datetime(3)", "'2026-01-02 03:04:05.678'"),
    "s": ("timestamp(6) null", "'2026-01-02 03:04:05.678901'"),
    "t": ("time(1)", "'-12:34:56.7'"),
    "u": ("date", "'2026-01-02'"),
    "v": ("json", "'{\"a\": 1}'"),
    "w": ("point", "point(1, 2)"),
}
OWN_COLUMNS = {
    "mariadb": {
        "x": ("uuid", "'123e4567-e89b-12d3-a456-426655440000'"),
        "y": ("inet6", "'::1'"),
        "z": ("varchar(50) compressed", "repeat('z', 50)"),
    },
    "mysql": {"x": ("vector(2)", "string_to_vector('[1, 2]')")},
}
BARE = [("mariadb", "NO_LOG"), ("mariadb", "MINIMAL"), ("mysql", "MINIMAL")]
FULL = [("mariadb", "FULL"), ("mysql", "FULL")]


def on(*cases: tuple[str, str]) -> pytest.MarkDecorator:
    """Run a test on servers of these families, with this much metadata in their logs."""
    there = [case for case in cases if case[0] in MYSQL_SERVERS]
    return pytest.mark.parametrize("database", there, indirect=True, ids=" ".join)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, MySQLServer]]:
    """Those whose settings nobody else minds, not yet started."""
    made = {name: mysql_server_of(name) for name in MYSQL_SERVERS}
    yield made
    for server in made.values():
        server.stop()


@pytest.fixture
def database(request: pytest.FixtureRequest, servers: dict[str, MySQLServer]) -> Iterator[MySQLDatabase]:
    family, metadata = request.param
    fresh = MySQLDatabase(servers[family].start(), "shop")
    fresh.create()
    fresh.execute(
        f"set global binlog_row_metadata = {metadata}",
        "create table t (id int unsigned, part varchar(10), v int, primary key (part, id))",
    )
    yield fresh
    fresh.drop()


@contextmanager
def following(database: MySQLDatabase, after: int | None = None) -> Iterator[tuple[MySQL, MySQLLog]]:
    source = read_options({"url": database.url, "tables": "shop.*"}).source
    assert isinstance(source, MySQL)
    source.prepare(followed=None)
    log = source.stream(source.latest() if after is None else after, None)
    try:
        yield source, log
    finally:
        log.close()
        for role in ("control", "log", "chunks"):
            source._forget(role)


def latest(database: MySQLDatabase) -> int:
    return read_options({"url": database.url, "tables": "shop.*"}).source.latest()


def changes(source: MySQL, log: MySQLLog) -> list[dict[str, Any]]:
    """All rows of the log up to now, which a watermark tells."""
    token = uuid.uuid4().hex
    source.write_watermark(token)
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + 20
    while True:
        for run in log.read(0.1):
            rows += [row for _, batch in run.changes for row in batch.to_pylist()]
            if run.token == token:
                for failure in source.failures().values():
                    raise failure.error
                return [{name: value for name, value in row.items() if name[0] != "_"} for row in rows]
        assert time.monotonic() < deadline


def dumped(source: MySQL, table: TableName) -> list[dict[str, Any]]:
    batches: list[Any] = []
    source.select(table, Extent(), None).read(batches.append)
    return [row for batch in batches for row in batch.to_pylist()]


@on(*BARE, *FULL)
def test_every_type_is_read_without_metadata(database: MySQLDatabase) -> None:
    columns = COLUMNS | OWN_COLUMNS[database.server.family.name]
    database.execute(
        f"create table wide (id int primary key, {', '.join(f'{n} {kind}' for n, (kind, _) in columns.items())})",
    )
    with following(database) as (source, log):
        values = ", ".join(value for _, value in columns.values())
        database.execute(f"insert into wide values (1, {values})", "insert into wide (id, b) values (-2, 0)")
        database.execute("insert into t values (4000000000, 'x', -1)")
        *wide, narrow = changes(source, log)
        assert sorted(wide, key=lambda row: -row["id"]) == dumped(source, TableName("shop", "wide"))[::-1]
        assert narrow == {"id": 4000000000, "part": "x", "v": -1}
        assert wide[0]["c"] == 2**64 - 1
        assert wide[0]["h"] == "é"


@on(*(case for case in BARE + FULL if case[0] == "mariadb"))
def test_what_only_the_server_sees_is_left_out(database: MySQLDatabase) -> None:
    """MariaDB keeps hashes of long unique keys in columns of the table, and logs them."""
    database.execute(
        "create table u (id int primary key, a blob unique, b text not null unique, DB_ROW_HASH_1 int)",
        "alter table u add c text, add unique (c, id)",
    )
    with following(database) as (source, log):
        database.execute("insert into u values (1, 'a', 'b', 7, 'c')")
        assert changes(source, log) == [{"id": 1, "a": b"a", "b": "b", "DB_ROW_HASH_1": 7, "c": "c"}]
        assert dumped(source, TableName("shop", "u")) == [{"id": 1, "a": b"a", "b": "b", "DB_ROW_HASH_1": 7, "c": "c"}]


@on(*BARE)
@pytest.mark.parametrize(
    ("alter", "wrong"),
    [
        ("add w int", "3 columns in the log and 4 in the catalog"),
        ("drop v", "3 columns in the log and 2 in the catalog"),
        ("modify v bigint", "'v' differ"),
        ("modify v int not null", "'v' differ"),
        ("modify part varchar(11)", "'part' differ"),
        ("modify v int first", "'v', 'id', 'part' differ"),
    ],
)
def test_a_catalog_that_has_gone_on_is_refused(database: MySQLDatabase, alter: str, wrong: str) -> None:
    begin = latest(database)
    database.execute("insert into t values (1, 'x', 7)", f"alter table t {alter}")
    with following(database, begin) as (source, log), pytest.raises(DecodeError, match=wrong) as caught:
        changes(source, log)
    assert "table shop.t" in caught.value.message
    assert "binlog_row_metadata = FULL" in (caught.value.hint or "")


@on(("mariadb", "MINIMAL"), ("mysql", "MINIMAL"))
@pytest.mark.parametrize("alter", ["modify v int unsigned", "modify part varchar(10) collate utf8mb4_bin"])
def test_little_metadata_is_still_compared(database: MySQLDatabase, alter: str) -> None:
    begin = latest(database)
    database.execute("insert into t values (1, 'x', 7)", f"alter table t {alter}")
    with following(database, begin) as (source, log), pytest.raises(DecodeError, match="differ in log and catalog"):
        changes(source, log)


@on(*BARE)
def test_a_table_that_is_gone_is_refused(database: MySQLDatabase) -> None:
    read_options({"url": database.url, "tables": "shop.*"}).source.prepare(followed=None)
    begin = latest(database)
    database.execute("create table u (id int primary key)", "insert into t values (1, 'x', 7)", "drop table t")
    source = read_options({"url": database.url, "tables": "shop.u, shop.t"}).source
    assert isinstance(source, MySQL)
    source.follow({TableName("shop", "t"): Followed()})  # it was there when the stream began
    log = source.stream(begin, None)
    try:
        with pytest.raises(DecodeError, match="the table does not exist any more"):
            changes(source, log)
    finally:
        log.close()


@on(*BARE)
def test_an_alter_under_the_eyes_of_the_reader_is_followed(database: MySQLDatabase) -> None:
    with following(database) as (source, log):
        database.execute("insert into t values (1, 'x', 7)")
        assert changes(source, log) == [{"id": 1, "part": "x", "v": 7}]
        database.execute("alter table t add w int first")
        database.execute("insert into t values (5, 2, 'y', 8)")
        assert changes(source, log) == [{"w": 5, "id": 2, "part": "y", "v": 8}]


@on(*FULL)
def test_only_the_table_of_this_very_name_counts(database: MySQLDatabase) -> None:
    """Names in another case are other tables, which the catalog finds as well when it is asked for several."""
    database.execute("create table T (id int primary key)", "create table other (id int primary key)")
    source = read_options({"url": database.url, "tables": "shop.t, shop.other"}).source
    described = source.tables()
    assert sorted(described) == [TableName("shop", "other"), T]
    assert described[T].names == ("id", "part", "v")
