"""Full-state dump of a table, while nobody writes."""

from __future__ import annotations

from bench import debezium
from bench.catchup import phases
from bench.cpu import metered
from bench.database import Database
from bench.figures import Cpu, Figure, Measured, ratio, rotated
from bench.machine import rest
from bench.ours import Drain, Ours, middle

DEBEZIUM_SHARE = 2 / 15
"""Debezium's snapshot goes through a table in key order at an even pace: this much of it tells its speed."""


def measure(database: Database, ours: Ours, rows: int, rounds: int, *, against_debezium: bool) -> Measured:
    limit: list[float] = []
    limit_cpu: list[Cpu] = []
    drains: list[Drain] = []
    other: dict[str, list[debezium.Counted]] = {form: [] for form in debezium.FORMATS}
    database.fill("big", rows)

    def read() -> None:
        rest()
        with metered(source=[database.pid], waited=True) as sides:
            limit.append(rows / database.read_out("big"))
        limit_cpu.append(sides.used.per_million(rows))

    def drain() -> None:
        rest()
        with ours.stream(table=f"{database.schema}.big") as stream:
            drains.append(stream.drain())
        if drains[-1].rows != rows:
            raise RuntimeError(f"the table has {rows} rows, {drains[-1].rows} came")

    def compare() -> None:
        for form, counted in other.items():
            rest()
            counted.append(debezium.dump(database, "big", int(rows * DEBEZIUM_SHARE), form))

    read()  # the first read of a table also fills the cache
    drain()  # and Java has compiled the code, as in a stream that has run for a minute
    limit.clear()
    limit_cpu.clear()
    drains.clear()
    for number in range(rounds):
        for side in rotated([read, drain, *([compare] if against_debezium else [])], number):
            side()
    rates = tuple(d.rate for d in drains)
    cpu = tuple(d.cpu.per_million(d.rows) for d in drains)
    mine = Figure("dump", "dblog, typed, into noop", rates, "rows/s", phases(middle(drains)), cpu)
    server = Figure("dump", database.reader, tuple(limit), "rows/s", cpu=tuple(limit_cpu))
    whole = Figure(
        "dump", "dblog with the start of the query", tuple(d.rows / d.total_seconds for d in drains), "rows/s"
    )
    against = f"dump, against {database.reader.removesuffix(' to /dev/null')}"
    figures, targets = [mine, whole, server], [ratio(against, mine, server, database.reader_bound)]
    for form, counted in other.items() if against_debezium else ():
        what = f"Debezium ({form}) incremental snapshot, chunks of {debezium.CHUNK_ROWS}"
        figures.append(debezium.figure("dump", what, counted, "rows/s"))
        bound = database.debezium_dump_bound if form == debezium.COUNTED else None
        targets.append(ratio(f"dump, against Debezium ({form})", mine, figures[-1], bound))
    return figures, targets
