"""Many small tables: their first dump, one transaction over all of them, and what an idle pipeline costs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.command import Pipeline, Running
from bench.figures import Figure, Measured, Target, joined
from bench.machine import rest
from bench.postgres import Postgres, number_of
from bench.replication import Target as Server
from bench.replication import target_server

COUNTS = (20, 200, 1_000, 2_000)
ROWS = 100
KINDS = ("noop", "sql")
REPEATED = 5
"""How many transactions are measured."""
AT_ONCE = 100
"""Tables that are made in one transaction."""
SETTLE_SECONDS = 8.0
"""How long a pipeline that has delivered everything is left alone before its idling is measured."""
CHANGE_BOUNDS = {("noop", 200): (1.5, 0.5), ("sql", 200): (4.0, 2.0)}
DUMP_BOUNDS = {("sql", 1_000): (45.0, 25.0)}
"""By sink and number of tables: at most so many seconds, and the aim."""
IDLE_BOUND = 2.0
"""Percent of one core."""


@dataclass(frozen=True)
class Found:
    """What one pipeline showed."""

    dumped: float
    changed: tuple[float, ...]
    offset: int
    idle: float
    nothing: float


def measure(source: Postgres, counts: Sequence[int], idle_seconds: float) -> Measured:
    parts: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="dblog-bench-") as folder, target_server() as target:
        source.fill("template", ROWS)
        for count in counts:
            _create(source, count)
            for kind in KINDS:
                parts.append(_shown(kind, count, _measured(source, target, Path(folder), kind, count, idle_seconds)))
            _drop(source, count)
    return joined(parts)


def _measured(source: Postgres, target: Server, folder: Path, kind: str, count: int, idle_seconds: float) -> Found:
    name = f"tables_{count}_{kind}"
    sink = {"type": kind, **({"url": target.database(name)} if kind == "sql" else {})}
    quick = Pipeline(source, folder, name, "public.small_*", sink, of_pipeline="every = 0")
    try:
        rest()
        begin = time.time()
        with quick.running() as command:
            dumped = command.until_dumped() - begin
            changed = tuple(_transaction(source, command, count) for _ in range(REPEATED))
        offset = quick.checkpoint.size()
        quick.rewrite()  # the same pipeline, with default settings from here on
        rest()
        with quick.running() as command:
            _transaction(source, command, count)
            time.sleep(SETTLE_SECONDS)
            idle = command.idle_share(idle_seconds)
        quick.once()  # the log's last entries are our own
        rest()
        nothing = quick.once().seconds
    finally:
        quick.forget()
    return Found(dumped, changed, offset, idle, nothing)


def _transaction(source: Postgres, command: Running, count: int) -> float:
    """Change a row of every table in one transaction. Returns the seconds from its commit until the sink has it."""
    command.until_started()
    position = source.ask("call change_all(%s, null)", count)
    committed = time.time()
    return command.until(number_of(position)) - committed


def _shown(kind: str, count: int, found: Found) -> Measured:
    part = f"tables, {count:,} of {ROWS} rows, {kind}"
    figures = [
        Figure(part, "first dump, with start-up", (found.dumped,), "s"),
        Figure(part, "one transaction over all, from commit to sink", found.changed, "s"),
        Figure(part, "an offset in the checkpoint", (float(found.offset),), "bytes"),
        Figure(part, "idle, all processes together", (found.idle,), "% of one core"),
        Figure(part, "dblog run --once with nothing to do", (found.nothing,), "s"),
    ]
    targets = [Target(f"idle pipeline of {count:,} tables, {kind}", found.idle, " %", IDLE_BOUND, least=False)]
    for what, figure, bounds in (
        ("first dump of", figures[0], DUMP_BOUNDS),
        ("one transaction over", figures[1], CHANGE_BOUNDS),
    ):
        if (kind, count) in bounds:
            bound, aim = bounds[kind, count]
            targets.append(Target(f"{what} {count:,} tables, {kind}", figure.value, " s", bound, least=False, aim=aim))
    return figures, targets


def _names(first: int, last: int) -> str:
    return f"select format('small_%s', lpad(n::text, 4, '0')) from generate_series({first}, {last}) n"


def _create(source: Postgres, count: int) -> None:
    columns = source.columns.replace("'", "''")
    for first in range(1, count + 1, AT_ONCE):
        last = min(first + AT_ONCE - 1, count)
        source.run(f"""
            do $$ declare name text; begin
                for name in {_names(first, last)} loop
                    execute format('create table %I ({columns})', name);
                    execute format('insert into %I select * from template', name);
                end loop;
            end $$""")  # fmt: skip
    source.run("analyze")
    source.run("checkpoint")
    source.run("""
        create or replace procedure change_all(count int, inout upto pg_lsn) language plpgsql as $$
        declare name text; begin
            for name in select format('small_%s', lpad(n::text, 4, '0')) from generate_series(1, count) n loop
                execute format('update %I set n = n + 1 where id = 1', name);
            end loop;
            commit;
            upto := pg_current_wal_insert_lsn();  -- the server writes entries of its own a little later
        end $$""")  # fmt: skip


def _drop(source: Postgres, count: int) -> None:
    for first in range(1, count + 1, AT_ONCE):
        last = min(first + AT_ONCE - 1, count)
        source.run(f"""
            do $$ declare name text; begin
                for name in {_names(first, last)} loop execute format('drop table %I', name); end loop;
            end $$""")  # fmt: skip
