"""People who ask for dumps, pause and cancel them: the state store as the engine meets it, without its thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from dblog.core.offset import Offset
from dblog.core.schema import TableName
from dblog.core.set_aside import SetAside
from dblog.core.throttle import Throttle
from dblog.planning.state_sync import Inbox
from dblog.state.pipeline import request_number
from dblog.state.requests import Dump, Request
from tests.sim.database import Database, Id, Violation, text
from tests.sim.store import Store

STORE = "store"


class Surroundings(Protocol):
    rng: Random
    database: Database
    store: Store
    odds: Any
    captured: list[TableName]
    closing: bool

    def note(self, line: str) -> None: ...


@dataclass
class Asked:
    """A dump that somebody asked for."""

    dump: Dump
    table: TableName
    keys: frozenset[Id]
    """Only these; none for the whole table."""
    paused: bool = False
    cancelled: bool = False
    owed: set[Id] | None = None
    """The rows that were there when it was taken."""
    excused: bool = False
    """Its table was set aside: it may have failed."""
    batch: int = -1
    """The batch that took it: what is owed comes later."""


class People:
    """Has the interface of `planning.state_sync.StateSync`."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self.asked: list[Asked] = []
        self._throttle = world.rng.choice((Throttle(), Throttle(), Throttle(delay_seconds=0.05, rows_per_second=50)))
        self._selected: set[str] = set()
        self._aside: Mapping[TableName, SetAside] = {}
        self._retries: dict[str, tuple[int, float]] = {}

    # -- what the engine asks and says -----------------------------------------------------------------------

    def start(self) -> None:
        pass

    def inbox(self) -> Inbox:
        """Somebody may just have done something."""
        world = self._world
        if not world.closing and world.rng.random() < world.odds.request:
            self._act(world.rng)
        for table, found in self._aside.items():
            if world.closing or world.rng.random() < world.odds.retry:
                self._retries[str(table)] = found.id
                world.note(f"somebody wants {table.name} back")
        open_ = [a for a in self.asked if not a.cancelled]
        return Inbox(
            STORE,
            tuple(a.dump for a in open_),
            frozenset(a.dump.id for a in open_ if a.paused),
            frozenset(a.dump.id for a in self.asked if a.cancelled),
            self._throttle,
            dict(self._retries),
        )

    def _act(self, rng: Random) -> None:
        what = rng.choice(("ask", "ask", "pause", "resume", "cancel"))
        if what == "ask":
            table = rng.choice(self._world.captured)
            rows = sorted(self._world.database.rows[table])
            keys = rng.sample(rows, min(len(rows), 2)) if rng.random() < 0.5 else []
            request = Request(str(table), tuple(text(k) for k in keys))
            self.asked.append(Asked(Dump(f"{len(self.asked) + 1}-r", request), table, frozenset(keys)))
        elif self.asked:
            asked = rng.choice(self.asked)
            self._world.note(f"somebody {what}s {asked.dump.id}")
            asked.paused = what == "pause"
            asked.cancelled |= what == "cancel"

    def admitted(self, dump: str, tables: Mapping[str, Any]) -> None:
        for asked in self.asked:
            if asked.dump.id == dump:
                there = self._world.database.rows[asked.table].keys()
                asked.owed = set(there & asked.keys if asked.keys else there)

    def tell(self, kind: str, **facts: Any) -> None:
        if kind == "chunk_selected":
            if facts["chunk"] in self._selected:
                raise Violation(f"chunk {facts['chunk']} was told and charged twice")
            self._selected.add(facts["chunk"])

    def delivered(self, offset: Offset, tally: Sequence[Any]) -> None:
        pass

    def saw(self, schemas: Mapping[str, Any]) -> None:
        pass

    def exchange(self, seconds: float | None = None) -> None:
        pass

    # -- what the world asks and says ------------------------------------------------------------------------

    def begin_life(self) -> None:
        """A new driver, which knows nothing of what the last one told."""
        self._selected = set()

    def planned(self, batch: int, end: Offset) -> None:
        """Spark has written the offset of a batch down."""
        self._aside = end.aside
        taken = 0 if end.taken is None else end.taken.number
        for asked in self.asked:
            asked.excused |= asked.table in end.aside
        for asked in self.asked[:taken]:
            asked.batch = asked.batch if asked.batch >= 0 else batch

    def close(self) -> None:
        """Nobody wants anything new; what is paused goes on, in large rounds, so that the history ends soon."""
        self._throttle = Throttle(chunks=4, chunk_rows=3)
        for asked in self.asked:
            asked.paused = False

    def waiting(self, at: Offset) -> bool:
        """Whether a request is not taken yet."""
        taken = 0 if at.taken is None else at.taken.number
        return any(request_number(a.dump.id) > taken and not a.cancelled for a in self.asked)

    def compare(self) -> None:
        """At the end: every row that was there when a request was taken, and still is, has been delivered since."""
        world = self._world
        for asked in self.asked:
            if asked.cancelled or asked.excused:
                continue
            if asked.owed is None:
                raise Violation(f"request {asked.dump.id} was never taken")
            for key in sorted(asked.owed & world.database.rows[asked.table].keys()):
                if world.store.delivered.get((asked.table, key), -1) <= asked.batch:
                    raise Violation(f"request {asked.dump.id} has not delivered {asked.table}{key}")
