"""What the source's own writers lose: pgbench alone, with us following its tables, with us dumping as well."""

from __future__ import annotations

import re
import subprocess

from bench.figures import Figure, Target, ratio
from bench.ours import Ours
from bench.postgres import Postgres

FOLLOWED = "public.pgbench_accounts, public.pgbench_branches, public.pgbench_tellers"
CLIENTS = 4


def measure(
    database: Postgres, ours: Ours, scale: int, rows: int, seconds: int, rounds: int
) -> tuple[list[Figure], list[Target]]:
    """`scale` is pgbench's; `rows` is the size of one more table, so that the dump lasts as long as the writers."""
    program = str(database.server.bin / "pgbench")
    subprocess.run([program, "-i", "-q", "-s", str(scale), database.url], check=True, capture_output=True)
    database.fill("big", rows)
    database.run("checkpoint")
    alone: list[float] = []
    following: list[float] = []
    calmly: list[float] = []
    dumping: list[float] = []
    dumped: list[int] = []
    _write(database, program, 2)
    for _ in range(rounds):
        alone.append(_write(database, program, seconds))
        with ours.stream(tables=FOLLOWED, dump="never") as stream, stream.following():
            following.append(_write(database, program, seconds))
        with ours.stream(tables=FOLLOWED, dump="never") as stream, stream.following(every="1 second"):
            calmly.append(_write(database, program, seconds))
        with ours.stream(tables=f"{FOLLOWED}, public.big") as stream, stream.following() as query:
            dumping.append(_write(database, program, seconds))
            dumped.append(sum(p["numInputRows"] for p in query.recentProgress))
    figures = [
        Figure("writers", f"pgbench -c {CLIENTS} alone", tuple(alone), "tps"),
        Figure("writers", "with dblog following", tuple(following), "tps"),
        Figure("writers", "with dblog following, a batch every second", tuple(calmly), "tps"),
        Figure("writers", "with dblog following and dumping", tuple(dumping), "tps", f"{min(dumped):,} rows delivered"),
    ]
    targets = [
        ratio("writers' throughput with dblog following", figures[1], figures[0], None),
        ratio("the same with a batch every second", figures[2], figures[0], None),
        ratio("writers' throughput with dblog dumping as well", figures[3], figures[0], None),
    ]
    return figures, targets


def _write(database: Postgres, program: str, seconds: int) -> float:
    command = [program, "-n", "-c", str(CLIENTS), "-j", "1", "-T", str(seconds), database.url]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"tps = ([\d.]+)", said)
    if found is None:
        raise RuntimeError(f"pgbench did not say its throughput: {said!r}")
    return float(found[1])
