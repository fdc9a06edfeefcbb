"""What a preflight finds, alike for every family: problems, each with the statement or setting that cures it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dblog.errors import PositionLost, PreconditionFailed


@dataclass(frozen=True)
class Problem:
    """Something that is not as it must be, and the SQL or setting that cures it."""

    what: str
    fix: str
    fatal: bool = True
    creatable: bool = False
    """The preflight runs the fix itself; never fatal."""
    lost: bool = False
    """The log no longer reaches back to the pipeline's position."""
    passing: bool = False
    """Somebody else may end it soon, so a stream that starts waits for that a little."""

    @property
    def statements(self) -> list[str]:
        """The statements of the fix, in the order in which to run them; none where the fix is advice, which begins with
        a small letter."""
        return [line for line in self.fix.splitlines() if re.match(r"[A-Z]+\b.*;(  -- |$)", line)]

    def __str__(self) -> str:
        return f"- {self.what}\n  fix: " + self.fix.replace("\n", "\n       ")


def refuse(problems: Sequence[Problem]) -> None:
    """Raise PreconditionFailed (or PositionLost) with every fatal problem, if there is any."""
    if fatal := [p for p in problems if p.fatal]:
        kind = PositionLost if any(p.lost for p in fatal) else PreconditionFailed
        many = "1 problem" if len(fatal) == 1 else f"{len(fatal)} problems"
        raise kind(f"the server is not ready for capture, {many}:\n" + "\n".join(map(str, fatal)))
