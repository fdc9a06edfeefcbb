"""The command: which parts, how large, how often. It prints as it goes, and writes each part's tables."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from bench import debezium, report
from bench.database import Database
from bench.figures import Target
from bench.mysql import mysql
from bench.parts import NO_SOURCE, PARTS, SOURCES, Bench, Size, block_name
from bench.postgres import postgres
from dblog.testing.mysql_server import find_mariadb, find_mysql


def main() -> None:
    arguments = _arguments()
    parts = _chosen("parts", arguments.only, tuple(PARTS))
    sources = _chosen("sources", None if arguments.source == "all" else arguments.source, SOURCES)
    against_debezium = not arguments.no_debezium and debezium.available()
    if not against_debezium:
        print("without Debezium" + ("" if arguments.no_debezium else ": pip install 'dblog[bench]' to compare with it"))
    if os.getloadavg()[0] > 0.5:
        print(f"the machine is not idle (load {os.getloadavg()[0]:.1f}): figures will be low and uneven")
    size = Size(arguments.scale, arguments.rounds, against_debezium)
    written = arguments.scale >= 1 and not arguments.dry
    targets: list[Target] = []
    for source in (*sources, NO_SOURCE):
        mine = [name for name in parts if source in PARTS[name].sources]
        if mine:
            targets += _measured(source, mine, size, written=written)
    print("\n" + "\n".join(report.target_table(targets)))
    if not written:
        print("docs/benchmarks.md is as it was" + ("" if arguments.dry else f": the scale is {arguments.scale:g}"))


def _measured(source: str, parts: Sequence[str], size: Size, *, written: bool) -> list[Target]:
    """Measure some parts on one source, and write their blocks."""
    server = _server(source)
    if server is None:
        print(f"without {source}: it is not installed")
        return []
    found: list[Target] = []
    with server as database:
        about = report.machine([f"{database.family} {database.version}"] if database else [])
        print(about)
        bench = Bench(database, size)
        try:
            for name in parts:
                begin = time.monotonic()
                figures, targets = PARTS[name].measure(bench)
                print(f"\n{block_name(source, name)}: {time.monotonic() - begin:.0f} s")
                print("\n".join(report.figure_table(figures)), flush=True)
                if written:
                    report.write(block_name(source, name), report.block(about, figures, targets))
                found += [replace(target, what=f"{block_name(source, name)}: {target.what}") for target in targets]
        finally:
            bench.close()
    return found


def _server(name: str) -> AbstractContextManager[Database | None] | None:
    """A server of its own; None where it is not installed."""
    if name == NO_SOURCE:
        return nullcontext()
    if name == "postgres":
        return postgres()
    install = find_mariadb() if name == "mariadb" else find_mysql()
    return mysql(install) if install else None


def _chosen(what: str, given: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    chosen = tuple(given.split(",")) if given else known
    unknown = set(chosen) - set(known)
    if unknown:
        raise SystemExit(f"unknown {what} {sorted(unknown)}; there are {', '.join(known)}")
    return chosen


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="size of everything; below 1 nothing is written")
    parser.add_argument("--rounds", type=int, default=3, help="how often each comparison is made")
    parser.add_argument("--only", help="parts, separated by commas: " + ",".join(PARTS))
    parser.add_argument("--source", default="all", help="all, or some of, separated by commas: " + ",".join(SOURCES))
    parser.add_argument("--no-debezium", action="store_true", help="do not compare with Debezium")
    parser.add_argument("--dry", action="store_true", help="do not write docs/benchmarks.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
