"""Log catch-up: the same changes wait for three readers; who delivers them how fast?"""

from __future__ import annotations

from bench import debezium
from bench.database import Database, Stretch
from bench.figures import Figure, Target, ratio, rotated
from bench.machine import rest
from bench.ours import Drain, Ours, middle


def measure(
    database: Database, ours: Ours, changes: int, rounds: int, *, against_debezium: bool
) -> tuple[list[Figure], list[Target]]:
    limit: list[float] = []
    drains: list[Drain] = []
    other: dict[str, list[float]] = {form: [] for form in debezium.FORMATS}
    with database.readers(), ours.stream(table=f"{database.schema}.wide", dump="never") as stream:
        stream.drain()  # from here on it has a checkpoint
        database.write_stretch(changes)
        stream.drain()  # and Java has compiled the code, as in a stream that has run for a minute
        for number in range(rounds):
            stretch = database.write_stretch(changes)

            def receive(stretch: Stretch = stretch) -> None:
                rest()
                limit.append(stretch.changes / database.receive_log(stretch))

            def drain(stretch: Stretch = stretch) -> None:
                ours.warm()
                rest()
                drains.append(stream.drain())
                if drains[-1].rows != stretch.changes:
                    raise RuntimeError(f"{stretch.changes} changes were written, {drains[-1].rows} came")

            def compare(stretch: Stretch = stretch) -> None:
                for form, rates in other.items():
                    rest()
                    rates.append(debezium.drain_log(database, stretch, form).rate)

            for side in rotated([receive, drain, *([compare] if against_debezium else [])], number):
                side()
    typical = middle(drains)
    mine = Figure("catch-up", "dblog, typed, into noop", tuple(d.rate for d in drains), "changes/s", _phases(typical))
    server = Figure("catch-up", database.receiver, tuple(limit), "changes/s")
    whole = Figure(
        "catch-up", "dblog with the start of the query", tuple(d.rows / d.total_seconds for d in drains), "changes/s"
    )
    against = f"catch-up, against {database.receiver.split(' to ')[0]}"
    figures, targets = [mine, whole, server], [ratio(against, mine, server, database.receiver_share)]
    for form, rates in other.items() if against_debezium else ():
        figures.append(Figure("catch-up", f"Debezium ({form}), without its first quarter", tuple(rates), "changes/s"))
        bound = database.debezium_share if form == debezium.COUNTED else None
        targets.append(ratio(f"catch-up, against Debezium ({form})", mine, figures[-1], bound))
    return figures, targets


def _phases(drain: Drain) -> str:
    shown = ("latestOffset", "addBatch", "walCommit", "commitOffsets")
    phases = ", ".join(f"{name} {drain.phases.get(name, 0):.2f} s" for name in shown)
    return f"{drain.phases['batches']:.0f} batches: {phases}"
