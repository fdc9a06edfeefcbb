"""What every state store does. An implementation passes it with a class that says where its stores are:

class TestZooKeeper(StoreSuite):
    @pytest.fixture
    def place(self) -> Place: ...
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from dblog.errors import Conflict, StateError
from dblog.state.store import Document, Store
from tests.state import workers
from tests.state.workers import BATCH, FILLING, PROCESSES, Place

Again = Callable[[], Store]

ODD = [
    "with space",
    "%",
    "a%",
    "a_",
    "a*?[b]",
    "quote'\"`",
    "back\\slash",
    "%2F",
    ".",
    "..",
    "0",
    "Z",
    "z",
    "ä",
    "日本",
    "🙂",
    "-- ; DROP",
    "#?&=:",
    "tab\tnew\nline",
]


class StoreSuite:
    increments, additions, appends, told = 200, 100, 90, 3
    """How much the other processes write; a store that takes longer for a write gets less."""

    @pytest.fixture
    def place(self) -> Place:
        raise NotImplementedError

    @pytest.fixture
    def again(self, place: Place) -> Iterator[Again]:
        """Opens one more handle of the same store."""
        handles: list[Store] = []

        def open_again() -> Store:
            handles.append(place.open())
            return handles[-1]

        yield open_again
        for handle in handles:
            handle.close()

    @pytest.fixture
    def store(self, again: Again) -> Store:
        return again()

    # -- documents -------------------------------------------------------------------------------------------

    def test_the_id_stays(self, store: Store, again: Again) -> None:
        assert store.id
        assert again().id == store.id
        store.close()
        assert again().id == store.id

    def test_the_stamp_changes_when_another_handle_writes_and_only_then(self, store: Store, again: Again) -> None:
        other = again()
        stamps = [store.stamp()]
        store.get("a")
        store.list("")
        other.get("a")
        assert store.stamp() == stamps[0]
        for write in (
            lambda: other.put("a", {"n": 1}),
            lambda: other.put("a", {"n": 2}),
            lambda: other.add("b", {}),
            lambda: other.append("log", [{}], keep=10),
            lambda: other.delete("a"),
        ):
            write()
            stamps.append(store.stamp())
        assert len(set(stamps)) == len(stamps)
        store.close()
        assert store.stamp() != stamps[-1], "a new connection has not read what this one has"

    def test_versions_tell_what_has_changed_below_a_key(self, store: Store, again: Again) -> None:
        assert store.versions("a") == {}
        for key in ("a", "a/b", "a/b", "a/b/c", "ab/d", "a/e"):
            again().put(key, {"n": 1})
        number = store.add("a", {})
        assert store.versions("a") == {"b": 2, "e": 1, f"{number:010d}": 1}
        assert store.versions("") == {"a": 1}
        assert store.versions("a") == {name: document.version for name, document in store.list("a").items()}
        store.delete("a/b")
        assert again().versions("a") == {"e": 1, f"{number:010d}": 1}

    def test_what_was_put_is_got_by_every_handle(self, store: Store, again: Again) -> None:
        assert store.get("a/b") is None
        assert store.put("a/b", {"n": 1}) == 1
        assert again().get("a/b") == Document({"n": 1}, 1)
        assert again().put("a/b", {"m": 2}) == 2
        assert store.get("a/b") == Document({"m": 2}, 2)

    @pytest.mark.parametrize(
        "value",
        [
            {},
            {"": None, "deep": {"list": [1, -2.5, True, False, None, "", [], {}]}},
            {"big": 2**70, "small": 5e-324, "text": "ä🙂\x00\n\"\\'", "lone": "\ud800"},
        ],
    )
    def test_values_are_any_json_object(self, store: Store, again: Again, value: dict[str, Any]) -> None:
        store.put("a", value)
        store.append("log", [value], keep=10)
        seen = again().get("a")
        assert seen is not None
        assert seen.value == value
        assert [v for _, v in again().tail("log")] == [value]

    @pytest.mark.parametrize("value", [{"n": float("nan")}, {"n": float("inf")}, {"n": object()}])
    def test_nothing_else_is_a_value(self, store: Store, value: dict[str, Any]) -> None:
        for write in (
            lambda: store.put("a", value),
            lambda: store.add("a", value),
            lambda: store.append("log", [{"fine": 1}, value], keep=10),
        ):
            with pytest.raises((ValueError, TypeError)):
                write()
        assert store.get("a") is None
        assert store.list("a") == {}
        assert store.tail("log") == []

    def test_a_big_value(self, store: Store, again: Again) -> None:
        value = {"text": "".join(random.Random(1).choices("abcdefghij", k=500_000))}
        store.put("big", value)
        store.put("big", value)
        number = store.add("bigs", value)
        other = again()
        assert other.get("big") == Document(value, 2)
        assert other.list("bigs") == {f"{number:010d}": Document(value, 1)}

    def test_a_version_that_was_seen_is_insisted_on(self, store: Store, again: Again) -> None:
        other = again()
        assert store.put("a", {"n": 1}, version=0) == 1
        assert other.put("a", {"n": 2}, version=1) == 2
        for wrong in (0, 1, 3):
            with pytest.raises(Conflict, match="'a'"):
                store.put("a", {"n": "wrong"}, version=wrong)
        assert store.get("a") == Document({"n": 2}, 2)

    def test_no_version_is_seen_of_what_is_not_there(self, store: Store) -> None:
        with pytest.raises(Conflict):
            store.put("a", {}, version=1)
        assert store.get("a") is None
        store.put("a", {}, version=0)
        store.delete("a")
        with pytest.raises(Conflict):
            store.put("a", {}, version=1)
        assert store.put("a", {}, version=0) == 1

    def test_list_gives_what_is_directly_below_in_order(self, store: Store, again: Again) -> None:
        keys = ["p/b", "p/a", "p/a/x", "p/c/y/z", "p", "pp/a", "p0", "q/a", "p/10", "p/9", "p/B"]
        for n, key in enumerate(keys):
            store.put(key, {"n": n})
        found = again().list("p")
        assert list(found) == ["10", "9", "B", "a", "b"]
        assert found["a"] == Document({"n": 1}, 1)
        assert list(again().list("p/a")) == ["x"]
        assert list(again().list("p/c")) == []
        assert list(again().list("")) == ["p", "p0"]
        assert again().list("nothing") == {}

    def test_odd_keys_are_told_apart(self, store: Store, again: Again) -> None:
        for part in ODD:
            store.put(f"odd/{part}", {"own": part})
            store.put(f"odd/{part}/below", {"own": part})
            store.append(f"odd/{part}", [{"own": part}], keep=10)
        other = again()
        assert list(other.list("odd")) == sorted(ODD)
        for part in ODD:
            assert other.get(f"odd/{part}") == Document({"own": part}, 1)
            assert other.list(f"odd/{part}") == {"below": Document({"own": part}, 1)}
            assert [v for _, v in other.tail(f"odd/{part}")] == [{"own": part}]
        for gone, part in enumerate(ODD, 1):
            store.delete(f"odd/{part}")
            assert list(other.list("odd")) == sorted(ODD[gone:])
            assert [p for p in ODD if other.list(f"odd/{p}")] == ODD[gone:]
            assert [p for p in ODD if other.tail(f"odd/{p}")] == ODD[gone:]

    @pytest.mark.parametrize("key", ["", "/", "/a", "a/", "a//b"])
    def test_a_key_has_no_empty_part(self, store: Store, key: str) -> None:
        for use in (
            lambda: store.get(key),
            lambda: store.put(key, {}),
            lambda: store.add(key, {}),
            lambda: store.delete(key),
            lambda: store.append(key, [{}], keep=1),
            lambda: store.tail(key),
        ):
            with pytest.raises(StateError):
                use()
        assert store.list("") == {}

    def test_delete_removes_what_is_below(self, store: Store, again: Again) -> None:
        for key in ("p/a", "p/a/x", "p/a/x/y", "p/ab", "p/a.b", "p/a b", "p/b", "p"):
            store.put(key, {})
            store.append(key + "/log", [{}], keep=10)
        store.append("p/a", [{}], keep=10)
        other = again()
        other.delete("p/a")
        assert list(store.list("p")) == ["a b", "a.b", "ab", "b"]
        assert store.list("p/a") == store.list("p/a/x") == {}
        assert store.tail("p/a") == store.tail("p/a/log") == store.tail("p/a/x/log") == []
        assert store.tail("p/ab/log")
        assert store.get("p") == Document({}, 1)
        other.delete("p")
        assert store.list("p") == store.list("") == {}
        other.delete("p")

    # -- numbers ---------------------------------------------------------------------------------------------

    def test_added_documents_are_named_by_their_number(self, store: Store, again: Again) -> None:
        numbers = [store.add("p/r", {"n": 0}), again().add("p/r", {"n": 1}), store.add("p/r", {"n": 2})]
        found = again().list("p/r")
        assert list(found) == [f"{number:010d}" for number in numbers]
        assert list(found.values()) == [Document({"n": n}, 1) for n in range(3)]

    def test_a_number_is_never_given_again(self, store: Store, again: Again) -> None:
        given = [store.add("p/r", {}), store.add("p/r", {})]
        store.delete(f"p/r/{given[-1]:010d}")
        given.append(again().add("p/r", {}))
        store.delete("p/r")
        given.append(again().add("p/r", {}))
        store.delete("p")
        store.close()
        given.append(again().add("p/r", {}))
        assert given == sorted(set(given))
        assert list(again().list("p/r")) == [f"{given[-1]:010d}"]

    # -- logs ------------------------------------------------------------------------------------------------

    def test_a_log_is_read_in_order(self, store: Store, again: Again) -> None:
        other = again()
        assert other.tail("log") == other.tail("log", after=0) == []
        for n in range(0, 20, 4):
            (store if n % 8 else other).append("log", [{"n": n + i} for i in range(4)], keep=100)
        store.append("log", [], keep=100)
        store.append("log2", [{"other": True}], keep=100)
        entries = again().tail("log")
        numbers = [number for number, _ in entries]
        assert [value["n"] for _, value in entries] == list(range(20))
        assert numbers == sorted(set(numbers))
        assert store.tail("log", limit=3) == entries[-3:]
        assert store.tail("log", limit=0) == []
        for n in range(20):
            assert store.tail("log", after=numbers[n], limit=5) == entries[n + 1 : n + 6]
        assert store.tail("log", after=0, limit=5) == entries[:5]
        assert store.tail("log", after=numbers[-1] + 1000) == []

    @pytest.mark.parametrize("batch", [1, 7, 64])
    def test_a_log_keeps_its_last_entries(self, store: Store, batch: int) -> None:
        keep, n = 20, 0
        while n < 150:
            store.append("log", [{"n": n + i} for i in range(batch)], keep=keep)
            n += batch
            kept = [value["n"] for _, value in store.tail("log", limit=10**6)]
            assert kept == list(range(n - len(kept), n))
            assert min(keep, n) <= len(kept) <= 2 * keep + batch
        numbers = [number for number, _ in store.tail("log", limit=10**6)]
        # a reader that has fallen behind goes on with what there is
        assert [number for number, _ in store.tail("log", after=numbers[0] - 5, limit=10)] == numbers[:10]

    def test_the_numbers_of_a_log_grow_for_ever(self, store: Store, again: Again) -> None:
        store.append("p/log", [{"n": 1}, {"n": 2}], keep=10)
        last = store.tail("p/log")[-1][0]
        store.delete("p")
        again().append("p/log", [{"n": 3}], keep=10)
        assert [value["n"] for _, value in store.tail("p/log", after=last)] == [3]

    # -- several processes -----------------------------------------------------------------------------------

    def test_processes_lose_no_update(self, place: Place, store: Store, processes: ProcessPoolExecutor) -> None:
        working = [processes.submit(workers.increment, place, w, self.increments) for w in range(PROCESSES)]
        conflicts = [each.result(60) for each in working]
        together = self.increments * PROCESSES
        assert store.get("count") == Document({"n": together}, together)
        assert sum(conflicts) > 0, "they did not meet: this test shows nothing"

    def test_processes_never_get_the_same_number(
        self, place: Place, store: Store, processes: ProcessPoolExecutor
    ) -> None:
        working = [processes.submit(workers.add, place, w, self.additions) for w in range(PROCESSES)]
        given = [each.result(60) for each in working]
        assert all(numbers == sorted(set(numbers)) for numbers in given)
        assert len({number for numbers in given for number in numbers}) == self.additions * PROCESSES
        left = sorted(number for numbers in given for number in numbers[::2])
        assert list(store.list("requests")) == [f"{number:010d}" for number in left]

    def test_a_reader_sees_every_entry_once_and_in_order(
        self, place: Place, store: Store, processes: ProcessPoolExecutor
    ) -> None:
        times = self.appends
        working = [processes.submit(workers.append, place, w, times) for w in range(PROCESSES)]
        seen: list[tuple[int, Any]] = []
        rounds = 0
        deadline = time.monotonic() + 60
        while True:
            ended = all(each.done() for each in working)
            some = store.tail("log", after=seen[-1][0] if seen else 0, limit=11)
            seen.extend(some)
            rounds += bool(some)
            if ended and not some:
                break
            assert time.monotonic() < deadline
        for each in working:
            each.result()
        numbers = [number for number, _ in seen]
        assert numbers == sorted(set(numbers))
        for w in range(PROCESSES):
            assert [value["n"] for _, value in seen if value["worker"] == w] == list(range(times * 2))
        assert rounds > 10

    def test_a_killed_writer_leaves_a_store_that_works(self, place: Place, again: Again) -> None:
        chance = random.Random(os.getpid())
        writers = [Scribbler(place, worker) for worker in range(4)]
        try:
            for writer in writers:
                writer.wait(3)
            for writer in writers[:2]:  # one by one, while others write
                time.sleep(chance.uniform(0, 0.1))
                writer.kill()
                store = again()
                check_scribbles(store, [writer])
                store.put("after", {"worker": writer.worker})
            for writer in writers[2:]:
                writer.wait(3)
            time.sleep(chance.uniform(0, 0.1))
            for writer in writers[2:]:  # then all that are left at once
                writer.kill(wait=False)
        finally:
            for writer in writers:
                writer.kill()
        store = again()
        check_scribbles(store, writers)
        given = [int(name) for name in store.list("added")]
        assert store.add("added", {}) > max(given)
        store.append("log", [{"worker": None}], keep=100_000)
        assert store.tail("log", limit=1)[0][1] == {"worker": None}


class Scribbler:
    """A process that writes until it is killed, and what it has told of it."""

    def __init__(self, place: Place, worker: int) -> None:
        self.worker = worker
        self.told = 0
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=workers.scribble, args=(place, worker, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def wait(self, more: int) -> None:
        """Until it has told of some more."""
        until = self.told + more
        while self.told < until:
            assert self._pipe.poll(30), "it writes no more"
            self._take()

    def kill(self, *, wait: bool = True) -> None:
        self._process.kill()
        if wait:
            self._process.join(30)
            while self._pipe.poll(0):
                try:
                    self._take()
                except EOFError:
                    break

    def _take(self) -> None:
        self.told = self._pipe.recv()


def check_scribbles(store: Store, writers: list[Scribbler]) -> None:
    """Everything that a writer told of is there; what is there is whole and in order."""
    entries = [value for _, value in store.tail("log", limit=10**6)]
    added = [document.value for document in store.list("added").values()]
    for writer in writers:
        first, second = store.get(f"{writer.worker}/first"), store.get(f"{writer.worker}/second")
        assert first is not None
        assert second is not None
        n = first.value["n"]
        assert first.version == n >= writer.told > 0
        assert first.value["filling"] == FILLING
        assert second.value["n"] in (n, n - 1)
        logged = [(v["n"], v["part"]) for v in entries if v["worker"] == writer.worker]
        assert len(logged) // BATCH in (n, n - 1)
        assert logged == [(i + 1, part) for i in range(len(logged) // BATCH) for part in range(BATCH)]
        numbered = [value["n"] for value in added if value.get("worker") == writer.worker]
        assert len(numbered) in (n, n - 1)
        assert numbered == list(range(1, len(numbered) + 1))
