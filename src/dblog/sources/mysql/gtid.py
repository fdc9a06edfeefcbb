"""GTIDs: a place in the log by the transactions before it. It is the same on every server of a cluster, where files and
places in them are not.

A transaction has an origin and a number. MySQL remembers every number of each origin (a UUID, with a tag or without),
MariaDB of each domain the last transaction: its server and its number. So there are two kinds of GTIDs with the same
methods, and a `Flavor` says which kind its servers have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from dblog.errors import PositionLost
from dblog.sources.columns import Ints, Mask

Names = npt.NDArray[np.object_]

DIVERGED = "was the stream moved to a server that lacks transactions, or was the log reset? start with a new checkpoint"


class Gtids(Protocol):
    """The transactions before a place in the log."""

    @classmethod
    def parse(cls, text: str) -> Self: ...

    def __str__(self) -> str: ...

    def __le__(self, other: Self) -> bool:
        """Whether the other place has all of these behind it."""
        ...

    def after(self, origins: Names, numbers: Ints) -> Self:
        """The place after some more transactions, in the order of the log. Those without an origin do not count."""
        ...

    def delivered(self, first: Self | None = None) -> Delivered:
        """Tells what was delivered up to here, in a log that begins with what comes after `first`."""
        ...


class Delivered(Protocol):
    """Tells, of the transactions of a log that begins further back, which were before a place."""

    def __call__(self, origins: Names, numbers: Ints) -> Mask:
        """Of the next transactions."""
        ...


@dataclass(frozen=True)
class GtidSet:
    """MySQL's: of each origin, ranges of numbers, both ends included, in order and apart."""

    ranges: Mapping[str, Ints] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> GtidSet:
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

    def __le__(self, other: GtidSet) -> bool:
        for origin, mine in self.ranges.items():
            theirs = other.ranges.get(origin, np.empty((0, 2), np.int64))
            at = np.searchsorted(theirs[:, 0], mine[:, 0], "right") - 1
            if np.any(at < 0) or np.any(theirs[at, 1] < mine[:, 1]):
                return False
        return True

    def after(self, origins: Names, numbers: Ints) -> GtidSet:
        ranges = dict(self.ranges)
        for origin in set(origins.tolist()) - {""}:
            new = numbers[origins == origin]
            ranges[origin] = _merged(np.concatenate([ranges.get(origin, np.empty((0, 2), np.int64)), _pairs(new)]))
        return GtidSet(ranges)

    def delivered(self, first: GtidSet | None = None) -> Delivered:
        def delivered(origins: Names, numbers: Ints) -> Mask:
            found = np.zeros(len(numbers), np.bool_)
            for origin in set(origins.tolist()) & set(self.ranges):
                ranges, mine = self.ranges[origin], origins == origin
                at = np.searchsorted(ranges[:, 0], numbers[mine], "right") - 1
                found[mine] = (at >= 0) & (numbers[mine] <= ranges[at, 1])
            return found

        return delivered


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
    """MariaDB's: of each domain, the server and the number of the last transaction. An origin is `domain-server`."""

    last: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> GtidPosition:
        parts = (gtid.strip().split("-") for gtid in text.split(",") if gtid.strip())
        return cls({domain: (server, int(number)) for domain, server, number in parts})

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.last.items()))

    def __le__(self, other: GtidPosition) -> bool:
        return all(d in other.last and other.last[d][1] >= number for d, (_, number) in self.last.items())

    def after(self, origins: Names, numbers: Ints) -> GtidPosition:
        last = dict(self.last)
        for origin, at in _last_of_each(origins):
            domain, _, server = origin.partition("-")
            last[domain] = server, int(numbers[at])
        return GtidPosition(last)

    def delivered(self, first: GtidPosition | None = None) -> Delivered:
        passed = {} if first is None else first.last
        awaited = {domain: last for domain, last in self.last.items() if passed.get(domain) != last}
        """Of each domain, the last transaction that was delivered, until the log has shown it."""

        def delivered(origins: Names, numbers: Ints) -> Mask:
            found = np.zeros(len(numbers), np.bool_)
            if not awaited:
                return found
            for at, (origin, number) in enumerate(zip(origins.tolist(), numbers.tolist(), strict=True)):
                domain, _, server = origin.partition("-")
                if domain in awaited:
                    if number > awaited[domain][1]:
                        wanted = "-".join((domain, *map(str, awaited[domain])))
                        raise PositionLost(
                            f"the log passes GTID {wanted}, the last that was delivered, without it", hint=DIVERGED
                        )
                    found[at] = True
                    if (server, number) == awaited[domain]:
                        del awaited[domain]
            return found

        return delivered


def _last_of_each(origins: Names) -> Iterator[tuple[str, int]]:
    """Each different origin with its last place, in the order of these places."""
    backwards = origins[::-1].tolist()
    last = {origin: len(origins) - 1 - backwards.index(origin) for origin in set(backwards) - {""}}
    yield from sorted(last.items(), key=lambda found: found[1])


@dataclass(frozen=True)
class Place:
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

    @classmethod
    def parse(cls, text: str | None) -> Place:
        words = dict(word.split("=", 1) for word in (text or "").split())
        numbers = (int(words.get(name, 0)) for name in ("shift", "created"))
        return cls(words.get("gtid", ""), words.get("server", ""), *numbers)

    def __str__(self) -> str:
        numbers = {"shift": self.shift, "created": self.created}
        words = {"gtid": self.gtids, "server": self.server, **{name: str(n or "") for name, n in numbers.items()}}
        return " ".join(f"{name}={value}" for name, value in words.items() if value)

    def after(self, origins: Names, numbers: Ints) -> Place:
        """The place after some more transactions."""
        named = next((origin for origin in origins.tolist() if origin), None)
        if named is None:
            return self
        return replace(self, gtids=str(_kind(named).parse(self.gtids).after(origins, numbers)))

    def covers(self, other: Place) -> bool:
        kind = _kind(other.gtids or self.gtids)
        return kind.parse(other.gtids) <= kind.parse(self.gtids)


def _kind(text: str) -> type[Gtids]:
    """Whose an origin or a GTID is: the UUID at the beginning of MySQL's has more dashes."""
    return GtidSet if text[:36].count("-") == 4 and len(text) >= 36 else GtidPosition
