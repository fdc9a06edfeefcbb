"""The report: tables on the terminal, and in docs/benchmarks.md a block for each source and part.

A block stands between two marks, `<!-- figures: postgres dump -->` and `<!-- end: postgres dump -->`. It has the day
and the machine of its run. A run replaces the blocks that it has measured and leaves all others as they are.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import psutil
import pyspark

from bench.figures import Figure, Target

DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def machine(servers: Sequence[str]) -> str:
    gigabytes = psutil.virtual_memory().total / (1 << 30)
    return (
        f"{date.today()}: {os.cpu_count()} cores, {gigabytes:.0f} GiB, {platform.system()}; "
        f"{', '.join(servers)}, Spark {pyspark.__version__}, Python {platform.python_version()}"
    )


def target_table(targets: Sequence[Target]) -> list[str]:
    rows = [(t.what, t.text, t.wanted, {True: "yes", False: "no", None: ""}[t.met]) for t in targets]
    return _table(("", "measured", "target", "met"), rows)


def figure_table(figures: Sequence[Figure]) -> list[str]:
    rows = [(f.part, f.what, f.text, f.spread, f.cpu_text, f.note) for f in figures]
    return _table(("", "", "median", "rounds", "CPU s per million", ""), rows)


def block(about: str, figures: Sequence[Figure], targets: Sequence[Target]) -> str:
    """The text of a block: the machine, the targets, the figures."""
    wanted = ["", *target_table(targets)] if targets else []
    return "\n".join([about, *wanted, "", *figure_table(figures)])


def replaced(text: str, name: str, body: str) -> str:
    """The document with another body in one block. Raises ValueError if it does not have the block exactly once."""
    begin, end = f"<!-- figures: {name} -->\n", f"<!-- end: {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"the document has no block {name!r}, or more than one")
    head, rest = text.split(begin)
    return f"{head}{begin}{body}\n{end}{rest.split(end)[1]}"


def write(name: str, body: str, document: Path = DOCUMENT) -> None:
    """Put a part's block into the document, in place of the last one."""
    document.write_text(replaced(document.read_text(), name, body))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    used = [i for i in range(len(head)) if any(row[i] for row in rows)]
    head, rows = [head[i] for i in used], [[row[i] for i in used] for row in rows]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
    top = "| " + " | ".join(cell.ljust(w) for cell, w in zip(head, widths, strict=True)) + " |"
    return [top, "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines]
