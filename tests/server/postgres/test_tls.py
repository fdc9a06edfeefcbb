"""TLS as libpq does it: the URL's sslmode decides, for control, log and chunk connections alike."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dblog.demo.server import PostgresServer, find_install
from dblog.errors import PreconditionFailed
from dblog.spark.options import read_options
from tests.conftest import Database

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(
        find_install("debian") is None, reason="the wheel's server has no TLS; Debian's is not installed"
    ),
]


@pytest.fixture(scope="module")
def certificate() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dblog-tls-"))
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files],
        check=True,
        capture_output=True,
    )
    os.chmod(folder, 0o755)
    os.chmod(folder / "key.pem", 0o600)
    if os.geteuid() == 0:
        account = pwd.getpwnam("postgres")
        for file in folder.iterdir():
            os.chown(file, account.pw_uid, account.pw_gid)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def encrypted(certificate: Path) -> Iterator[Database]:
    settings = {
        "ssl": "on",
        "ssl_cert_file": str(certificate / "cert.pem"),
        "ssl_key_file": str(certificate / "key.pem"),
        "fsync": "off",
    }
    with PostgresServer("debian", settings=settings) as server:
        database = Database(server, "postgres")
        database.execute("create table t (id int primary key, v text)")
        database.execute("insert into t select g, 'v' from generate_series(1, 10) g")
        yield database


def test_every_connection_is_encrypted_and_the_server_is_verified(encrypted: Database, certificate: Path) -> None:
    url = f"{encrypted.url}?sslmode=verify-full&sslrootcert={certificate / 'cert.pem'}"
    source = read_options({"url": url, "table": "t", "slot": "tls"}).source
    source.prepare(followed=None)
    stream = source.stream(source.origin().position)
    try:
        encrypted.execute("update t set v = 'w' where id = 3")
        rows: list[dict[str, Any]] = []
        deadline = time.monotonic() + 10
        while not rows and time.monotonic() < deadline:
            rows += [r for run in stream.read(0.1) for _, batch in run.changes for r in batch.to_pylist()]
        assert [(r["id"], r["v"]) for r in rows] == [(3, "w")]
        secure = encrypted.execute(
            "select a.backend_type, s.ssl from pg_stat_ssl s join pg_stat_activity a using (pid) "
            "where a.application_name like 'dblog%'"
        )
        assert {kind for kind, _ in secure} == {"client backend", "walsender"}
        assert all(ssl for _, ssl in secure)
    finally:
        stream.close()
        encrypted.execute("select pg_drop_replication_slot('tls')")


def test_a_server_that_cannot_prove_itself_is_refused(encrypted: Database) -> None:
    url = f"{encrypted.url}?sslmode=verify-full&sslrootcert=/nonexistent/root.pem"
    with pytest.raises(PreconditionFailed) as caught:
        read_options({"url": url, "table": "t"}).source.tables()
    assert "sslrootcert" in (caught.value.hint or "")


@pytest.mark.parametrize("postgres", ["pg18"], indirect=True)
def test_a_server_without_tls_is_refused_when_the_url_requires_it(postgres: PostgresServer) -> None:
    url = f"{postgres.url()}?sslmode=require"
    with pytest.raises(PreconditionFailed) as caught:
        read_options({"url": url, "table": "t"}).source.tables()
    assert "sslmode" in (caught.value.hint or "")
