"""Dump requests, their wishes and their progress.

A request has three documents, each with one kind of writer, so that no writer waits for another: the request itself,
written once; the wish of its owner (run, pause, cancel); and its progress, which the pipeline writes from its offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar

from dblog.core.condition import check_condition
from dblog.core.dump import OWN
from dblog.core.names import parse_patterns, parse_table
from dblog.errors import ConfigError

_T = TypeVar("_T")

MOST_KEYS = 10_000
MOST_TEXT = 4000


class State(StrEnum):
    queued = "queued"
    running = "running"
    paused = "paused"
    completed = "completed"
    cancelled = "cancelled"
    failed = "failed"

    @property
    def ended(self) -> bool:
        return self in (State.completed, State.cancelled, State.failed)


class Wish(StrEnum):
    """What the owner of a dump wants: run, pause or cancel it."""

    run = "run"
    pause = "pause"
    cancel = "cancel"


def known(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """Make a dataclass from the values that it has fields for. Others are ignored: a newer version may write more."""
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in names})


@dataclass(frozen=True)
class Request:
    """What to dump: all tables, the tables of some patterns, given keys of one table, or its rows under a condition.

    Keys are texts, one for each column of the primary key, in its order."""

    tables: str | None = None
    """Patterns as in the option `tables`; None for all."""
    keys: tuple[tuple[str, ...], ...] = ()
    where: str | None = None

    @property
    def kind(self) -> str:
        return "all" if self.tables is None else "keys" if self.keys else "where" if self.where else "table"

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"tables": self.tables, "keys": [list(k) for k in self.keys], "where": self.where}
        return {name: value for name, value in data.items() if value}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Request:
        keys = tuple(tuple(k) for k in data.get("keys", ()))
        return Request(data.get("tables"), keys, data.get("where"))


def read_request(
    tables: str | None = None, keys: Sequence[Sequence[Any] | Any] = (), where: str | None = None
) -> Request:
    """Check a request as far as that is possible without the database. Raises ConfigError."""
    if tables is None and (keys or where):
        raise ConfigError("a request for keys or a condition needs a table", hint="name one table, like public.orders")
    if keys and where:
        raise ConfigError("a request cannot have both keys and a condition", hint="make two requests")
    if tables is not None:
        if len(tables) > MOST_TEXT:
            raise ConfigError(
                f"the text of the tables has {len(tables)} characters", hint=f"at most {MOST_TEXT} are allowed"
            )
        if keys or where:
            parse_table(tables, "table")
        elif all(p.exclude for p in parse_patterns(tables, "tables")):
            raise ConfigError(
                f"the tables {tables!r} only exclude tables", hint="also include some: public.*, !public.tmp_*"
            )
    if isinstance(keys, str | bytes):
        raise ConfigError("the keys are a text, not a list", hint="give a list of keys")
    if len(keys) > MOST_KEYS:
        raise ConfigError(f"{len(keys)} keys are too many for one request", hint=f"make requests of up to {MOST_KEYS}")
    if where is not None and (not where.strip() or len(where) > MOST_TEXT):
        raise ConfigError(f"the condition has {len(where)} characters", hint=f"1 to {MOST_TEXT} are allowed")
    if where is not None:
        check_condition(where)
    read = tuple(_key(k) for k in keys)
    if len({len(key) for key in read}) > 1:
        raise ConfigError(
            "some keys have more values than others", hint="a key has one value for each column of the primary key"
        )
    return Request(tables, read, where.strip() if where else None)


def _key(given: Any) -> tuple[str, ...]:
    parts = list(given) if isinstance(given, list | tuple) else [given]
    if not parts or any(isinstance(p, dict | list | tuple | bytes) or p is None for p in parts):
        raise ConfigError(
            f"{given!r} is not a key", hint="a key is a value, or a list of values for a composite key, without nulls"
        )
    return tuple(("true" if p else "false") if isinstance(p, bool) else str(p) for p in parts)


@dataclass(frozen=True)
class TableProgress:
    """The progress of the dump of one table. The pipeline writes it from its offset."""

    state: State = State.queued
    read: int = 0
    """Rows that were selected. Each was then emitted or dropped."""
    emitted: int = 0
    dropped: int = 0
    """Rows that were not delivered, because the log has newer changes of them."""
    total: int | None = None
    """An estimate of the rows to read."""
    reason: str | None = None
    missing: tuple[tuple[str, ...], ...] = ()
    """For a request for keys: the keys that no row has, at most a hundred of them."""
    missed: int = 0
    """How many keys no row has."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TableProgress:
        missing = tuple(tuple(k) for k in data.get("missing", ()))
        return known(TableProgress, {**data, "state": State(data["state"]), "missing": missing})


@dataclass(frozen=True)
class Progress:
    """The state and progress of a dump. Times are seconds since 1970."""

    state: State = State.queued
    reason: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    active_seconds: float = 0.0
    """How long the dump has run, in seconds, without pauses."""
    tables: Mapping[str, TableProgress] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "tables": {name: t.to_json() for name, t in self.tables.items()}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Progress:
        tables = {name: TableProgress.from_json(t) for name, t in data["tables"].items()}
        return known(Progress, {**data, "state": State(data["state"]), "tables": tables})


@dataclass(frozen=True)
class Dump:
    """A dump as users see it: the request, its wish and its progress. A stream makes two dumps without a request:
    `initial`, its first dump, and `repair`, which reads rows again that the log left incomplete."""

    id: str
    request: Request
    created_at: float | None = None
    wish: Wish = Wish.run
    progress: Progress = field(default_factory=Progress)

    @property
    def state(self) -> State:
        state = self.progress.state
        if state.ended:
            return state
        if self.wish is Wish.cancel and state is State.queued:
            return State.cancelled
        return State.paused if self.wish is Wish.pause else state

    @property
    def read(self) -> int:
        return sum(t.read for t in self.progress.tables.values())

    @property
    def emitted(self) -> int:
        return sum(t.emitted for t in self.progress.tables.values())

    @property
    def dropped(self) -> int:
        return sum(t.dropped for t in self.progress.tables.values())

    @property
    def total(self) -> int | None:
        """An estimate of the rows to read; None if there is no estimate for some table."""
        totals = [t.read if t.state.ended else t.total for t in self.progress.tables.values()]
        known = [max(n, t.read) for n, t in zip(totals, self.progress.tables.values(), strict=True) if n is not None]
        return sum(known) if totals and len(known) == len(totals) else None

    @property
    def seconds_left(self) -> float | None:
        """An estimate of the seconds until the dump ends, from its rate so far."""
        if self.state.ended:
            return 0.0
        if self.total is None or not self.read or not self.progress.active_seconds:
            return None
        return (self.total - self.read) * self.progress.active_seconds / self.read

    def to_json(self) -> dict[str, Any]:
        """For the command line and the HTTP API: all fields, with the computed ones."""
        return {
            "id": self.id,
            "kind": self.id if self.id in OWN else self.request.kind,
            "state": str(self.state),
            "reason": self.progress.reason,
            **self.request.to_json(),
            "read": self.read,
            "emitted": self.emitted,
            "dropped": self.dropped,
            "total": self.total,
            "seconds_left": self.seconds_left,
            "created_at": self.created_at,
            "started_at": self.progress.started_at,
            "finished_at": self.progress.finished_at,
            "progress": {name: t.to_json() for name, t in self.progress.tables.items()},
        }
