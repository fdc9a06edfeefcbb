"""Log catch-up: the same changes wait behind three slots; who delivers them how fast?"""

from __future__ import annotations

from bench import debezium, limits
from bench.database import Database
from bench.figures import Figure, Target, ratio, rotated
from bench.ours import Drain, Ours, middle

SLOT_LIMIT, SLOT_DEBEZIUM = "bench_limit", "bench_debezium"


def measure(
    database: Database, ours: Ours, changes: int, rounds: int, *, against_debezium: bool
) -> tuple[list[Figure], list[Target]]:
    limit: list[float] = []
    drains: list[Drain] = []
    other: list[float] = []
    slots = [SLOT_LIMIT, SLOT_DEBEZIUM] if against_debezium else [SLOT_LIMIT]
    for slot in slots:
        database.create_slot(slot)
    try:
        with ours.stream(table="public.wide", dump="never") as stream:
            stream.drain()  # from here on it has a slot and a checkpoint
            for number in range(rounds):
                count = database.write_changes(changes)
                upto = database.position()
                count += database.write_changes(1)  # whoever reads this has read past the position

                def receive(upto: str = upto, count: int = count) -> None:
                    limit.append(count / limits.receive_log(database, SLOT_LIMIT, upto))

                def drain(count: int = count) -> None:
                    ours.warm()
                    drains.append(stream.drain())
                    if drains[-1].rows != count:
                        raise RuntimeError(f"{count} changes were written, {drains[-1].rows} came")

                def compare(count: int = count) -> None:
                    other.append(debezium.drain_log(database, SLOT_DEBEZIUM, count).rate)

                for side in rotated([receive, drain, *([compare] if against_debezium else [])], number):
                    side()
    finally:
        for slot in slots:
            database.drop_slot(slot)
    typical = middle(drains)
    mine = Figure("catch-up", "dblog, typed, into noop", tuple(d.rate for d in drains), "changes/s", _phases(typical))
    server = Figure("catch-up", "pg_recvlogical to /dev/null", tuple(limit), "changes/s")
    whole = Figure(
        "catch-up", "dblog with the start of the query", tuple(d.rows / d.total_seconds for d in drains), "changes/s"
    )
    figures, targets = [mine, whole, server], [ratio("catch-up, against pg_recvlogical", mine, server, 0.8)]
    if other:
        figures.append(Figure("catch-up", "Debezium, without its first quarter", tuple(other), "changes/s"))
        targets.append(ratio("catch-up, against Debezium", mine, figures[-1], 2.0))
    return figures, targets


def _phases(drain: Drain) -> str:
    shown = ("latestOffset", "addBatch", "walCommit", "commitOffsets")
    phases = ", ".join(f"{name} {drain.phases.get(name, 0):.2f} s" for name in shown)
    return f"{drain.phases['batches']:.0f} batches: {phases}"
