"""The state store in ZooKeeper."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator

import pytest

from dblog.errors import ConfigError, StateError
from dblog.state import open_store
from dblog.state.store import Document, Store
from dblog.state.zookeeper import clients
from dblog.state.zookeeper.address import parse
from dblog.testing.zookeeper_server import ZooKeeperEnsemble, ZooKeeperServer
from tests.conftest import in_memory
from tests.proxy import Proxy
from tests.state.shared import SECRET, SharedStoreSuite, eventually
from tests.state.workers import UrlPlace

pytestmark = pytest.mark.server


class TestZooKeeper(SharedStoreSuite):
    @pytest.fixture
    def url(self, zookeeper: ZooKeeperServer) -> str:
        return zookeeper.url(f"tests/{uuid.uuid4().hex}", f"dblog:{SECRET}")

    @pytest.fixture
    def proxy(self, zookeeper: ZooKeeperServer) -> Iterator[Proxy]:
        with Proxy(zookeeper) as between:
            yield between

    def test_a_handle_goes_on_after_its_session_has_expired(
        self, through: UrlPlace, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clients, "SESSION_SECONDS", 0.4)
        store = through.open()
        store.put("a", {"n": 1})
        client = clients._SHARED[parse(through.url)].client
        first = client.client_id
        proxy.refuse()
        proxy.cut()
        time.sleep(1.5)  # longer than the session lasts
        proxy.accept()
        assert eventually(lambda: store.get("a")) == Document({"n": 1}, 1)
        assert client.client_id != first
        assert store.put("a", {"n": 2}) == 2
        store.close()

    def test_another_user_may_not_read_it(self, url: str, zookeeper: ZooKeeperServer) -> None:
        store = open_store(url)
        store.put("a", {})
        path = url.partition(str(zookeeper.port))[2][1:]
        for login in ("", "dblog:another-Pa55word", f"other:{SECRET}"):
            with pytest.raises(StateError, match="NoAuth") as caught:
                open_store(zookeeper.url(path, login))
            assert "user and password" in str(caught.value.hint)
            assert "Pa55word" not in str(caught.value)
        store.close()

    def test_another_user_may_have_a_store_beside_it(self, zookeeper: ZooKeeperServer) -> None:
        folder = f"{uuid.uuid4().hex}/below"
        for number, login in enumerate(("dblog:another-Pa55word", f"other:{SECRET}", "")):
            store = open_store(zookeeper.url(f"{folder}/{number}", login))
            assert store.put("a", {}) == 1
            if number:
                store._session.client.delete(store._nodes.root, recursive=True)  # type: ignore[attr-defined]
            store.close()

    def test_a_value_that_is_too_large_is_refused(self, url: str) -> None:
        store = open_store(url)
        noise = "".join(
            random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTU", k=1_600_000)
        )
        for use in (lambda: store.put("a", {"text": noise}), lambda: store.add("a", {"text": noise})):
            with pytest.raises(StateError, match="takes up to 1,000,000") as caught:
                use()
            assert "postgresql://" in str(caught.value.hint)
        store.put("a", {"text": noise[:1_000_000]})
        store.append("log", [{"text": noise[:200_000]}] * 12, keep=100)
        assert len(store.tail("log")) == 12
        store.close()

    def test_many_small_appends_make_few_nodes(self, url: str) -> None:
        store = open_store(url)
        for n in range(120):
            store.append("log", [{"n": n}], keep=1000)
        assert [value["n"] for _, value in store.tail("log")] == list(range(120))
        session = store._session  # type: ignore[attr-defined]
        assert len(session.children(store._nodes.log("log"))) == 2  # type: ignore[attr-defined]
        store.close()

    def test_a_store_that_was_removed_is_not_written_to(self, url: str) -> None:
        store = open_store(url)
        store._session.client.delete(store._nodes.root, recursive=True)  # type: ignore[attr-defined]
        with pytest.raises(StateError, match="was removed"):
            store.stamp()
        store.close()


def test_followers_of_an_ensemble_show_every_write_and_it_survives_the_loss_of_a_server() -> None:
    with in_memory(), ZooKeeperEnsemble() as ensemble:
        path = f"tests/{uuid.uuid4().hex}"
        stores = [open_store(server.url(path), patience=3) for server in ensemble.servers]
        followers = [s for s, server in zip(stores, ensemble.servers, strict=True) if server is not ensemble.leader]
        n = 0
        for n in range(1, 151):
            stores[n % 3].put("a", {"n": n})
            assert followers[n % 2].get("a") == Document({"n": n}, n), "a follower that is behind has answered"
        for store in stores:
            store.close()
        anywhere = open_store(ensemble.url(path), patience=3)
        lost = ensemble.leader
        lost.kill()
        assert eventually(lambda: anywhere.get("a")) == Document({"n": n}, n)
        ensemble.wait()
        second = next(server for server in ensemble.servers if server.running)
        second.kill()
        assert until_refused(anywhere), "a server alone takes writes"
        lost.start()
        ensemble.wait()
        eventually(lambda: anywhere.put("b", {"last": True}))
        assert eventually(lambda: anywhere.get("a")) == Document({"n": n}, n)
        anywhere.close()


def until_refused(store: Store) -> bool:
    """Write until the last server notices that it is alone."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            store.put("b", {})
        except StateError:
            return True
    return False


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("zookeeper://me:secret@/path", "no server"),
        ("zookeeper://me:secret@host", "no path"),
        ("zookeeper://me:secret@host/", "no path"),
        ("zookeeper://me:sec/ret@host/path", "HOST:PORT|cannot be parsed"),
        ("zookeeper://me:secret@host:x/path", "HOST:PORT"),
        ("zookeeper://me:secret@host:2181,,b/path", "HOST:PORT"),
        ("zookeeper://me@host/path", "without a password"),
        ("zookeeper://me:secret@host/../path", "does not allow"),
        ("zookeeper://me:secret@host/path?tls=1", "unknown parameter: 'tls'"),
        ("zookeeper://me:secret@host/path?ssl_mode=maybe", "not one of DISABLED"),
        ("zookeeper://me:secret@host/path?ssl_ca=/nowhere", "does not exist"),
        ("zookeeper://me:sec%ret@host/path", "cannot be parsed"),
    ],
)
def test_a_wrong_url_is_refused_without_showing_secrets(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    assert "ret@" not in str(caught.value)


def test_a_url_names_servers_with_or_without_ports() -> None:
    address = parse("zookeeper://me:p%40ss@a,b:2182,[::1]:7/some/path?ssl_mode=required")
    assert address.hosts == ("a:2181", "b:2182", "[::1]:7")
    assert (address.path, address.user, address.password) == ("/some/path", "me", "p@ss")
    assert str(address) == "zookeeper://me:***@a:2181,b:2182,[::1]:7/some/path?ssl_mode=required"
    assert "p@ss" not in repr(address)
    assert address.encryption["use_ssl"]
    assert not parse("zookeeper://a/b").encryption
