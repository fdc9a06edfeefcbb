"""python -m tests.life --server pg18 --seed 7 --minutes 5"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tests.conftest import SETTINGS, Database, QuickPostgres
from tests.life.life import SERVER_NAMES
from tests.life.repertoire import REPERTOIRE
from tests.life.run import Target, run
from tests.sinks.sql_targets import fresh_name
from tests.spark.home import local_session, quick_spark


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.life", description="Random lives of a stream.")
    parser.add_argument("--server", choices=SERVER_NAMES, action="append", help="default: every server, in turn")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first life; the next has the next")
    parser.add_argument("--minutes", type=float, help="go on with new lives for this long; default: one life")
    parser.add_argument("--steps", type=int, default=120, help="the steps of a life")
    parser.add_argument("--seconds", type=float, default=600, help="end a life after this time, whatever its steps")
    parser.add_argument(
        "--only", action="append", default=[], help="only these kinds of steps (by name), also those that are off"
    )
    parser.add_argument("--also", action="append", default=[], help="also these kinds of steps, which are off")
    parser.add_argument("--sql", action="store_true", help="replay each life into the sink sql, and compare its tables")
    parser.add_argument("--list", action="store_true", help="show the kinds of steps")
    given = parser.parse_args()
    if given.list:
        for step in REPERTOIRE:
            stops = f", or stops with {' or '.join(step.stops)}" if step.stops else ""
            print(f"{step.name:40} {'on ' if step.on else 'off'} {','.join(step.servers)}: followed{stops}")
        return 0
    known = {step.name for step in REPERTOIRE}
    if unknown := {*given.only, *given.also} - known:
        parser.error(f"no step is called {sorted(unknown)}; --list shows all")
    with sql_targets() if given.sql else nullcontext(lambda: None) as new_target:
        until, seed = time.monotonic() + 60 * (given.minutes or 0), given.seed
        failed = 0
        while True:
            for server in given.server or [name for name in ("pg18", "mariadb", "mysql") if name in SERVER_NAMES]:
                failed += not run(
                    server,
                    seed,
                    steps=given.steps,
                    seconds=given.seconds,
                    only=given.only,
                    also=given.also,
                    target=new_target(),
                )
            seed += 1
            if failed or time.monotonic() > until:
                return 1 if failed else 0


@contextmanager
def sql_targets() -> Iterator[Callable[[], Target]]:
    """Makes targets: new databases of one PostgreSQL server, and one Spark."""
    os.environ.update(quick_spark())
    server = QuickPostgres("wheel", settings=SETTINGS)
    try:
        server.start()
        with tempfile.TemporaryDirectory() as folder, contextmanager(local_session)(Path(folder), {}) as spark:

            def new() -> Target:
                made = Database(server, fresh_name())
                made.create()
                return spark, made

            yield new
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
