"""The command: which parts, how large, how often; prints as it goes and writes docs/benchmarks.md after all parts."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from bench import catchup, debezium, dump, lakes, latency, memory, report, writers
from bench.database import Database
from bench.figures import Figure, Target
from bench.mysql import mysql
from bench.ours import Ours
from bench.postgres import Postgres, postgres
from dblog.testing.mysql_server import find_mariadb, find_mysql

SOURCES = ("postgres", "mariadb", "mysql")
PARTS = ("catchup", "dump", "latency", "writers", "memory", "lakes")
ANYWHERE = ("catchup", "dump")
"""Those that are measured on every source; the others on PostgreSQL."""
Measured = tuple[list[Figure], list[Target]]


def main() -> None:
    arguments = _arguments()
    parts = _chosen("parts", arguments.only, PARTS)
    sources = _chosen("sources", None if arguments.source == "all" else arguments.source, SOURCES)
    against_debezium = not arguments.no_debezium and debezium.available()
    if not against_debezium:
        print("without Debezium" + ("" if arguments.no_debezium else ": pip install 'dblog[bench]' to compare with it"))
    if os.getloadavg()[0] > 0.5:
        print(f"the machine is not idle (load {os.getloadavg()[0]:.1f}): figures will be low and uneven")
    servers: list[str] = []
    figures: list[Figure] = []
    targets: list[Target] = []
    for name in sources:
        server = _server(name)
        if server is None:
            print(f"without {name}: it is not installed")
            continue
        with server as source:
            servers.append(f"{source.family} {source.version}")
            print(report.machine(servers[-1:]))
            mine = [part for part in parts if part in ANYWHERE or name == "postgres"]
            more = _measured(source, mine, arguments, against_debezium=against_debezium)
            figures += more[0]
            targets += more[1]
    print("\n" + "\n".join(report.target_table(targets)))
    if set(parts) == set(PARTS) and len(servers) == len(SOURCES) and not arguments.dry:
        report.write(report.machine(servers), figures, targets)


def _server(name: str) -> AbstractContextManager[Database] | None:
    """None where it is not installed."""
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


def _measured(
    source: Database, parts: Sequence[str], arguments: argparse.Namespace, *, against_debezium: bool
) -> Measured:
    figures: list[Figure] = []
    targets: list[Target] = []
    ours = Ours(source)
    try:
        for part in parts:
            begin = time.monotonic()
            compared = against_debezium and source.has_debezium
            found = _part(part, source, ours, arguments.scale, arguments.rounds, compared)()
            more = [replace(figure, part=f"{source.family}, {figure.part}") for figure in found[0]]
            figures += more
            targets += [replace(target, what=f"{source.family}: {target.what}") for target in found[1]]
            print(f"\n{source.family}, {part}: {time.monotonic() - begin:.0f} s")
            print("\n".join(report.figure_table(more)), flush=True)
    finally:
        ours.close()
    return figures, targets


def _part(
    name: str, source: Database, ours: Ours, scale: float, rounds: int, against_debezium: bool
) -> Callable[[], Measured]:
    def size(count: int) -> int:
        return max(1, int(count * scale))

    def postgres_only() -> Postgres:
        assert isinstance(source, Postgres)
        return source

    return {
        "catchup": lambda: catchup.measure(
            source, ours, size(source.catchup_changes), rounds, against_debezium=against_debezium
        ),
        "dump": lambda: dump.measure(source, ours, size(3_000_000), rounds, against_debezium=against_debezium),
        "latency": lambda: latency.measure(source, ours, size(2_000_000), max(3.0, 15 * scale), min(rounds, 2)),
        "writers": lambda: writers.measure(
            postgres_only(), ours, size(10), size(2_000_000), max(3, int(10 * scale)), min(rounds, 2)
        ),
        "memory": lambda: memory.measure(source, ours, size(1_000_000)),
        "lakes": lambda: lakes.measure(postgres_only(), ours, size(4_000_000), size(1_500_000), min(rounds, 2)),
    }[name]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="size of everything; 1 takes about half an hour")
    parser.add_argument("--rounds", type=int, default=3, help="how often each comparison is made")
    parser.add_argument("--only", help="parts, separated by commas: " + ",".join(PARTS))
    parser.add_argument("--source", default="all", help="all, or some of, separated by commas: " + ",".join(SOURCES))
    parser.add_argument("--no-debezium", action="store_true", help="do not compare with Debezium")
    parser.add_argument("--dry", action="store_true", help="do not write docs/benchmarks.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
