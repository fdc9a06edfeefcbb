"""GTIDs: a place in the log by the transactions before it. It is the same on every server of a cluster, where files and
places in them are not.

A transaction has an origin and a number. MySQL remembers every number of each origin (a UUID, with a tag or without),
MariaDB of each domain the last transaction: its server and its number. So there are two kinds of GTIDs with the same
methods, and a `Flavor` says which kind its servers have.

A server can have transactions that the servers before it do not have: somebody has written to a replica. Those that lie
in its log in front of a transaction that was delivered (`ahead`) were not there when the stream passed their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from dblog.core.arrays import Ints, Mask
from dblog.errors import PositionLost

Names = npt.NDArray[np.object_]

DIVERGED = (
    "was the stream moved to a server that lacks transactions, or was the log reset? start with a new checkpoint, "
    "which dumps the tables again"
)
AHEAD = "+"
"""How the origin of a transaction begins that lies in front of delivered ones and was not delivered."""
AHEAD_OF_OTHERS = "++"
"""MariaDB: the same, if the delivered ones are of other domains only. In its own domain it comes after them."""


class Gtids(Protocol):
    """The transactions before a place in the log."""

    @classmethod
    def parse(cls, text: str, seen: str = "") -> Self: ...

    def __str__(self) -> str: ...

    @property
    def seen(self) -> str:
        """What is known of these transactions beside the text."""
        ...

    def __le__(self, other: Self) -> bool:
        """Whether the other place has all of these behind it."""
        ...

    def within(self, other: Self) -> bool:
        """Whether each of these transactions is known to be before the other place."""
        ...

    def after(self, origins: Names, numbers: Ints) -> Self:
        """The place after some more transactions, in the order of the log. Those without an origin do not count."""
        ...

    def delivered(self, first: Self | None = None, server: str = "") -> DeliveredFilter:
        """Tells what was delivered up to here, read from the log of `server`, in a log that begins with what comes
        after `first`."""
        ...


class DeliveredFilter(Protocol):
    """Tells, of the transactions of a log that begins further back, which were before a place."""

    @property
    def awaits(self) -> bool:
        """Whether the log has not yet shown all transactions before the place."""
        ...

    def __call__(self, origins: Names, numbers: Ints) -> tuple[Mask, Names]:
        """Of the next transactions, which were delivered, and a mark (`AHEAD`, `AHEAD_OF_OTHERS`) for each that was not
        although it is in front of some that were, and was not on the server that they came from."""
        ...


@dataclass(frozen=True)
class Between:
    """Passes over all but the transactions between two places (`DeliveredFilter`)."""

    start: DeliveredFilter
    end: DeliveredFilter

    @property
    def awaits(self) -> bool:
        return self.end.awaits

    def __call__(self, origins: Names, numbers: Ints) -> tuple[Mask, Names]:
        before, upto = self.start(origins, numbers)[0], self.end(origins, numbers)[0]
        return before | ~upto, np.full(len(numbers), "", np.object_)


@dataclass(frozen=True)
class GtidSet:
    """MySQL's GTID set: for each origin, ranges of numbers with both ends included, sorted and not touching."""

    ranges: Mapping[str, Ints] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, seen: str = "") -> GtidSet:
        found: dict[str, list[tuple[int, int]]] = {}
        for part in "".join(text.split()).split(","):
            origin = uuid = part.partition(":")[0].lower()
            for word in part.split(":")[1:]:
                if word[0].isdigit():
                    first, _, last = word.partition("-")
                    found.setdefault(origin, []).append((int(first), int(last or first)))
                else:
                    origin = f"{uuid}:{word.lower()}"
        return cls({origin: _merged(np.array(ranges, np.int64)) for origin, ranges in found.items()})

    def __str__(self) -> str:
        return ",".join(
            ":".join([origin, *(str(a) if a == b else f"{a}-{b}" for a, b in ranges.tolist())])
            for origin, ranges in sorted(self.ranges.items())
        )

    @property
    def seen(self) -> str:
        return ""

    def within(self, other: GtidSet) -> bool:
        return self <= other

    def __le__(self, other: GtidSet) -> bool:
        for origin, mine in self.ranges.items():
            theirs = other.ranges.get(origin, np.empty((0, 2), np.int64))
            at = np.searchsorted(theirs[:, 0], mine[:, 0], "right") - 1
            if np.any(at < 0) or np.any(theirs[at, 1] < mine[:, 1]):
                return False
        return True

    def after(self, origins: Names, numbers: Ints) -> GtidSet:
        ranges = dict(self.ranges)
        for named in set(origins.tolist()) - {"", AHEAD}:
            origin, new = unmarked(named), numbers[origins == named]
            ranges[origin] = _merged(np.concatenate([ranges.get(origin, np.empty((0, 2), np.int64)), _pairs(new)]))
        return GtidSet(ranges)

    def has(self, origins: Names, numbers: Ints) -> Mask:
        """Which of some transactions are in the set."""
        found = np.zeros(len(numbers), np.bool_)
        for origin in set(origins.tolist()) & set(self.ranges):
            ranges, mine = self.ranges[origin], origins == origin
            at = np.searchsorted(ranges[:, 0], numbers[mine], "right") - 1
            found[mine] = (at >= 0) & (numbers[mine] <= ranges[at, 1])
        return found

    def count(self, origin: str) -> int:
        ranges = self.ranges.get(origin)
        return 0 if ranges is None else int((ranges[:, 1] - ranges[:, 0] + 1).sum())

    def delivered(self, first: GtidSet | None = None, server: str = "") -> DeliveredFilter:
        """Without `first` the log is one whose positions were counted: it is not waited for anything."""
        return _SetDelivered(self, first or self)


class _SetDelivered:
    """Counts, of each origin, the delivered transactions that the log has not yet shown."""

    def __init__(self, gtids: GtidSet, first: GtidSet) -> None:
        self._gtids = gtids
        self._left = {origin: gtids.count(origin) - first.count(origin) for origin in gtids.ranges}

    @property
    def awaits(self) -> bool:
        return any(self._left.values())

    def __call__(self, origins: Names, numbers: Ints) -> tuple[Mask, Names]:
        delivered = self._gtids.has(origins, numbers)
        ahead = np.zeros(len(numbers), np.bool_)
        if self.awaits:
            servers = np.array([_server(origin) for origin in origins.tolist()], np.object_)
            for origin in set(origins[delivered].tolist()):
                self._left[origin] -= int(np.count_nonzero(delivered & (origins == origin)))
            for server in set(servers[~delivered].tolist()):
                # what one server has written comes in its order, or in another one that makes no difference
                others = np.flatnonzero(delivered & (servers != server))
                awaited = any(left for origin, left in self._left.items() if _server(origin) != server)
                reach = len(numbers) if awaited else int(others[-1]) if len(others) else 0
                ahead[:reach] |= (servers == server)[:reach] & ~delivered[:reach]
        return delivered, np.where(ahead, AHEAD, "").astype(np.object_)


def _server(origin: str) -> str:
    return origin.partition(":")[0]


def _pairs(numbers: Ints) -> Ints:
    return np.stack([numbers, numbers], axis=1)


def _merged(ranges: Ints) -> Ints:
    """The ranges in order, with those that touch joined."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ranges[:, 1])
    first = np.flatnonzero(np.append(True, ranges[1:, 0] > reach[:-1] + 1))
    return np.stack([ranges[first, 0], reach[np.append(first[1:], len(ranges)) - 1]], axis=1)


@dataclass(frozen=True)
class GtidPosition:
    """MariaDB's: of each domain, the server and the number of the last transaction. An origin is `domain-server`.

    `last_of` has the last number of each origin that is known, which tells the transactions of the stream's servers
    from others with smaller numbers. The server 0, which no server is, stands in it for those that are not named: what
    they wrote up to that number was before the stream began.
    """

    last: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    last_of: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, seen: str = "") -> GtidPosition:
        last = {domain: (server, number) for domain, server, number in _parts(text)}
        last_of = {f"{domain}-{server}": number for domain, server, number in _parts(seen)}
        if not seen:
            last_of = {f"{domain}-0": number for domain, (_, number) in last.items()}
        for domain, (server, number) in last.items():
            last_of[f"{domain}-{server}"] = max(number, last_of.get(f"{domain}-{server}", 0))
        return cls(last, last_of)

    @classmethod
    def begun(cls, text: str, state: str) -> GtidPosition:
        """Of a stream that begins at a position, by the last transactions of all origins that its server has logged.
        The numbers of a domain grow, so that a server which is not among them can have written none that is greater
        than the least of theirs."""
        last_of = {f"{domain}-{server}": number for domain, server, number in _parts(state)}
        least: dict[str, int] = {}
        for domain, _, number in _parts(state):
            least[f"{domain}-0"] = min(number, least.get(f"{domain}-0", number))
        return cls(cls.parse(text).last, {**last_of, **(least or {"0-0": 0})})

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.last.items()))

    @property
    def seen(self) -> str:
        said = {f"{domain}-{server}": number for domain, (server, number) in self.last.items()}
        return ",".join(f"{origin}-{number}" for origin, number in sorted(self.last_of.items() - said.items()))

    def __le__(self, other: GtidPosition) -> bool:
        return all(d in other.last and other.last[d][1] >= number for d, (_, number) in self.last.items())

    def within(self, other: GtidPosition) -> bool:
        return self <= other and all(other.has(origin, number) for origin, number in self.last_of.items())

    def has(self, origin: str, number: int) -> bool:
        """Whether the transaction was before the place, if it is one of those before the last of its domain."""
        return number <= self.last_of.get(origin, self.last_of.get(f"{origin.partition('-')[0]}-0", 0))

    def after(self, origins: Names, numbers: Ints) -> GtidPosition:
        last, last_of = dict(self.last), dict(self.last_of)
        for named, at in _last_of_each(origins):
            origin = unmarked(named)
            last_of[origin] = max(int(numbers[at]), last_of.get(origin, 0))
            if named != AHEAD + origin:
                domain, _, server = origin.partition("-")
                last[domain] = server, int(numbers[at])
        return GtidPosition(last, last_of)

    def delivered(self, first: GtidPosition | None = None, server: str = "") -> DeliveredFilter:
        return _PositionDelivered(self, {} if first is None else first.last, server)


class _PositionDelivered:
    """Waits, in each domain, for the last transaction that was delivered.

    Domains do not depend on each other, so a new transaction of one domain may lie in front of delivered ones of
    another. It is accepted there from two servers: the one that the stream was read from, and the one that wrote the
    last delivered transaction of its domain. From any other server it gets a mark, because the server that the stream
    was read from may never have had it.
    """

    def __init__(self, gtids: GtidPosition, passed: Mapping[str, tuple[str, int]], server: str) -> None:
        self._gtids, self._server = gtids, server
        self._awaited = {domain: last for domain, last in gtids.last.items() if passed.get(domain) != last}

    @property
    def awaits(self) -> bool:
        return bool(self._awaited)

    def __call__(self, origins: Names, numbers: Ints) -> tuple[Mask, Names]:
        delivered, marks = np.zeros(len(numbers), np.bool_), np.full(len(numbers), "", np.object_)
        if not self._awaited:
            return delivered, marks
        for at, (origin, number) in enumerate(zip(origins.tolist(), numbers.tolist(), strict=True)):
            if not self._awaited:
                break
            domain, _, server = origin.partition("-")
            last = self._awaited.get(domain)
            if last is None:
                if server not in (self._server, self._gtids.last.get(domain, ("",))[0]):
                    marks[at] = AHEAD_OF_OTHERS
                continue
            if server == last[0] and number > last[1]:
                raise PositionLost(
                    f"the log passes GTID {domain}-{last[0]}-{last[1]}, the last that was delivered, without it",
                    hint=DIVERGED,
                )
            known = self._gtids.has(origin, number)
            delivered[at], marks[at] = known, "" if known else AHEAD
            if (server, number) == last:
                del self._awaited[domain]
        return delivered, marks


def unmarked(origin: str) -> str:
    """An origin without its mark."""
    return origin.lstrip(AHEAD)


def _parts(text: str) -> list[tuple[str, str, int]]:
    """Domain, server and number of each GTID."""
    parts = (gtid.strip().split("-") for gtid in text.split(",") if gtid.strip())
    return [(domain, server, int(number)) for domain, server, number in parts]


def _last_of_each(origins: Names) -> Iterator[tuple[str, int]]:
    """Each different origin with its last place, in the order of these places."""
    backwards = origins[::-1].tolist()
    last = {origin: len(origins) - 1 - backwards.index(origin) for origin in set(backwards) - {"", AHEAD}}
    yield from sorted(last.items(), key=lambda found: found[1])


@dataclass(frozen=True)
class Coordinate:
    """A place in the log in terms that outlive a server: what an offset has beside its position.

    `shift` is added to the numbers of the server's files, so that positions grow although another server, or the same
    one after its log was reset, counts its files anew.
    """

    gtids: str = ""
    server: str = ""
    """The server that the position is of, where it has a name."""
    shift: int = 0
    created: int = 0
    """When the file of the position was begun: after a reset there may be another one of its number."""
    seen: str = ""
    """What is known of the transactions beside `gtids` (`Gtids.seen`). An offset of an earlier version has none."""

    @classmethod
    def parse(cls, text: str | None) -> Coordinate:
        words = dict(word.split("=", 1) for word in (text or "").split())
        shift, created = (int(words.get(name, 0)) for name in ("shift", "created"))
        return cls(words.get("gtid", ""), words.get("server", ""), shift, created, words.get("seen", ""))

    def __str__(self) -> str:
        numbers = {name: str(n or "") for name, n in (("shift", self.shift), ("created", self.created))}
        words = {"gtid": self.gtids, "server": self.server, **numbers, "seen": self.seen}
        return " ".join(f"{name}={value}" for name, value in words.items() if value)

    @property
    def log(self) -> tuple[str, int]:
        """Positions of two places count the same log if this is the same."""
        return self.server, self.shift

    def after(self, origins: Names, numbers: Ints) -> Coordinate:
        """The place after some more transactions."""
        named = next((name for origin in origins.tolist() if (name := unmarked(origin))), None)
        if named is None:
            return self
        there = _kind(named).parse(self.gtids, self.seen).after(origins, numbers)
        return replace(self, gtids=str(there), seen=there.seen)


def _kind(origin: str) -> type[Gtids]:
    """Whose an origin is: the UUID at the beginning of MySQL's has more dashes."""
    return GtidSet if origin[:36].count("-") == 4 and len(origin) >= 36 else GtidPosition
