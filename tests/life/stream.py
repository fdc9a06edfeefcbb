"""A stream under test, in a process of its own that can be killed or stopped at any moment.

The parent plays Spark: it keeps the offsets, writes one down before the batch is run, and repeats a batch that was
planned and not finished. What the child delivers is recorded, every attempt of it.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from tests.life.checker import Event, Violation, check_attempts
from tests.life.replay import Attempt, Settled

START_SECONDS = 60.0
PATIENCE = 90.0
"""How long the child may take for one call before it counts as hanging, in seconds."""


class Stopped(Exception):
    """The stream ended with an error of the product's own."""

    def __init__(self, kind: str, message: str, hint: str | None, retryable: bool) -> None:
        super().__init__(f"{kind}: {message}" + (f" (hint: {hint})" if hint else ""))
        self.kind, self.message, self.hint, self.retryable = kind, message, hint, retryable


class Crashed(Exception):
    """The stream ended with an error that nobody raised on purpose, or did not answer."""


@dataclass
class Recording:
    """Every delivered batch; an attempt that differs from the one before it is a violation."""

    batches: list[tuple[Event, ...]] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    repeated: int = 0
    staged_lost: bool = False
    """The spool was lost since the last batch was finished."""
    moved: bool = False
    """Another server took over since the last batch was finished."""
    history: list[Attempt | Settled] | None = None
    """Every attempt as tables, and every comparison; only where they are to be replayed."""

    def deliver(self, batch: int, events: Sequence[Event]) -> None:
        events = tuple(replace(e, batch=batch) for e in events)
        if batch < len(self.batches):
            assert batch == len(self.batches) - 1
            self.repeated += 1
            lost = {"staged_lost": self.staged_lost, "moved": self.moved}
            self.violations += check_attempts(self.batches[batch], events, **lost)
            self.batches[batch] = events
        else:
            self.batches.append(events)

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch]

    @property
    def count(self) -> int:
        return sum(map(len, self.batches))


class Stream:
    """The parent's side. Offsets are `offsets[:done]`, and one more while a batch is planned and not finished."""

    def __init__(self, *, replayed: bool = False, **options: Any) -> None:
        """`replayed`: keep the batches as tables, for `replay`."""
        self.given = {name: str(value) for name, value in options.items()}
        self.recording = Recording(history=[] if replayed else None)
        self.offsets: list[dict[str, Any]] = []
        self.done = 0
        self.seen = 0
        """The highest version that was delivered in the table of fences."""
        self._child: _Child | None = None

    # -- processes ------------------------------------------------------------------------------------------

    @property
    def child(self) -> _Child:
        if self._child is None:
            self._child = _Child(self.given)
        return self._child

    def kill(self) -> None:
        """End the process at once."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def stop(self) -> None:
        """End the stream as Spark does, in order."""
        if self._child is not None:
            with suppress(Crashed):
                self._child.call("stop")
            self.kill()

    def call(self, name: str, *args: Any, kill_after: float | None = None) -> Any:
        """Ask the child. With `kill_after`, kill it when that many seconds are over, and raise `Killed`. A stream that
        cannot start, because the server is away, is started again."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            child = self.child
            try:
                return child.call(name, *args, kill_after=kill_after)
            except (Stopped, Crashed, Killed) as error:
                self.kill()
                if not (isinstance(error, Stopped) and error.retryable and not child.answered):
                    raise
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def lose_spool(self) -> None:
        """Kill the process and lose its local disk."""
        self.kill()
        shutil.rmtree(self.given["spool"], ignore_errors=True)
        self.recording.staged_lost = True

    # -- batches --------------------------------------------------------------------------------------------

    @property
    def start(self) -> dict[str, Any] | None:
        return self.offsets[self.done - 1] if self.done else None

    @property
    def planned(self) -> bool:
        return len(self.offsets) > self.done

    def plan(self, *, kill_after: float | None = None, commit: bool = True) -> bool:
        """Plan the next batch and write it down; whether there is one."""
        assert not self.planned
        start = self.start
        end = self.call("plan", start, kill_after=kill_after)
        if end is None:
            return False
        self.offsets.append(end)
        if start is not None and commit:
            self.call("commit", start)
        return True

    def attempt(self, *, kill_after: float | None = None, selects_last: bool = False) -> None:
        """Run the planned batch and deliver it, but do not finish it."""
        history = self.recording.history
        args = (self.start, self.offsets[self.done], selects_last, history is not None)
        events, given = self.call("run", *args, kill_after=kill_after)
        self.recording.deliver(self.done, events)
        if history is not None and given.tables:
            history.append(replace(given, number=self.done))

    def finish(self, **options: Any) -> None:
        self.attempt(**options)
        for event in self.recording.batches[self.done]:
            if event.table == "fence":
                self.seen = max(self.seen, event.version)
        self.recording.staged_lost = self.recording.moved = False
        self.done += 1

    def step(self, **options: Any) -> bool:
        """Finish the planned batch, or plan one and finish it; whether there was one."""
        if not self.planned and not self.plan():
            return False
        self.finish(**options)
        return True

    @property
    def dumped(self) -> bool:
        offset = self.start
        return bool(offset and offset.get("tables") and not offset.get("read") and not offset.get("dumps"))


class Killed(Exception):
    """The process was killed while it worked, as it was asked for."""


class _Child:
    """The parent's handle of the process."""

    def __init__(self, given: dict[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.life.child"])
        from tests.life.child import serve

        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, given), daemon=True)
        with mock.patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(sys.path)}):
            self._process.start()  # the first one starts the server that forks them, which loads our modules
        theirs.close()
        self.pid = self._process.pid
        self.answered = False

    def send(self, name: str, *args: Any) -> None:
        self._pipe.send((name, args))

    def receive(self, seconds: float) -> Any:
        if not self._pipe.poll(seconds):
            raise TimeoutError
        try:
            said, result = self._pipe.recv()
        except EOFError:
            raise Crashed("the process of the stream has ended by itself") from None
        if said == "error":
            raise Stopped(*result)
        if said == "crash":
            raise Crashed(result)
        self.answered = True
        return result

    def call(self, name: str, *args: Any, kill_after: float | None = None) -> Any:
        self.send(name, *args)
        try:
            return self.receive(PATIENCE if kill_after is None else kill_after)
        except TimeoutError:
            self.kill()
            if kill_after is not None:
                raise Killed from None
            raise Crashed(f"the stream has not answered {name!r} for {PATIENCE:.0f} s") from None

    def signal(self, number: signal.Signals) -> None:
        assert self.pid is not None
        os.kill(self.pid, number)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self._process.join(10)
        self._pipe.close()
