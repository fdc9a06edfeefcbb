"""What the source's own writers lose: pgbench alone, with us following its tables, and with others following them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench import debezium
from bench.cpu import Sides, metered
from bench.figures import Cpu, Figure, Measured, ratio
from bench.ours import Ours, jvm
from bench.postgres import Postgres
from bench.replication import Subscription, target_server
from bench.replication import Target as Server

TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers")
FOLLOWED = ", ".join(f"public.{table}" for table in TABLES)
CLIENTS = 4
ALONE = f"pgbench -c {CLIENTS} alone"


@dataclass
class Side:
    """Writers beside somebody, round by round."""

    rates: list[float] = field(default_factory=list)
    cpu: list[Cpu] = field(default_factory=list)
    note: str = ""


class Writers:
    """Runs pgbench, and notes its speed and what the processor was used for."""

    def __init__(self, database: Postgres, seconds: int) -> None:
        self._database, self._seconds = database, seconds
        self._program = str(database.server.bin / "pgbench")
        self.sides: dict[str, Side] = {}

    def prepare(self, scale: int) -> None:
        subprocess.run(
            [self._program, "-i", "-q", "-s", str(scale), self._database.url], check=True, capture_output=True
        )
        self._database.run("checkpoint")
        self._write(2)

    def beside(self, what: str, own: Sequence[int] = (), target: Sequence[int] = (), *, here: bool = False) -> None:
        """Write for a while. `own` are the processes of those who follow."""
        with metered(own=own, source=[self._database.pid], target=target, here=here) as sides:
            rate = self._write(self._seconds)
        side = self.sides.setdefault(what, Side())
        side.rates.append(rate)
        side.cpu.append(self._used(sides, rate))

    def _used(self, sides: Sides, rate: float) -> Cpu:
        return sides.used.per_million(round(rate * self._seconds))

    def _write(self, seconds: int) -> float:
        command = [self._program, "-n", "-c", str(CLIENTS), "-j", "1", "-T", str(seconds), self._database.url]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = re.search(r"tps = ([\d.]+)", said)
        if found is None:
            raise RuntimeError(f"pgbench did not say its throughput: {said!r}")
        return float(found[1])


def measure(
    database: Postgres, ours: Ours, scale: int, rows: int, seconds: int, rounds: int, *, against_debezium: bool
) -> Measured:
    """`scale` is pgbench's; `rows` is the size of one more table, so that the dump lasts as long as the writers."""
    writers = Writers(database, seconds)
    writers.prepare(scale)
    database.fill("big", rows)
    forms = debezium.FORMATS if against_debezium else ()
    with target_server() as target:
        for _ in range(rounds):
            writers.beside(ALONE)
            _ours(writers, ours)
            for form in forms:
                _debezium(writers, database, form)
            _subscription(writers, database, target)
    figures = [
        Figure("writers", what, tuple(side.rates), "tps", side.note, tuple(side.cpu))
        for what, side in writers.sides.items()
    ]
    return figures, [ratio(f"writers' throughput {figure.what}", figure, figures[0], None) for figure in figures[1:]]


def _ours(writers: Writers, ours: Ours) -> None:
    spark = jvm(ours.spark)
    for what, every in (("with dblog following", None), ("with dblog following, a batch every second", "1 second")):
        with ours.stream(tables=FOLLOWED, dump="never") as stream, stream.following(every=every):
            writers.beside(what, [spark], here=True)
    what = "with dblog following and dumping"
    with ours.stream(tables=f"{FOLLOWED}, public.big") as stream, stream.following() as query:
        writers.beside(what, [spark], here=True)
        delivered = sum(p["numInputRows"] for p in query.recentProgress)
        writers.sides[what].note = f"{delivered:,} rows delivered"


def _debezium(writers: Writers, database: Postgres, form: str) -> None:
    with (
        database.debezium_reads_tables(*TABLES) as properties,
        debezium.engine(database, list(TABLES), debezium.FOREVER, form, properties) as process,
    ):
        debezium.wait_until_it_reads(database, process)
        writers.beside(f"with Debezium ({form}) following", [process.pid])
        if process.poll() is not None:
            raise RuntimeError("Debezium has ended")


def _subscription(writers: Writers, database: Postgres, target: Server) -> None:
    """A subscription that applies all of it: on a server of its own, but on the same machine."""
    for table in TABLES:
        target.run(f"drop table if exists {table}")
    definitions = subprocess.run(
        [database.server.bin / "pg_dump", "-s", *(f"-tpublic.{table}" for table in TABLES), database.url],
        check=True, capture_output=True,
    ).stdout  # fmt: skip
    subprocess.run(
        [database.server.bin / "psql", "-qX", "-v", "ON_ERROR_STOP=1", target.url],
        check=True, input=definitions, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    subscription = Subscription(database, target, "bench_writers", TABLES, "")
    try:
        subscription.start(copies=True)
        writers.beside("with a subscription following", target=[target.pid])
    finally:
        subscription.drop()
