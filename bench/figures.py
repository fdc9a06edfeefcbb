"""A figure of the report: what was measured, round by round, and what it is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

MILLION = 1_000_000


@dataclass(frozen=True)
class Cpu:
    """Processor seconds (user and system) of one round, by whose processes they are."""

    own: float
    """Of the side that is measured: its processes, without the servers'."""
    source: float = 0.0
    target: float = 0.0

    def per_million(self, rows: int) -> Cpu:
        share = MILLION / max(rows, 1)
        return Cpu(self.own * share, self.source * share, self.target * share)


NO_CPU = Cpu(0.0)


@dataclass(frozen=True)
class Figure:
    """One measured quantity; its value is the median of the rounds."""

    part: str
    what: str
    rounds: tuple[float, ...]
    unit: str
    note: str = ""
    cpu: tuple[Cpu, ...] = ()
    """Processor seconds per million rows, round by round; empty where they are not measured."""

    @property
    def value(self) -> float:
        return median(self.rounds)

    @property
    def text(self) -> str:
        return f"{_number(self.value)} {self.unit}"

    @property
    def spread(self) -> str:
        return f"{_number(min(self.rounds))} to {_number(max(self.rounds))}" if len(self.rounds) > 1 else ""

    @property
    def cpu_text(self) -> str:
        """Like "5.1 + 2.3 source + 1.2 target"; a server that did nothing is left out."""
        if not self.cpu:
            return ""
        source, target = median(c.source for c in self.cpu), median(c.target for c in self.cpu)
        shown = [_number(median(c.own for c in self.cpu))]
        shown += [f"{_number(value)} {name}" for value, name in ((source, "source"), (target, "target")) if value]
        return " + ".join(shown)


@dataclass(frozen=True)
class Target:
    """A figure, or its ratio to another, and what it should be."""

    what: str
    value: float
    unit: str
    bound: float | None
    """None where it is only reported."""
    least: bool = True
    """Whether the bound is a lower one."""
    aim: float | None = None
    """What would be better than the bound, shown beside it."""

    @property
    def met(self) -> bool | None:
        if self.bound is None:
            return None
        return self.value >= self.bound if self.least else self.value <= self.bound

    @property
    def text(self) -> str:
        return f"{_number(self.value)}{self.unit}"

    @property
    def wanted(self) -> str:
        if self.bound is None:
            return ""
        aim = "" if self.aim is None else f", aim {_number(self.aim)}{self.unit}"
        return f"{'at least' if self.least else 'at most'} {_number(self.bound)}{self.unit}{aim}"


@dataclass(frozen=True)
class Bound:
    """What a ratio should be at least, and what would be better."""

    least: float
    aim: float | None = None


Measured = tuple[list[Figure], list[Target]]
"""What a part of the benchmark returns."""


def joined(parts: Sequence[Measured]) -> Measured:
    return [figure for figures, _ in parts for figure in figures], [t for _, targets in parts for t in targets]


def ratio(
    what: str,
    ours: Figure,
    other: Figure,
    bound: float | Bound | None,
    *,
    least: bool = True,
    aim: float | None = None,
) -> Target:
    """Our figure in units of the other's. Rounds are compared one by one, because they ran side by side."""
    rounds = [a / b for a, b in zip(ours.rounds, other.rounds, strict=True)]
    if isinstance(bound, Bound):
        aim, bound = bound.aim, bound.least
    return Target(what, median(rounds), " x", bound, least, aim)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def rotated(sides: Sequence[Callable[[], None]], by: int) -> Sequence[Callable[[], None]]:
    """The sides of a comparison, with another one first in every round."""
    by %= len(sides)
    return [*sides[by:], *sides[:by]]


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
