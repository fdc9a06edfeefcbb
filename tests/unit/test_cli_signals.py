"""How a command waits: for a signal, or until something wakes it."""

from __future__ import annotations

import signal
import threading

from dblog.cli.signals import Stop


def waiting(stop: Stop) -> threading.Thread:
    thread = threading.Thread(target=stop.wait, args=(3600,), daemon=True)
    thread.start()
    return thread


def test_a_wait_ends_when_another_thread_wakes_it_and_the_next_one_waits_again() -> None:
    stop = Stop()
    first = waiting(stop)
    stop.wake()
    first.join(60)
    assert not first.is_alive()
    second = waiting(stop)
    second.join(0.01)
    assert second.is_alive()
    stop.wake()
    second.join(60)
    assert not second.is_alive()


def test_after_a_signal_no_wait_waits() -> None:
    stop = Stop()
    stop._hear(signal.SIGTERM, None)
    for _ in range(2):
        thread = waiting(stop)
        thread.join(60)
        assert not thread.is_alive()
