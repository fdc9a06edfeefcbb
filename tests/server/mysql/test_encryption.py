"""A log that is encrypted on the server's disk: the server decrypts it for us."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog.sources.mysql.source import MySQL
from dblog.spark.options import read_options
from tests.conftest import MYSQL_SERVERS, MySQLDatabase, mysql_server_of

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif("mariadb" not in MYSQL_SERVERS, reason="mariadb is not installed: scripts/mariadb.sh"),
]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[MySQLDatabase]:
    keys = tmp_path / "keys"
    keys.write_text(f"1;{secrets.token_hex(32)}\n")
    settings = {
        "plugin_load_add": "file_key_management",
        "file_key_management_filename": str(keys),
        "encrypt_binlog": "ON",
    }
    with mysql_server_of("mariadb", **settings) as server:
        fresh = MySQLDatabase(server, "shop")
        fresh.create()
        yield fresh


def test_an_encrypted_log_is_read_from_every_place(database: MySQLDatabase) -> None:
    database.execute("create table t (id int primary key, v text)")
    source = read_options({"url": database.url, "tables": "shop.*"}).source
    assert isinstance(source, MySQL)
    source.prepare(followed=None)
    places = []
    for number in range(4):
        places.append(source.latest())
        database.execute(f"insert into t values ({number}, 'needle')")
        if number % 2:
            database.execute("flush binary logs")
    source.write_watermark("end")
    for number, place in enumerate(places):
        log = source.stream(place, None)
        rows: list[Any] = []
        while not rows or rows[-1] != "end":
            for run in log.read(5):
                rows += [row["id"] for _, batch in run.changes for row in batch.to_pylist()]
                rows += [run.token] if run.token else []
        log.close()
        assert rows == [*range(number, 4), "end"]
    for role in ("control", "log"):
        source._forget(role)
    written = b"".join(file.read_bytes() for file in database.server.data.glob("binlog.0*"))
    assert len(written) > 1000
    assert b"needle" not in written
