"""Writes to the state store whether a stream runs, waits for its sink, or restarts, and how its sink writes.

The source's process writes the rest of the status. The writing is done in a thread of its own, so that the stream never
waits for the store; the thread sleeps until the state changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from dblog.errors import DBLogError
from dblog.ha.elector import lease_key
from dblog.ha.term import Term
from dblog.sinks.base import Sink
from dblog.state import open_store
from dblog.state.pipeline import RESTARTING, RUNNING, SILENT_SECONDS, WAITING, Pipeline

REPEAT_SECONDS = SILENT_SECONDS / 4
"""How often, in seconds, a state other than `running` is written again: readers ignore one that is too old."""
END_SECONDS = 15.0
"""How long, in seconds, the end of a stream waits for the store."""
MOST_FACTS = 10
LONGEST_FACT = 500
"""How many facts of a sink are shown, and how many characters of each."""


@dataclass(frozen=True)
class Doing:
    """Whether a stream delivers batches now and, if not, since when and why."""

    state: str = RUNNING
    since: float | None = None
    """When it stopped delivering, in seconds since 1970. It stays the same if another reason follows."""
    reason: str | None = None


class Report:
    """Writes the state of one stream. `location` is the address of the state store, `off` for none."""

    def __init__(
        self,
        location: str | None,
        name: str,
        unready_after: float,
        told: Callable[[str], None],
        term: Term | None = None,
    ) -> None:
        self._location = location
        self._term = term
        self._name = name
        self._unready_after = unready_after
        self._told = told
        self._ending: tuple[str | None] | None = None
        self._left = False
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self.restarts = 0
        self.now = Doing()
        self._facts: Mapping[str, str] = {}
        self._spark_ui: str | None = None

    def start(self) -> None:
        if self._location != "off":
            self._thread = threading.Thread(target=self._run, name=f"dblog-report-{self._name}", daemon=True)
            self._thread.start()

    def waiting(self, reason: str) -> bool:
        """The sink does not answer. Returns whether the stream did not wait for it before."""
        return self._change(WAITING, reason)

    def restarting(self, reason: str) -> None:
        """The query has failed and is started again."""
        self.restarts += 1
        self._change(RESTARTING, reason)

    def running(self) -> Doing | None:
        """A batch was delivered. Returns what the stream did before, or None if it was running."""
        before = self.now
        if before.state == RUNNING:
            return None
        self.now = Doing()
        self._news.set()
        return before

    def sink_says(self, facts: Mapping[str, str]) -> None:
        """What the sink says about itself after a batch. Written if it has changed."""
        if facts != self._facts:
            self._facts = facts
            self._news.set()

    def spark_at(self, address: str | None) -> None:
        """The address of Spark's own page; None if there is none."""
        if address is not None:
            self._spark_ui = address
            self._news.set()

    def end(self, error: str | None) -> None:
        """The stream has ended, with an error if it failed."""
        self.now = Doing()
        self._ending = (error,)
        self._news.set()
        if self._thread is not None:
            self._thread.join(END_SECONDS)

    def leave(self) -> None:
        """Write nothing more: another instance may be the leader."""
        self._left = True
        self._news.set()

    def _change(self, state: str, reason: str) -> bool:
        before = self.now
        self.now = Doing(state, before.since or time.time(), reason)
        self._news.set()
        return before.state != state

    def _run(self) -> None:
        failing = False
        while not self._left:
            ending = self._ending
            self._news.clear()
            try:
                self._write(ending)
                failing = False
            except DBLogError as error:
                if not failing:
                    self._told(error.message)
                failing = True
            if ending is not None:
                return
            self._news.wait(None if self.now.state == RUNNING and not failing else REPEAT_SECONDS)

    def _write(self, ending: tuple[str | None] | None) -> None:
        with closing(open_store(self._location)) as store:
            pipeline = Pipeline(store, self._name)
            pipeline.open()
            now = {**vars(self.now), "restarts": self.restarts, "unready_after": self._unready_after}
            if self._term is not None:
                self._term.check()
                now["lease"] = lease_key(self._term.pipeline)
            if self._facts:
                now["sink"] = self._facts
            if self._spark_ui is not None:
                now["spark_ui"] = self._spark_ui
            pipeline.deliver(now if ending is None else {**now, "failed": ending[0]})
            if ending is not None:
                pipeline.ended(*ending)


def facts_of(sink: Sink, hidden: Callable[[str], str]) -> dict[str, str]:
    """What a sink says about itself, without secrets and not too long. `hidden` replaces secrets."""
    found = list(sink.facts().items())[:MOST_FACTS]
    return {name: _short(hidden(text)) for name, text in found}


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_FACT else text[: LONGEST_FACT - 3] + "..."
