"""TLS with ZooKeeper, as the URL says it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dblog.errors import StateError
from dblog.state import check_store, open_store
from dblog.state.store import Document
from dblog.testing.server_process import free_port
from dblog.testing.zookeeper_server import ZooKeeperServer, find_zookeeper

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server shows of itself (`server`), what somebody else could show for it (`other`), and what a client
    shows (`card`): certificates that sign themselves."""
    folder = tmp_path_factory.mktemp("tls")
    here = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    for name in ("server", "other", "card"):
        made = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
        names = ["-subj", f"/CN={name}", "-addext", here]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *made]
        subprocess.run(command, check=True, capture_output=True)
    (folder / "both.pem").write_text((folder / "server.key").read_text() + (folder / "server.pem").read_text())
    return folder


@pytest.fixture(scope="module")
def encrypted(files: Path) -> Iterator[str]:
    """A server that asks clients for a certificate; the address of its encrypted port."""
    if find_zookeeper() is None or shutil.which("openssl") is None:
        pytest.skip("ZooKeeper needs PySpark and a Java, and the test needs openssl")
    port = free_port()
    settings = {
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(files / "both.pem"),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(files / "card.pem"),
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
        "ssl.clientHostnameVerification": "false",
    }
    server = ZooKeeperServer(settings=settings)
    with server:
        yield f"zookeeper://me:Pa55word@127.0.0.1:{port}/dblog"
        server.kill()


def test_a_store_is_reached_with_certificates_of_both_sides(encrypted: str, files: Path) -> None:
    card = f"ssl_cert={files / 'card.pem'}&ssl_key={files / 'card.key'}"
    store = open_store(f"{encrypted}?ssl_ca={files / 'server.pem'}&{card}")
    assert store.put("a", {"n": 1}) == 1
    store.close()
    for trust in ("ssl_mode=REQUIRED", f"ssl_mode=VERIFY_CA&ssl_ca={files / 'server.pem'}"):
        again = open_store(f"{encrypted}?{trust}&{card}")
        assert again.get("a") == Document({"n": 1}, 1)
        again.close()


@pytest.mark.parametrize(
    "query",
    ["", "?ssl_ca={0}/server.pem", "?ssl_ca={0}/other.pem&ssl_cert={0}/card.pem&ssl_key={0}/card.key"],
    ids=["without TLS", "without a certificate", "with another authority"],
)
def test_a_connection_that_is_not_safe_is_refused(encrypted: str, files: Path, query: str) -> None:
    url = encrypted + query.format(files)
    for use in (lambda: open_store(url, patience=1), lambda: check_store(url, patience=1)):
        with pytest.raises(StateError, match="cannot be reached") as caught:
            use()
        assert "TLS" in str(caught.value.hint)
        assert "Pa55word" not in str(caught.value)
