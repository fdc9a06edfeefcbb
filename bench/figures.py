"""A figure of the report: what was measured, round by round, and what it is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Figure:
    """One measured quantity; its value is the median of the rounds."""

    part: str
    what: str
    rounds: tuple[float, ...]
    unit: str
    note: str = ""

    @property
    def value(self) -> float:
        return median(self.rounds)

    @property
    def text(self) -> str:
        return f"{_number(self.value)} {self.unit}"

    @property
    def spread(self) -> str:
        return f"{_number(min(self.rounds))} to {_number(max(self.rounds))}" if len(self.rounds) > 1 else ""


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
        return f"{'at least' if self.least else 'at most'} {_number(self.bound)}{self.unit}"


def ratio(what: str, ours: Figure, other: Figure, bound: float | None, *, least: bool = True) -> Target:
    """Our figure in units of the other's. Rounds are compared one by one, because they ran side by side."""
    rounds = [a / b for a, b in zip(ours.rounds, other.rounds, strict=True)]
    return Target(what, median(rounds), " x", bound, least)


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
