"""A term ends at its deadline, for all processes of the machine, and never begins again."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dblog.errors import LeaseLost
from dblog.ha.elector import lease_key
from dblog.ha.lease_file import EXPIRED, LeaseFile, clock
from dblog.ha.term import Candidate, Term, electing
from dblog.state import open_store
from dblog.state.store import Store


@pytest.fixture
def opens(tmp_path: Path) -> Callable[[], Store]:
    return partial(open_store, str(tmp_path / "state.db"))


def led(candidate: Candidate) -> Term:
    term = candidate.wait(60.0)
    assert term is not None
    return term


def test_the_file_has_the_deadline_and_without_a_file_there_is_no_lease(tmp_path: Path) -> None:
    file = LeaseFile(tmp_path / "lease-1")
    with pytest.raises(LeaseLost):
        file.check()
    file.write(clock() + 60)
    assert 50 < file.left() <= 60
    file.check()
    file.write(EXPIRED)
    with pytest.raises(LeaseLost, match="the leader no longer"):
        file.check()


def test_a_process_ends_when_the_lease_is_given_back_whatever_it_does(tmp_path: Path) -> None:
    file = LeaseFile(tmp_path / "lease-1")
    file.write(clock() + 600)
    code = (
        "import sys, time; from dblog.ha.lease_file import LeaseFile; LeaseFile(sys.argv[1]).end_process(); "
        "print('on', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(file.path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        assert process.poll() is None
        file.write(EXPIRED)
        try:
            assert process.wait(30) == 1
        finally:
            process.kill()


def test_a_term_is_renewed_in_its_file_and_ends_with_the_lease(opens: Callable[[], Store], tmp_path: Path) -> None:
    with electing(opens, "shop", seconds=4.0, folder=tmp_path) as candidate:
        term = led(candidate)
        assert (term.epoch, term.held) == (1, True)
        began = term.file.left() + clock()
        deadline = time.monotonic() + 60
        while term.file.left() + clock() <= began + 0.5:
            assert time.monotonic() < deadline, "the file is not renewed"
            time.sleep(0.02)
    assert not term.held
    with pytest.raises(LeaseLost):
        term.file.check()
    document = opens().get(lease_key("shop"))
    assert document is not None
    assert document.value["holder"] is None


def test_a_term_that_is_lost_is_told_and_a_new_lease_is_another_term(
    opens: Callable[[], Store], tmp_path: Path
) -> None:
    lost = threading.Event()
    with electing(opens, "shop", seconds=4.0, folder=tmp_path) as candidate:
        term = led(candidate)
        term.watch(lost.set)
        # somebody else takes the lease, against the rules: the renewal is refused
        store = opens()
        document = store.get(lease_key("shop"))
        assert document is not None
        store.put(lease_key("shop"), {**document.value, "holder": "other", "epoch": 9, "seconds": 0.1})
        assert lost.wait(60)
        deadline = time.monotonic() + 60
        while candidate.record.epoch < 10:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert not term.held, "this instance leads again, but not in this term"
        with pytest.raises(LeaseLost):
            term.check()


def test_a_clean_end_is_no_loss(opens: Callable[[], Store], tmp_path: Path) -> None:
    lost = threading.Event()
    with electing(opens, "shop", seconds=4.0, folder=tmp_path) as candidate:
        led(candidate).watch(lost.set)
    assert not lost.wait(1.5)
