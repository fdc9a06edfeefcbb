"""The command: which parts, how large, how often; prints as it goes and writes docs/benchmarks.md after all parts."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

from bench import catchup, debezium, dump, latency, memory, report, writers
from bench.database import Database, database
from bench.figures import Figure, Target
from bench.ours import Ours

PARTS = ("catchup", "dump", "latency", "writers", "memory")
Measured = tuple[list[Figure], list[Target]]


def main() -> None:
    arguments = _arguments()
    parts = arguments.only.split(",") if arguments.only else PARTS
    unknown = set(parts) - set(PARTS)
    if unknown:
        raise SystemExit(f"unknown parts {sorted(unknown)}; there are {', '.join(PARTS)}")
    against_debezium = not arguments.no_debezium and debezium.available()
    if not against_debezium:
        print("without Debezium" + ("" if arguments.no_debezium else ": pip install 'dblog[bench]' to compare with it"))
    if os.getloadavg()[0] > 0.5:
        print(f"the machine is not idle (load {os.getloadavg()[0]:.1f}): figures will be low and uneven")
    figures: list[Figure] = []
    targets: list[Target] = []
    with database() as source:
        about = report.machine(source.server.version)
        print(about)
        ours = Ours(source)
        try:
            for part in parts:
                begin = time.monotonic()
                more = _part(part, source, ours, arguments.scale, arguments.rounds, against_debezium)()
                figures += more[0]
                targets += more[1]
                print(f"\n{part}: {time.monotonic() - begin:.0f} s")
                print("\n".join(report.figure_table(more[0])), flush=True)
        finally:
            ours.close()
    print("\n" + "\n".join(report.target_table(targets)))
    if set(parts) == set(PARTS) and not arguments.dry:
        report.write(about, figures, targets)


def _part(
    name: str, source: Database, ours: Ours, scale: float, rounds: int, against_debezium: bool
) -> Callable[[], Measured]:
    def size(count: int) -> int:
        return max(1, int(count * scale))

    return {
        "catchup": lambda: catchup.measure(source, ours, size(600_000), rounds, against_debezium=against_debezium),
        "dump": lambda: dump.measure(source, ours, size(1_000_000), rounds, against_debezium=against_debezium),
        "latency": lambda: latency.measure(source, ours, size(2_000_000), max(3.0, 15 * scale), min(rounds, 2)),
        "writers": lambda: writers.measure(
            source, ours, size(10), size(2_000_000), max(3, int(10 * scale)), min(rounds, 2)
        ),
        "memory": lambda: memory.measure(source, ours, size(1_000_000)),
    }[name]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="size of everything; 1 takes about ten minutes")
    parser.add_argument("--rounds", type=int, default=3, help="how often each comparison is made")
    parser.add_argument("--only", help="parts, separated by commas: " + ",".join(PARTS))
    parser.add_argument("--no-debezium", action="store_true", help="do not compare with Debezium")
    parser.add_argument("--dry", action="store_true", help="do not write docs/benchmarks.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
