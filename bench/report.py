"""The report: tables on the terminal, and between two marks in docs/benchmarks.md."""

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
BEGIN, END = "<!-- figures: written by python -m bench -->", "<!-- end of figures -->"


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
    rows = [(f.part, f.what, f.text, f.spread, f.note) for f in figures]
    return _table(("", "", "median", "rounds", ""), rows)


def write(about: str, figures: Sequence[Figure], targets: Sequence[Target]) -> None:
    """Put the figures into the document, in place of the last ones."""
    text = DOCUMENT.read_text()
    head, rest = text.split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    body = [BEGIN, about, "", *target_table(targets), "", *figure_table(figures), END]
    DOCUMENT.write_text(head + "\n".join(body) + tail)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
    top = "| " + " | ".join(cell.ljust(w) for cell, w in zip(head, widths, strict=True)) + " |"
    return [top, "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines]
