"""Log catch-up: the same changes wait for three readers; who delivers them how fast?"""

from __future__ import annotations

from bench import debezium
from bench.cpu import metered
from bench.database import Database, Stretch
from bench.figures import Cpu, Figure, Measured, ratio, rotated
from bench.machine import rest
from bench.ours import Drain, Ours, middle


def measure(database: Database, ours: Ours, changes: int, rounds: int, *, against_debezium: bool) -> Measured:
    limit: list[float] = []
    limit_cpu: list[Cpu] = []
    drains: list[Drain] = []
    other: dict[str, list[debezium.Counted]] = {form: [] for form in debezium.FORMATS}
    with database.readers(), ours.stream(table=f"{database.schema}.wide", dump="never") as stream:
        stream.drain()  # from here on it has a checkpoint
        database.write_stretch(changes)
        stream.drain()  # and Java has compiled the code, as in a stream that has run for a minute
        for number in range(rounds):
            stretch = database.write_stretch(changes)

            def receive(stretch: Stretch = stretch) -> None:
                rest()
                with metered(source=[database.pid], waited=True) as sides:
                    limit.append(stretch.changes / database.receive_log(stretch))
                limit_cpu.append(sides.used.per_million(stretch.changes))

            def drain(stretch: Stretch = stretch) -> None:
                ours.warm()
                rest()
                drains.append(stream.drain())
                if drains[-1].rows != stretch.changes:
                    raise RuntimeError(f"{stretch.changes} changes were written, {drains[-1].rows} came")

            def compare(stretch: Stretch = stretch) -> None:
                for form, counted in other.items():
                    rest()
                    counted.append(debezium.drain_log(database, stretch, form))

            for side in rotated([receive, drain, *([compare] if against_debezium else [])], number):
                side()
    typical = middle(drains)
    rates = tuple(d.rate for d in drains)
    cpu = tuple(d.cpu.per_million(d.rows) for d in drains)
    mine = Figure("catch-up", "dblog, typed, into noop", rates, "changes/s", phases(typical), cpu)
    server = Figure("catch-up", database.receiver, tuple(limit), "changes/s", cpu=tuple(limit_cpu))
    whole = Figure(
        "catch-up", "dblog with the start of the query", tuple(d.rows / d.total_seconds for d in drains), "changes/s"
    )
    against = f"catch-up, against {database.receiver.split(' to ')[0]}"
    figures, targets = [mine, whole, server], [ratio(against, mine, server, database.receiver_bound)]
    for form, counted in other.items() if against_debezium else ():
        what = f"Debezium ({form}), without its first quarter"
        figures.append(debezium.figure("catch-up", what, counted, "changes/s"))
        bound = database.debezium_bound if form == debezium.COUNTED else None
        targets.append(ratio(f"catch-up, against Debezium ({form})", mine, figures[-1], bound))
    return figures, targets


def phases(drain: Drain) -> str:
    shown = ("latestOffset", "addBatch", "walCommit", "commitOffsets")
    phases = ", ".join(f"{name} {drain.phases.get(name, 0):.2f} s" for name in shown)
    return f"{drain.phases['batches']:.0f} batches: {phases}"
