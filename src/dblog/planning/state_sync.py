"""The exchange between a running stream and its state store. It has its own thread: planning never waits for the store.

It reads requests, wishes and settings from the store, and writes status, progress and events to it. The stream reads
the new requests when it plans a batch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dblog.core.dump import OWN
from dblog.core.offset import Offset, Tally
from dblog.core.schema import TableSchema
from dblog.core.throttle import Throttle
from dblog.errors import DBLogError, StateError
from dblog.state.dump_index import DumpIndex
from dblog.state.events import event
from dblog.state.history import Sampler
from dblog.state.mirror import Delivered, mirrored, taken
from dblog.state.pipeline import Pipeline, request_number, too_many
from dblog.state.requests import Dump, Progress, State, TableProgress, Wish
from dblog.state.store import Store

EXCHANGE_SECONDS = 0.2
"""How often the store is checked for changes of others, in seconds. It is read only if there are any."""
STATUS_SECONDS, IDLE_SECONDS = 1.0, 3.0
"""How often the status is written, in seconds: while it changes or a dump runs, and while the stream is idle."""
PRUNE_SECONDS = 3600.0
"""How often old ended dumps are removed, in seconds. If there are too many (`too_many`), they are removed at once."""
MOST_EVENTS = 5000
"""How many events wait to be written, at most. If there are more, the oldest are dropped."""
MOST_BATCHES = 1000
"""How many batches wait to be counted in the progress of dumps, at most. A later one has the counts of the earlier."""
ADMIT_SECONDS = 5.0
"""How long a dump waits until the store shows that it begins, in seconds. Then it begins anyway."""
AWAY_SECONDS = 1.0
"""How often a store that cannot be used is tried again, in seconds."""


@dataclass(frozen=True)
class Inbox:
    """What users want, as read from the store last."""

    store: str = ""
    requests: tuple[Dump, ...] = ()
    """The requests that have not ended, the oldest first."""
    held: frozenset[str] = field(default_factory=frozenset)
    cancelled: frozenset[str] = field(default_factory=frozenset)
    throttle: Throttle = field(default_factory=Throttle)
    retries: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """By table that is to be taken up again: which failure of it (`SetAside.id`)."""


class StateSync:
    """A stream's access to the state store. `status` returns the stream's status. `tend` does the stream's regular
    work; it is called before `status`."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        name: str,
        status: Callable[[], Mapping[str, Any]],
        tend: Callable[[], None] = lambda: None,
        *,
        patience: float = 300.0,
    ) -> None:
        self._open_store = open_store
        self._name = name
        self._status = status
        self._tend = tend
        self._patience = patience
        self._changed = threading.Condition()
        self._inbox: Inbox | None = None
        self._delivered: list[Delivered] = []
        self._admitted: list[tuple[str, Mapping[str, TableProgress]]] = []
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._told = self._written = 0
        """How many events were added, and how many of these were taken to be written."""
        self._sampler = Sampler()
        self._schemas: dict[str, TableSchema] = {}
        self._progress: dict[str, Progress] = {}
        """The progress of dumps that have not ended, of dumps in the last batch, and of the stream's own dumps."""
        self._saved: dict[str, Progress] = {}
        """The progress that is in the store, as far as the stream knows."""
        self._read = ""
        self._index: DumpIndex | None = None
        self._prune_at = 0.0
        self._throttle = Throttle()
        self._retries: Mapping[str, tuple[int, float]] = {}
        self._last_status: Mapping[str, Any] = {}
        self._ran = 0.0
        self._asked = self._answered = 0
        self._error: DBLogError | None = None
        self._ending: dict[str, Any] | None = None
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dblog-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # -- the stream's side -----------------------------------------------------------------------------------

    def inbox(self) -> Inbox:
        """What users want. Waits for the store only the first time; raises StateError if it does not answer."""
        with self._changed:
            self._changed.wait_for(lambda: self._inbox is not None or self._error is not None, self._patience)
            if self._error is not None:
                raise self._error
            if self._inbox is None:
                raise StateError(f"the state store has not answered for {self._patience:.0f} s")
            return self._inbox

    def delivered(self, offset: Offset, tally: Sequence[Tally]) -> None:
        """Note that Spark has committed a batch. `tally` has the rows that each dump has delivered, with this batch."""
        with self._changed:
            self._delivered.append(Delivered(offset, tally, time.time()))
            del self._delivered[:-MOST_BATCHES]

    def admitted(self, dump: str, tables: Mapping[str, TableProgress]) -> None:
        """Write the progress of a dump that begins now. Return when it is in the store, or the store is away."""
        with self._changed:
            self._admitted.append((dump, tables))
        self.exchange(ADMIT_SECONDS)

    def tell(self, kind: str, **facts: Any) -> None:
        """Add an event of the algorithm."""
        self._events.append(event(kind, time.time(), facts))
        self._told += 1

    def saw(self, schemas: Mapping[str, TableSchema]) -> None:
        """Add schemas with which events were captured."""
        with self._changed:
            self._schemas |= schemas

    def exchange(self, seconds: float | None = None) -> None:
        """Return when everything added so far is in the store and the inbox was read after this call."""
        with self._changed:
            self._asked += 1
            mine = self._asked
            self._wake.set()
            self._changed.wait_for(lambda: self._answered >= mine or self._error is not None, seconds or self._patience)
            if self._error is not None:
                raise self._error

    def close(self, error: BaseException | None = None) -> None:
        """Write that the stream has ended, and why."""
        state = "stopped" if error is None else "failed"
        self._ending = {"state": state, "error": None if error is None else str(error)}
        self._wake.set()
        self._thread.join(5.0)

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failing = False
        store: Store | None = None
        due = 0.0
        while True:
            last, asked = self._ending is not None, self._asked
            self._wake.clear()
            try:
                if store is None:
                    store, self._read = self._open_store(), ""
                    pipeline = Pipeline(store, self._name)
                    self._opened(pipeline)
                self._exchange(pipeline)
                if last or time.monotonic() > due:
                    due = time.monotonic() + (STATUS_SECONDS if self._say_status(pipeline) else IDLE_SECONDS)
                failing = False
            except DBLogError as error:
                if store is not None:
                    store.close()
                store, failing = None, True
                if self._inbox is None:  # later, the stream goes on without the store
                    self._fail(error)
            except Exception as error:
                self._fail(StateError(f"the exchange with the state store failed: {type(error).__name__}: {error}"))
            if last or self._error is not None:
                break
            with self._changed:
                self._answered = self._answered if failing else asked
                self._changed.notify_all()
            self._wake.wait(AWAY_SECONDS if failing else EXCHANGE_SECONDS)
        if store is not None:
            store.close()

    def _say_status(self, pipeline: Pipeline) -> bool:
        """Write the status. Returns whether the stream is busy."""
        self._tend()
        status = self._status()
        pipeline.open()  # a user may have removed it with `dblog forget`
        pipeline.say({"state": "running", "error": None, **status, **(self._ending or {})})
        self._sampler.add(pipeline, status)
        before, self._last_status = self._last_status, status
        return status != before or any(not progress.state.ended for progress in self._progress.values())

    def _fail(self, error: DBLogError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _opened(self, pipeline: Pipeline) -> None:
        """Begin with a store, as if all its documents were new."""
        pipeline.open()
        self._prune(pipeline)
        self._index = DumpIndex(pipeline)
        for name in OWN:
            if (progress := pipeline.progress(name)) is not None:
                self._progress.setdefault(name, progress)
                self._saved.setdefault(name, progress)

    def _prune(self, pipeline: Pipeline) -> None:
        pipeline.prune()
        self._prune_at = time.monotonic() + PRUNE_SECONDS

    def _exchange(self, pipeline: Pipeline) -> None:
        assert self._index is not None
        stamp = pipeline.store.stamp()
        if stamp != self._read:
            self._look(pipeline, self._index)
            self._read = stamp
        elif not (self._admitted or self._delivered or self._schemas or self._events):
            return
        with self._changed:
            admitted, self._admitted = self._admitted, []
            delivered, self._delivered = self._delivered, []
            schemas, self._schemas = self._schemas, {}
        for name, tables in admitted:
            self._admit(name, tables)
        for batch in delivered:
            self._mirror(pipeline, batch, self._index)
        for name, progress in self._progress.items():
            if self._saved.get(name, Progress()) != progress:
                pipeline.mirror(name, progress)
                self._saved[name] = progress
        if delivered:
            self._let_go(self._index, delivered[-1].dumps)
        if too_many(self._index.ended) or time.monotonic() > self._prune_at:
            self._prune(pipeline)
            self._look(pipeline, self._index)
        self._write(pipeline, schemas)
        wishes = self._index.wishes
        inbox = Inbox(
            store=pipeline.store.id,
            requests=tuple(self._index.open(self._progress)),
            held=frozenset(name for name, wish in wishes.items() if wish is Wish.pause),
            cancelled=frozenset(name for name, wish in wishes.items() if wish is Wish.cancel),
            throttle=self._throttle,
            retries=self._retries,
        )
        with self._changed:
            self._inbox = inbox

    def _write(self, pipeline: Pipeline, schemas: Mapping[str, TableSchema]) -> None:
        """Write schemas and events. What cannot be written is kept for the next time."""
        written = self._written
        events = self._new_events()
        try:
            for version, schema in schemas.items():
                pipeline.saw_schema(version, {**described(schema), "seen_at": time.time()})
            if events:
                pipeline.tell(events)
        except DBLogError:
            with self._changed:
                self._schemas = {**schemas, **self._schemas}
            self._written = written
            room = MOST_EVENTS - len(self._events)
            kept = [each for each in events if each["kind"] != "events_lost"]
            self._events.extendleft(reversed(kept[-room:] if room > 0 else []))
            raise

    def _new_events(self) -> list[dict[str, Any]]:
        """Take the events to write. If some were dropped because there were too many, the first says so."""
        told = self._told
        events = [self._events.popleft() for _ in range(len(self._events))]
        lost = told - self._written - len(events)
        self._written = max(told, self._written + len(events))
        return [event("events_lost", time.time(), {"events": lost}), *events] if lost > 0 else events

    def _look(self, pipeline: Pipeline, index: DumpIndex) -> None:
        """Read what users have written since the last call."""
        for name, progress in index.look().items():
            self._progress.setdefault(name, progress)
            self._saved.setdefault(name, progress)
        self._forget([name for name in self._progress if not index.has(name)])
        self._throttle = pipeline.settings()
        self._retries = pipeline.retries()

    def _let_go(self, index: DumpIndex, spoken_of: Collection[str]) -> None:
        """Forget the progress of requests that have ended and are not in the last batch."""
        over = [name for name, progress in self._progress.items() if progress.state.ended and name not in OWN]
        for name in over:
            index.end(name)
        self._forget([name for name in over if name not in spoken_of])

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._progress.pop(name, None)
            self._saved.pop(name, None)

    def _admit(self, name: str, tables: Mapping[str, TableProgress]) -> None:
        old = self._progress.get(name, Progress())
        if old.state.ended:  # the first dump of tables that joined later
            old = Progress()
        self._progress[name] = replace(old, tables={**old.tables, **tables})

    def _mirror(self, pipeline: Pipeline, batch: Delivered, index: DumpIndex) -> None:
        """Update the progress of all dumps that a batch concerns or has ended. A request that is not in the store any
        more has no progress."""
        since, self._ran = self._ran, batch.at
        for name in sorted(filter(index.has, {*self._progress, *batch.dumps})):
            if name not in self._progress:
                self._progress[name] = self._saved[name] = pipeline.progress(name) or Progress()
            old = self._progress[name]
            number = None if name in OWN else request_number(name)
            if name not in batch.dumps and (old.state.ended or not taken(name, number, old, batch, pipeline.store.id)):
                continue
            wish = index.wishes.get(name, Wish.run)
            runs = old.state is State.running and wish is Wish.run and since
            seconds = max(0.0, batch.at - since) if runs else 0.0
            new = mirrored(name, old, batch, cancelled=wish is Wish.cancel, seconds=seconds)
            if new.state.ended and old.state.ended:
                new = replace(new, finished_at=old.finished_at)
            self._progress[name] = new
            if old.started_at is None:
                self.tell("dump_started", dump=name, state=str(new.state), reason=new.reason)
            if new.state.ended and not old.state.ended:
                self.tell("dump_ended", dump=name, state=str(new.state), reason=new.reason)


def described(schema: TableSchema) -> dict[str, Any]:
    """A schema as the store shows it to users."""
    return {
        "table": str(schema.table),
        "key": list(schema.key),
        "columns": [[c.name, c.type] for c in schema.columns],
    }
