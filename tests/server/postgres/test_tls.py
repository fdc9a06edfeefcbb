"""TLS as libpq does it: what the URL says of it holds for control, log and chunk connections alike."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from dblog.core.offset import Extent
from dblog.core.schema import TableName
from dblog.databases.postgres.connect import connect
from dblog.errors import PreconditionFailed
from dblog.sources.base import LogStream
from dblog.sources.postgres.source import Postgres
from dblog.spark.options import read_options
from dblog.testing.postgres_server import PostgresServer, find_install
from tests.conftest import Database
from tests.engine.conftest import wait_for

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(
        find_install("debian") is None, reason="the wheel's server has no TLS; Debian's is not installed"
    ),
]

T = TableName("public", "t")
HBA = "hostssl all card all cert\nhost all all all scram-sha-256\n"


@pytest.fixture(scope="module")
def files() -> Iterator[Path]:
    """What the server shows of itself (`server`), the same as its clients know it (`root`), what somebody else could
    show for it (`other`), and what a client may show (`card`): certificates that sign themselves."""
    folder = Path(tempfile.mkdtemp(prefix="dblog-tls-"))
    folder.chmod(0o755)
    for name, subject in {"server": "localhost", "other": "localhost", "card": "card"}.items():
        names = ["-subj", f"/CN={subject}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        made = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *made]
        subprocess.run(command, check=True, capture_output=True)
        (folder / f"{name}.key").chmod(0o600)
    shutil.copy(folder / "server.pem", folder / "root.pem")
    (folder / "hba.conf").write_text(HBA)
    if os.geteuid() == 0:
        account = pwd.getpwnam("postgres")
        for file in folder.glob("server.*"):
            os.chown(file, account.pw_uid, account.pw_gid)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def encrypted(files: Path) -> Iterator[Database]:
    settings = {
        "ssl": "on",
        "ssl_cert_file": str(files / "server.pem"),
        "ssl_key_file": str(files / "server.key"),
        "ssl_ca_file": str(files / "card.pem"),
        "hba_file": str(files / "hba.conf"),
        "fsync": "off",
    }
    with PostgresServer("debian", settings=settings) as server:
        database = Database(server, "postgres")
        database.execute("create role card login superuser")
        database.execute("create table t (id int primary key, v text)")
        database.execute("insert into t select g, 'v' from generate_series(1, 10) g")
        yield database


@pytest.fixture
def verified(files: Path) -> str:
    return f"sslmode=verify-full&sslrootcert={files / 'root.pem'}"


@pytest.fixture
def card(encrypted: Database, files: Path, verified: str) -> str:
    """The URL of a role that has a certificate and no password."""
    return f"{encrypted.server.url(user='card')}?{verified}&sslcert={files / 'card.pem'}&sslkey={files / 'card.key'}"


@pytest.fixture
def replace_certificate(encrypted: Database, files: Path, verified: str) -> Iterator[Callable[[], None]]:
    """A call after which new sessions meet a server that its clients do not know; those that are open stay."""

    def known() -> bool:
        try:
            psycopg2.connect(f"{encrypted.url}?{verified}").close()
        except psycopg2.OperationalError:
            return False
        return True

    def show(pair: dict[str, bytes], expected: bool) -> None:
        for kind, content in pair.items():
            (files / f"server{kind}").write_bytes(content)
        encrypted.execute("select pg_reload_conf()")
        deadline = time.monotonic() + 10
        while known() is not expected:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    own, other = (
        {kind: (files / f"{name}{kind}").read_bytes() for kind in (".pem", ".key")} for name in ("server", "other")
    )
    yield lambda: show(other, expected=False)
    show(own, expected=True)


def source_of(url: str) -> Postgres:
    return read_options({"url": url, "table": "t", "slot": "tls"}).source


@contextmanager
def following(url: str, database: Database) -> Iterator[tuple[Postgres, LogStream]]:
    """A source and its log; no session of them is left open."""
    source = source_of(url)
    source.prepare(followed=None)
    log = source.stream(source.origin().position)
    try:
        yield source, log
    finally:
        log.close()
        for role in ("control", "log", "chunks"):
            source._forget(role)
        active = "select 1 from pg_replication_slots where slot_name = 'tls' and active"
        wait_for(lambda: not database.execute(active))
        database.execute("select pg_drop_replication_slot('tls')")


def change(database: Database, log: LogStream) -> list[dict[str, Any]]:
    """Change a row; the rows that the log then shows."""
    database.execute("update t set v = 'w' where id = 3")
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + 10
    while not rows and time.monotonic() < deadline:
        rows += [r for run in log.read(0.1) for _, batch in run.changes for r in batch.to_pylist()]
    return rows


@pytest.mark.parametrize("shown", [None, "/CN=card"], ids=["password", "certificate"])
def test_every_connection_is_encrypted_and_shows_the_clients_certificate_if_there_is_one(
    encrypted: Database, verified: str, card: str, shown: str | None
) -> None:
    url = card if shown else f"{encrypted.url}?{verified}"
    with following(url, encrypted) as (source, log):
        assert [(r["id"], r["v"]) for r in change(encrypted, log)] == [(3, "w")]
        selected: list[Any] = []
        chunk = source.select(T, Extent(), None)
        chunk.read(selected.append)
        assert sum(batch.num_rows for batch in selected) == 10
        sessions = encrypted.execute(
            "select a.application_name, a.backend_type, s.ssl, s.client_dn "
            "from pg_stat_ssl s join pg_stat_activity a using (pid) "
            "where a.application_name like 'dblog%%' and a.usename = %s order by 1",
            [source.address.get("user")],
        )
    assert sessions == [
        ("dblog chunks", "client backend", True, shown),
        ("dblog control", "client backend", True, shown),
        ("dblog log", "client backend", True, shown),
        ("dblog tls", "walsender", True, shown),
    ]


@pytest.mark.parametrize("connection", ["control", "log", "schemas of the log", "chunks"])
def test_no_connection_is_made_to_a_server_that_cannot_prove_itself(
    encrypted: Database, verified: str, replace_certificate: Callable[[], None], connection: str
) -> None:
    with following(f"{encrypted.url}?{verified}", encrypted) as (source, log):
        position = source.origin().position
        opening: dict[str, Callable[[], object]] = {
            "control": source.tables,
            "log": lambda: source.stream(position),
            "schemas of the log": lambda: change(encrypted, log),
            "chunks": lambda: source.select(T, Extent(), None),
        }
        replace_certificate()
        if connection == "control":
            source._forget("control")
        elif connection == "log":
            log.close()  # otherwise it is seen first that the slot has a reader
        elif connection == "schemas of the log":
            source._forget("log")
        with pytest.raises(PreconditionFailed, match="certificate verify failed") as caught:
            opening[connection]()
        assert "sslrootcert" in (caught.value.hint or "")


@pytest.mark.parametrize("replication", [False, True], ids=["plain", "replication"])
def test_a_server_of_another_name_is_refused_where_the_url_asks_for_the_name(
    encrypted: Database, files: Path, replication: bool
) -> None:
    elsewhere = f"{encrypted.url.replace('@127.0.0.1:', '@db.example:')}?hostaddr=127.0.0.1"
    root = f"sslrootcert={files / 'root.pem'}"
    with pytest.raises(PreconditionFailed, match=r"does not match host name \"db\.example\"") as caught:
        connect(f"{elsewhere}&sslmode=verify-full&{root}", replication=replication)
    assert "sslmode" in (caught.value.hint or "")
    connect(f"{elsewhere}&sslmode=verify-ca&{root}", replication=replication).close()


def test_a_root_certificate_that_is_not_there_is_an_error(encrypted: Database) -> None:
    with pytest.raises(PreconditionFailed) as caught:
        source_of(f"{encrypted.url}?sslmode=verify-full&sslrootcert=/nonexistent/root.pem").tables()
    assert "sslrootcert" in (caught.value.hint or "")


def test_a_client_without_its_certificate_is_refused_and_told_where_to_put_it(encrypted: Database, card: str) -> None:
    with pytest.raises(PreconditionFailed, match="certificate") as caught:
        source_of(card.partition("&sslcert=")[0]).tables()
    assert "sslcert and sslkey" in (caught.value.hint or "")


@pytest.mark.parametrize("postgres", ["pg18"], indirect=True)
def test_a_server_without_tls_is_refused_when_the_url_requires_it(postgres: PostgresServer) -> None:
    with pytest.raises(PreconditionFailed) as caught:
        source_of(f"{postgres.url()}?sslmode=require").tables()
    assert "sslmode" in (caught.value.hint or "")
