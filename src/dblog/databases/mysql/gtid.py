"""GTIDs: a point in the log, named by the transactions before it.

Files and bytes of the log differ between the servers of a cluster; GTIDs do not. A GTID is an origin and a number.

* MySQL keeps a GTID set: every number of each origin. An origin is a server's UUID, with or without a tag.
* MariaDB keeps a GTID position: for each domain, the server and the number of the last transaction.

`GtidSet` and `GtidPosition` have the same methods (`Gtids`); a `Flavor` says which of them its servers use.

A server can have transactions that the stream's previous server does not have, because somebody wrote to a replica.
Such a transaction is `AHEAD` if it is in the new log before a transaction that was already delivered: the stream has
passed that point and cannot deliver it any more.
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
"""Prefix of the origin of a transaction that was not delivered and is in the log before delivered ones."""
AHEAD_OF_OTHERS = "++"
"""MariaDB: the same, where all the delivered ones after it are of other domains. In its own domain it is the newest."""


class Gtids(Protocol):
    """The transactions before a point in the log."""

    @classmethod
    def parse(cls, text: str, seen: str = "") -> Self: ...

    def __str__(self) -> str: ...

    @property
    def seen(self) -> str:
        """What `parse` needs beside the text to make an equal object."""
        ...

    def __le__(self, other: Self) -> bool:
        """Whether the other point is the same or later in the log: all of these transactions are before it."""
        ...

    def within(self, other: Self) -> bool:
        """Whether each of these transactions, also those in `seen`, is known to be before the other point."""
        ...

    def after(self, origins: Names, numbers: Ints) -> Self:
        """The point after these further transactions, which are in the order of the log. A transaction without an
        origin is ignored."""
        ...

    def delivered(self, first: Self | None = None, server: str = "") -> DeliveredFilter:
        """A filter for a log that begins after `first`: it finds the transactions before this point. They were already
        delivered, from the log of `server`."""
        ...


class DeliveredFilter(Protocol):
    """Finds the transactions that were already delivered in a log that is read from further back."""

    @property
    def awaits(self) -> bool:
        """Whether some delivered transactions have not come yet."""
        ...

    def __call__(self, origins: Names, numbers: Ints) -> tuple[Mask, Names]:
        """For the next transactions of the log: which were delivered, and a mark for each.

        The mark is `AHEAD` or `AHEAD_OF_OTHERS` for a transaction that was not delivered, comes before delivered ones,
        and was not on the server from which these were read. It is empty for all others."""
        ...


@dataclass(frozen=True)
class Between:
    """A `DeliveredFilter` that lets only the transactions between two points through."""

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
        """Which of the transactions are in the set."""
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
        """Without `first` the log is read at the position itself, so no delivered transaction is awaited."""
        return _SetDelivered(self, first or self)


class _SetDelivered:
    """The filter of a `GtidSet`. Counts for each origin the delivered transactions that have not come yet."""

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
                # The transactions of one server come in its own order, or in an order that makes no difference.
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
    """The ranges, sorted. Ranges that touch or overlap become one."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ranges[:, 1])
    first = np.flatnonzero(np.append(True, ranges[1:, 0] > reach[:-1] + 1))
    return np.stack([ranges[first, 0], reach[np.append(first[1:], len(ranges)) - 1]], axis=1)


@dataclass(frozen=True)
class GtidPosition:
    """MariaDB's GTID position: for each domain, the server and the number of the last transaction.

    An origin is `domain-server`. `last_of` has the last known number of each origin. It tells the stream's own
    transactions from foreign ones with smaller numbers. The entry of server 0, which no real server has, stands for all
    servers without an entry: what they wrote up to that number was before the stream began.
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
        """The GTID position of a new stream. `state` has the last transaction of every origin that the server has
        logged.

        The numbers of a domain only grow. So a server that is not in `state` cannot have written a number above the
        smallest one in it."""
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
        """Whether the transaction is before this point, given that it is not after the last of its domain."""
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
    """The filter of a `GtidPosition`. Waits in each domain for the last transaction that was delivered.

    Domains are independent, so a new transaction of one domain may stand before delivered ones of another. That is
    accepted from two servers: the one that the stream was read from, and the one that wrote the last delivered
    transaction of the domain. A transaction of any other server gets a mark, because the server that the stream was
    read from may never have had it.
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
                    f"the log does not have GTID {domain}-{last[0]}-{last[1]}, which was the last delivered one",
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
    """Each different origin with its last index, sorted by that index."""
    backwards = origins[::-1].tolist()
    last = {origin: len(origins) - 1 - backwards.index(origin) for origin in set(backwards) - {"", AHEAD}}
    yield from sorted(last.items(), key=lambda found: found[1])


@dataclass(frozen=True)
class Coordinate:
    """A position in terms that all servers of a cluster share. An offset keeps it beside the position.

    `shift` is added to the server's file numbers. It keeps positions growing when another server, or the same server
    after a reset of its log, numbers its files differently.
    """

    gtids: str = ""
    server: str = ""
    """The server whose log the position counts; empty for a server without a name."""
    shift: int = 0
    created: int = 0
    """When the position's file was created. After a reset another file may have the same number."""
    seen: str = ""
    """`Gtids.seen`. Empty in an offset of an earlier version."""

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
        """Two coordinates with the same value here have positions of the same log."""
        return self.server, self.shift

    def after(self, origins: Names, numbers: Ints) -> Coordinate:
        """The coordinate after these further transactions."""
        named = next((name for origin in origins.tolist() if (name := unmarked(origin))), None)
        if named is None:
            return self
        there = _kind(named).parse(self.gtids, self.seen).after(origins, numbers)
        return replace(self, gtids=str(there), seen=there.seen)


def _kind(origin: str) -> type[Gtids]:
    """The kind of GTIDs that an origin belongs to: MySQL's begin with a UUID, which has four dashes."""
    return GtidSet if origin[:36].count("-") == 4 and len(origin) >= 36 else GtidPosition
