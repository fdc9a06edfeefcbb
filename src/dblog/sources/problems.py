"""The result of a preflight, for every family: problems, each with the statement or setting that fixes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dblog.errors import PositionLost, PreconditionFailed


@dataclass(frozen=True)
class Problem:
    """A precondition that is not fulfilled, and the SQL or setting that fixes it."""

    what: str
    fix: str
    fatal: bool = True
    creatable: bool = False
    """Whether the preflight runs the fix itself. Never fatal."""
    lost: bool = False
    """Whether the log no longer reaches back to the pipeline's position."""
    passing: bool = False
    """Whether it may end by itself soon, so that a starting stream waits a little."""

    @property
    def statements(self) -> list[str]:
        """The statements of the fix, in the order to run them. None if the fix is advice, which starts with a
        lower-case letter."""
        return [line for line in self.fix.splitlines() if re.match(r"[A-Z]+\b.*;(  -- |$)", line)]

    def __str__(self) -> str:
        return f"- {self.what}\n  fix: " + self.fix.replace("\n", "\n       ")


def refuse(problems: Sequence[Problem]) -> None:
    """Raise PreconditionFailed (or PositionLost) with every fatal problem, if there is any."""
    if fatal := [p for p in problems if p.fatal]:
        kind = PositionLost if any(p.lost for p in fatal) else PreconditionFailed
        many = "1 problem" if len(fatal) == 1 else f"{len(fatal)} problems"
        raise kind(f"the server is not ready for capture, {many}:\n" + "\n".join(map(str, fatal)))
