"""The result of a preflight, for every family: problems, each with the statement or setting that fixes it.

A problem may be about one table alone. If a pattern brought that table, it is left out because of the problem, and the
stream starts without it. For people, the problems of many tables that have one reason are one paragraph.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dblog.core.names import MOST_NAMES, shortened
from dblog.core.schema import TableName
from dblog.errors import PositionLost, PreconditionFailed, SourceError

NO_KEY = "no primary key and no unique key over NOT NULL columns, which is needed to match dumped rows with changes"
MOST_FIXES = 4
"""How many lines of fixes a paragraph has."""
MOST_CHARACTERS = 400
"""How long a line of a fix is shown: a publication may name a thousand tables."""
MORE = "dblog check --verbose prints all"


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
    table: TableName | None = None
    """The one table that it is about."""
    reason: str = ""
    """For a table: what is wrong, without the table's name. Problems of the same reason are shown together."""
    left_out: bool = False
    """Whether the table is left out because of it. Never fatal."""

    @property
    def statements(self) -> list[str]:
        """The statements of the fix, in the order to run them. None if the fix is advice, which starts with a
        lower-case letter."""
        return [line for line in self.fix.splitlines() if re.match(r"[A-Z]+\b.*;(  -- |$)", line)]


@dataclass(frozen=True)
class Paragraph:
    """Problems that are shown together: of one reason, or one problem alone."""

    problems: tuple[Problem, ...]

    @property
    def first(self) -> Problem:
        """A problem whose marks (`fatal`, `creatable`, `left_out`) all of them have."""
        return self.problems[0]

    @property
    def what(self) -> str:
        many = len(self.problems)
        return self.first.what if many == 1 else f"{many} tables: {self.first.reason}"

    def tables(self, most: int | None = MOST_NAMES) -> str:
        """The names of the tables, if there are several; all of them without `most`."""
        names = [str(p.table) for p in self.problems]
        return shortened(names, most) if len(names) > 1 else ""

    def fixes(self, most: int | None = MOST_FIXES) -> list[str]:
        """The lines of all fixes, each once."""
        lines = list(dict.fromkeys(line for p in self.problems for line in p.fix.splitlines()))
        if most is None:
            return lines
        lines = [line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]} ...  -- {MORE}" for line in lines]
        if len(self.problems) == 1 or len(lines) <= most + 1:
            return lines
        return [*lines[:most], f"-- and {len(lines) - most} more lines: {MORE}"]

    def __str__(self) -> str:
        tables = self.tables()
        named = f"\n  {tables}" if tables else ""
        return f"- {self.what}{named}\n  fix: " + "\n       ".join(self.fixes())


def paragraphs(problems: Iterable[Problem]) -> list[Paragraph]:
    """Put the problems together that have one reason, in the order of the first of each."""
    found: dict[object, list[Problem]] = {}
    for p in dict.fromkeys(problems):
        reason = (p.reason, p.fatal, p.creatable, p.left_out, p.lost) if p.table is not None and p.reason else p
        found.setdefault(reason, []).append(p)
    return [Paragraph(tuple(together)) for together in found.values()]


def left_out(unfit: Mapping[TableName, Sequence[Problem]]) -> tuple[Problem, ...]:
    """The problems of tables that cannot be followed, marked: the tables are left out because of them."""
    return tuple(replace(p, fatal=False, left_out=True) for problems in unfit.values() for p in problems)


def for_later(problems: Iterable[Problem]) -> list[str]:
    """The lines of an administrator's script about tables that are left out: comments, because nobody has to run it."""
    out = [p for p in problems if p.left_out]
    return [f"-- {line}" for p in out for line in (f"left out: {p.what}", *p.fix.splitlines())]


def why(problems: Iterable[Problem]) -> str:
    """Why a table is left out, with the fixes."""
    return "; ".join(f"{p.what} (fix: {p.fix})" for p in problems)


def refuse(problems: Sequence[Problem]) -> None:
    """Raise PreconditionFailed (or PositionLost) with every fatal problem, if there is any."""
    if fatal := [p for p in problems if p.fatal]:
        raise refusal(fatal)


def refusal(fatal: Sequence[Problem]) -> SourceError:
    """The error that names these problems."""
    kind = PositionLost if any(p.lost for p in fatal) else PreconditionFailed
    many = "1 problem" if len(fatal) == 1 else f"{len(fatal)} problems"
    return kind(f"the server is not ready for capture, {many}:\n" + "\n".join(map(str, paragraphs(fatal))))
