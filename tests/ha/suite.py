"""What the lease does over every state store, with real processes that are killed, stopped and cut off.

class TestSQLite(LeaseSuite):
    @pytest.fixture
    def url(self) -> str: ...
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.proxy import Proxy

SECONDS = 3.0
PATIENCE = 60.0
"""How long a test waits for what must happen, in seconds: the machine may be busy."""
ROOT = Path(__file__).parents[2]


class Candidate:
    """A process that wants to be the leader."""

    def __init__(self, url: str, seconds: float, file: Path) -> None:
        command = [sys.executable, "-m", "tests.ha.candidate", url, str(seconds), str(file)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(json.loads(line))

    def until(self, event: str) -> dict[str, Any]:
        """Wait until the process says this."""
        deadline = time.monotonic() + PATIENCE
        while True:
            said = self._said.get(timeout=max(0.01, deadline - time.monotonic()))
            if said["event"] == event:
                return said

    def said(self) -> list[str]:
        """What the process has said since."""
        found = []
        while not self._said.empty():
            found.append(self._said.get()["event"])
        return found

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


Start = Callable[..., Candidate]


class LeaseSuite:
    @pytest.fixture
    def url(self) -> str:
        """The URL of a store that is one test's own."""
        raise NotImplementedError

    @pytest.fixture
    def work(self, tmp_path: Path) -> Path:
        return tmp_path / "work"

    @pytest.fixture
    def start(self, url: str, work: Path) -> Iterator[Start]:
        started: list[Candidate] = []

        def run(at: str = url, seconds: float = SECONDS) -> Candidate:
            started.append(Candidate(at, seconds, work))
            return started[-1]

        yield run
        for each in started:
            each.end()
        check_order(work)

    def test_the_lease_passes_on_when_its_holder_ends_stops_or_dies(self, start: Start, work: Path) -> None:
        # 1. a clean end hands over at once
        first = start(seconds=20.0)
        assert first.until("leader")["epoch"] == 1
        second = start()
        time.sleep(1.0)  # it has seen the lease
        began = time.monotonic()
        first.send(signal.SIGTERM)
        first.until("released")
        epoch = second.until("leader")["epoch"]
        assert epoch == 2
        assert time.monotonic() - began < 15, "the lease was not released: another waits for its 20 s"
        # 2. a stopped holder is the leader no longer when it wakes up
        third = start()
        second.send(signal.SIGSTOP)
        epoch = third.until("leader")["epoch"]
        assert epoch == 3
        seen = wait_for_work(work, epoch)
        second.send(signal.SIGCONT)
        second.until("lost")
        wait_for_more(work, seen)
        # 3. a killed holder is replaced
        third.send(signal.SIGKILL)
        assert second.until("leader")["epoch"] == 4


class SharedLeaseSuite(LeaseSuite):
    """Over stores that are reached by a network."""

    @pytest.fixture
    def proxy(self) -> Iterator[Proxy]:
        raise NotImplementedError

    @pytest.mark.parametrize("side", ["client", "server", "both"])
    def test_a_holder_that_is_cut_off_stops_before_another_begins(
        self, start: Start, url: str, proxy: Proxy, side: str, work: Path
    ) -> None:
        first = start(proxy.through(url))
        assert first.until("leader")["epoch"] == 1
        second = start()
        proxy.pause(*(() if side == "both" else (side,)))
        epoch = second.until("leader")["epoch"]
        first.until("lost")
        wait_for_work(work, epoch)
        proxy.cut()
        proxy.resume()
        first.until("reached")
        second.send(signal.SIGTERM)
        assert first.until("leader")["epoch"] > epoch

    def test_a_store_that_is_away_for_a_moment_costs_nobody_the_lease(
        self, start: Start, url: str, proxy: Proxy
    ) -> None:
        first = start(proxy.through(url), seconds=16.0)
        assert first.until("leader")["epoch"] == 1
        second = start(seconds=16.0)
        proxy.refuse()
        proxy.cut()
        first.until("error")
        proxy.accept()
        first.until("reached")
        time.sleep(1.0)
        assert first.said() == second.said() == []
        first.send(signal.SIGTERM)
        first.until("released")
        assert second.until("leader")["epoch"] == 2


def lines(work: Path) -> list[tuple[float, int, int]]:
    """When somebody was the leader, with which epoch, and which process."""
    if not work.exists():
        return []
    whole = [line.split() for line in work.read_text().split("\n")[:-1]]
    return [(float(at), int(epoch), int(process)) for at, epoch, process in whole]


def wait_for_work(work: Path, epoch: int) -> int:
    """Wait until somebody has worked with an epoch; how much work there is."""
    deadline = time.monotonic() + PATIENCE
    while not any(line[1] == epoch for line in lines(work)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return len(lines(work))


def wait_for_more(work: Path, seen: int) -> None:
    """Wait until the leader has worked on."""
    deadline = time.monotonic() + PATIENCE
    while len(lines(work)) <= seen:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def check_order(work: Path) -> None:
    """Check that nobody was the leader while another one was: in the order of time, epochs only grow."""
    done = sorted(lines(work))
    assert len(done) > 10
    epochs = [epoch for _, epoch, _ in done]
    assert epochs == sorted(epochs), "an older epoch worked after a newer one had begun"
    owners = {(epoch, process) for _, epoch, process in done}
    assert len(owners) == len(set(epochs)), "two processes had the same epoch"
