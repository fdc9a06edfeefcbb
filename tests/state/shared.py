"""What every store does that machines share: it is reached over a network, which breaks."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from dblog.errors import Conflict, StateError
from dblog.state import check_store, open_store
from dblog.state.store import Document
from tests.proxy import Proxy
from tests.state import workers
from tests.state.suite import StoreSuite
from tests.state.workers import PROCESSES, Place, UrlPlace

SECRET = "s3cret-Pa55word"


class SharedStoreSuite(StoreSuite):
    increments, additions, appends = 40, 40, 45

    @pytest.fixture
    def proxy(self) -> Iterator[Proxy]:
        """A proxy in front of the store's server."""
        raise NotImplementedError

    @pytest.fixture
    def url(self) -> str:
        """The URL of a store that is one test's own."""
        raise NotImplementedError

    @pytest.fixture
    def place(self, url: str) -> Place:
        return UrlPlace(url)

    @pytest.fixture
    def through(self, proxy: Proxy, url: str) -> UrlPlace:
        """The same store, by way of the proxy, with little patience."""
        return UrlPlace(proxy.through(url), 1.0)

    def test_processes_that_create_it_at_once_have_one_store(
        self, place: Place, processes: ProcessPoolExecutor
    ) -> None:
        at = time.time() + 0.5
        working = [processes.submit(workers.create, place, at) for _ in range(PROCESSES)]
        assert len({each.result(60) for each in working}) == 1
        store = place.open()
        assert len(store.list("openings")) == PROCESSES
        store.close()

    def test_a_check_creates_nothing(self, url: str) -> None:
        check_store(url)
        store = open_store(url)
        store.put("a", {})
        first = store.id
        check_store(url)
        assert store.id == first
        store.close()

    def test_a_handle_goes_on_after_its_connection_was_cut(self, through: UrlPlace, proxy: Proxy) -> None:
        store = through.open()
        store.put("a", {"n": 1})
        proxy.cut()
        assert store.get("a") == Document({"n": 1}, 1)
        proxy.cut()
        time.sleep(0.1)  # the client has noticed it
        assert store.put("a", {"n": 2}, version=1) == 2
        before = store.stamp()
        proxy.cut()
        assert store.list("") == {"a": Document({"n": 2}, 2)}
        assert store.stamp().split()[0] == before.split()[0]
        store.close()

    def test_a_closed_handle_s_connection_may_break_before_it_is_used_again(
        self, through: UrlPlace, proxy: Proxy
    ) -> None:
        first = through.open()
        first.put("a", {"n": 1})
        first.close()
        proxy.cut()
        again = through.open()
        assert again.get("a") == Document({"n": 1}, 1)
        again.close()

    def test_no_acknowledged_write_is_lost_when_connections_are_cut(
        self, through: UrlPlace, proxy: Proxy, place: Place
    ) -> None:
        store, stop = through.open(), threading.Event()

        def cut() -> None:
            while not stop.wait(0.03):
                proxy.cut()

        cutting = threading.Thread(target=cut)
        cutting.start()
        done = unknown = 0
        try:
            deadline = time.monotonic() + 30
            while (done < 40 or not unknown) and done < 400 and time.monotonic() < deadline:
                try:
                    seen = store.get("count")
                    n, version = (seen.value["n"], seen.version) if seen else (0, 0)
                    store.put("count", {"n": n + 1}, version=version)
                    done += 1
                except Conflict:
                    unknown += 1  # the store has repeated a write that had been done
                except StateError:
                    unknown += 1
        finally:
            stop.set()
            cutting.join()
        store.close()
        assert done >= 40
        direct = place.open()
        found = direct.get("count")
        assert found is not None
        assert found.version == found.value["n"]
        assert done <= found.value["n"] <= done + unknown
        direct.close()

    def test_a_server_that_does_not_answer_is_an_error_and_then_works_again(
        self, through: UrlPlace, proxy: Proxy
    ) -> None:
        store = through.open()
        store.put("a", {"n": 1})
        proxy.pause()
        began = time.monotonic()
        for use in (lambda: store.get("a"), lambda: store.put("b", {}), through.open):
            with pytest.raises(StateError) as caught:
                use()
            assert SECRET not in str(caught.value)
        assert time.monotonic() - began < 20, "the patience is 1 s"
        proxy.cut()
        proxy.resume()
        assert eventually(lambda: store.get("a")) == Document({"n": 1}, 1)
        store.close()

    def test_a_server_that_is_away_is_an_error_without_secrets(
        self, through: UrlPlace, proxy: Proxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.DEBUG):
            store = through.open()
            store.put("a", {"n": 1})
            proxy.refuse()
            proxy.cut()
            for use in (lambda: store.put("a", {}), through.open, lambda: check_store(through.url, patience=1)):
                with pytest.raises(StateError) as caught:
                    use()
                shown: BaseException | None = caught.value
                while shown is not None:
                    assert SECRET not in str(shown)
                    shown = shown.__cause__
                assert caught.value.hint
            proxy.accept()
            assert eventually(lambda: store.get("a")) is not None
            store.close()
        assert SECRET not in caplog.text

    def test_a_forked_child_has_a_connection_of_its_own(self, place: Place) -> None:
        store = place.open()
        store.put("a", {"n": 1})
        child = os.fork()
        if child == 0:
            code = 1
            try:
                store.put("a", {"n": 2})
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert store.get("a") == Document({"n": 2}, 2)
        store.close()

    def test_a_key_that_is_too_long_is_refused(self, place: Place) -> None:
        store = place.open()
        longest = "ä" * 500
        assert store.put(longest, {}) == 1
        assert list(store.list("")) == [longest]
        for use in (lambda: store.put("a" * 1001, {}), lambda: store.add("a" * 1000, {})):
            with pytest.raises(StateError, match="more than 1000 bytes"):
                use()
        store.close()

    def test_very_many_documents(self, place: Place) -> None:
        store = place.open()
        store.append("p/log", [{"n": n, "text": "x" * 100} for n in range(5000)], keep=10_000)
        for n in range(150):
            store.put(f"p/requests/{n}", {"n": n})
        assert len(store.versions("p/requests")) == len(store.list("p/requests")) == 150
        assert [value["n"] for _, value in store.tail("p/log", limit=10**6)] == list(range(5000))
        store.delete("p")
        assert store.list("p/requests") == {}
        assert store.tail("p/log") == []
        store.close()


def eventually(read: object) -> object:
    """The result of a call that may fail for a while."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return read()  # type: ignore[operator]
        except StateError:
            assert time.monotonic() < deadline
