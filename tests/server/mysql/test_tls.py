"""TLS as the URL says it, for control, log and chunk connections alike."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dblog.core.offset import Extent
from dblog.core.schema import TableName
from dblog.databases.mysql.connect import connect
from dblog.errors import ConfigError, PreconditionFailed
from dblog.sources.mysql.source import MySQL
from dblog.sources.mysql.stream import MySQLLog
from dblog.spark.options import read_options
from tests.conftest import MYSQL_SERVERS, MySQLDatabase, mysql_server_of

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif("mariadb" not in MYSQL_SERVERS, reason="mariadb is not installed: scripts/mariadb.sh"),
]

T = TableName("shop", "t")
PASSWORD = "s3cret-%-word"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server shows of itself (`server`), the same as its clients know it (`root`), what somebody else could
    show for it (`other`), what it could show under another name (`away`), and what a client may show (`card`):
    certificates that sign themselves."""
    folder = tmp_path_factory.mktemp("tls")
    here = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    for name in ("server", "other", "away", "card"):
        names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:db.example" if name == "away" else here]
        made = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *made]
        subprocess.run(command, check=True, capture_output=True)
    shutil.copy(folder / "server.pem", folder / "root.pem")
    shutil.copy(folder / "server.key", folder / "root.key")
    return folder


@pytest.fixture(scope="module")
def encrypted(files: Path) -> Iterator[MySQLDatabase]:
    shown = {"ssl_cert": files / "server.pem", "ssl_key": files / "server.key", "ssl_ca": files / "card.pem"}
    with mysql_server_of("mariadb", **{name: str(path) for name, path in shown.items()}) as server:
        database = MySQLDatabase(server, "shop")
        database.create()
        database.execute(
            "create table t (id int primary key, v text)", "insert into t select seq, 'v' from seq_1_to_10"
        )
        for name, need in {"plain": "none", "safe": "ssl", "card": "x509"}.items():
            database.execute(
                f"create user {name}@'%' identified by '{PASSWORD}' require {need}",
                f"grant all on *.* to {name}@'%'",
            )
        yield database


@pytest.fixture
def show(encrypted: MySQLDatabase, files: Path) -> Iterator[Callable[[str], None]]:
    """A call after which new sessions meet another certificate; those that are open stay."""

    def replace(name: str) -> None:
        for kind in (".pem", ".key"):
            shutil.copy(files / f"{name}{kind}", files / f"server{kind}")
        encrypted.execute("flush ssl")

    yield replace
    replace("root")


def url_of(database: MySQLDatabase, user: str, **parameters: object) -> str:
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    return database.server.url("shop", user, PASSWORD) + (f"?{query}" if query else "")


@contextmanager
def following(url: str) -> Iterator[tuple[MySQL, MySQLLog]]:
    """A source and its log; no session of them is left open."""
    source = read_options({"url": url, "table": "t"}).source
    assert isinstance(source, MySQL)
    try:
        source.prepare(followed=None)
        origin = source.origin()
        log = source.stream(origin.position, origin.coordinate)
        yield source, log
        log.close()
    finally:
        for role in ("control", "log", "chunks"):
            source._forget(role)


def change(database: MySQLDatabase, log: MySQLLog) -> list[dict[str, Any]]:
    """Change a row; the rows that the log then shows."""
    database.execute("update t set v = concat(v, 'w') where id = 3")
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + 10
    while not rows and time.monotonic() < deadline:
        rows += [row for run in log.read(0.1) for _, batch in run.changes for row in batch.to_pylist()]
    return rows


@pytest.mark.parametrize("user", ["safe", "card"])
def test_every_connection_is_encrypted_and_shows_the_clients_certificate_if_there_is_one(
    encrypted: MySQLDatabase, files: Path, user: str
) -> None:
    """The server lets these users in no other way."""
    own = {"ssl_cert": files / "card.pem", "ssl_key": files / "card.key"} if user == "card" else {}
    url = url_of(encrypted, user, ssl_mode="VERIFY_IDENTITY", ssl_ca=files / "root.pem", **own)
    with following(url) as (source, log):
        assert [row["id"] for row in change(encrypted, log)] == [3]
        selected: list[Any] = []
        source.select(T, Extent(), None).read(selected.append)
        assert sum(batch.num_rows for batch in selected) == 10


@pytest.mark.parametrize("mode", ["VERIFY_CA", "VERIFY_IDENTITY"])
@pytest.mark.parametrize("connection", ["control", "log", "chunks"])
def test_no_connection_is_made_to_a_server_that_cannot_prove_itself(
    encrypted: MySQLDatabase, files: Path, show: Callable[[str], None], connection: str, mode: str
) -> None:
    with following(url_of(encrypted, "safe", ssl_mode=mode, ssl_ca=files / "root.pem")) as (source, _):
        origin = source.origin()
        opening: dict[str, Callable[[], object]] = {
            "control": source.tables,
            "log": lambda: source.stream(origin.position, origin.coordinate),
            "chunks": lambda: source.select(T, Extent(), None),
        }
        show("other")
        if connection == "control":
            source._forget("control")
        with pytest.raises(PreconditionFailed, match="certificate verify failed") as caught:
            opening[connection]()
        assert "ssl_ca" in (caught.value.hint or "")
        assert PASSWORD not in str(caught.value)


def test_a_server_of_another_name_is_refused_where_the_url_asks_for_the_name(
    encrypted: MySQLDatabase, files: Path, show: Callable[[str], None]
) -> None:
    show("away")
    with pytest.raises(PreconditionFailed, match=r"certificate is not valid for '127\.0\.0\.1'"):
        connect(url_of(encrypted, "safe", ssl_mode="VERIFY_IDENTITY", ssl_ca=files / "away.pem"))
    connect(url_of(encrypted, "safe", ssl_mode="VERIFY_CA", ssl_ca=files / "away.pem")).close()


def test_an_authority_that_is_named_is_asked_and_one_that_is_not_is_not(
    encrypted: MySQLDatabase, files: Path, show: Callable[[str], None]
) -> None:
    show("other")
    with pytest.raises(PreconditionFailed, match="certificate verify failed"):
        connect(url_of(encrypted, "safe", ssl_ca=files / "root.pem"))
    connect(url_of(encrypted, "safe", ssl_mode="REQUIRED")).close()


@pytest.mark.parametrize("name", ["ssl_ca", "ssl_cert"])
def test_a_file_that_is_not_there_is_an_error(encrypted: MySQLDatabase, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}='/nonexistent/file.pem'") as caught:
        connect(url_of(encrypted, "safe", **{name: "/nonexistent/file.pem"}))
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(("user", "mode"), [("safe", "DISABLED"), ("card", "REQUIRED")])
def test_a_user_who_must_use_tls_and_does_not_is_told(encrypted: MySQLDatabase, user: str, mode: str) -> None:
    with pytest.raises(PreconditionFailed, match="Access denied") as caught:
        connect(url_of(encrypted, user, ssl_mode=mode))
    assert "TLS" in (caught.value.hint or "")
    assert PASSWORD not in str(caught.value)


def test_a_server_that_wants_tls_of_everybody_says_so(encrypted: MySQLDatabase) -> None:
    encrypted.execute("set global require_secure_transport = ON")
    try:
        with pytest.raises(PreconditionFailed) as caught:
            connect(url_of(encrypted, "plain", ssl_mode="DISABLED"))
        connect(url_of(encrypted, "plain")).close()  # TLS where the server offers it
    finally:
        encrypted.execute("set global require_secure_transport = OFF")
    assert "TLS" in (caught.value.hint or "")
    connect(url_of(encrypted, "plain", ssl_mode="DISABLED")).close()


@pytest.mark.parametrize("mysql_server", ["mariadb"], indirect=True)
@pytest.mark.parametrize("mode", ["REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"])
def test_a_server_without_tls_is_refused_when_the_url_requires_it(
    mysql_database: MySQLDatabase, files: Path, mode: str
) -> None:
    files_of = {} if mode == "REQUIRED" else {"ssl_ca": files / "root.pem"}
    query = "&".join(f"{name}={value}" for name, value in {"ssl_mode": mode, **files_of}.items())
    with pytest.raises(PreconditionFailed, match="SSL is required") as caught:
        connect(f"{mysql_database.url}?{query}")
    assert "ssl_mode" in (caught.value.hint or "")
    connect(mysql_database.url).close()


@pytest.mark.parametrize("mode", ["DISABLED", "REQUIRED"])
def test_a_wrong_password_is_not_shown(encrypted: MySQLDatabase, mode: str) -> None:
    wrong = encrypted.server.url("shop", "plain", "wr0ng/word@%")
    with pytest.raises(PreconditionFailed) as caught:
        connect(f"{wrong}?ssl_mode={mode}")
    shown = f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"
    assert "plain:***@127.0.0.1" in shown
    assert "wr0ng" not in shown
