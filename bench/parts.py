"""The parts of the benchmark: how large each one is, and on which sources it is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from bench import catchup, dump, growth, lakes, latency, memory, sinks, tables, writers
from bench.database import Database
from bench.figures import Measured
from bench.ours import Ours
from bench.postgres import Postgres

NO_SOURCE = "none"
"""The source of parts that need no database."""
SOURCES = ("postgres", "mariadb", "mysql")


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    scale: float
    rounds: int
    against_debezium: bool

    def of(self, count: int) -> int:
        return max(1, int(count * self.scale))

    def seconds(self, full: float) -> float:
        return max(3.0, full * self.scale)

    @property
    def few_rounds(self) -> int:
        """For what takes long."""
        return min(self.rounds, 2)


class Bench:
    """A source, and our Spark session for it once a part needs one."""

    def __init__(self, database: Database | None, size: Size) -> None:
        self._database, self.size = database, size

    @property
    def database(self) -> Database:
        assert self._database is not None, "the part needs no source"
        return self._database

    @property
    def postgres(self) -> Postgres:
        assert isinstance(self.database, Postgres)
        return self.database

    @cached_property
    def ours(self) -> Ours:
        return Ours(self.database)

    @property
    def against_debezium(self) -> bool:
        return self.size.against_debezium and self.database.has_debezium

    def close(self) -> None:
        if "ours" in self.__dict__:
            self.ours.close()


@dataclass(frozen=True)
class Part:
    """One comparison. `measure` gets the bench of one of the sources."""

    sources: tuple[str, ...]
    measure: Callable[[Bench], Measured]


def _catchup(bench: Bench) -> Measured:
    changes = bench.size.of(bench.database.catchup_changes)
    return catchup.measure(
        bench.database, bench.ours, changes, bench.size.rounds, against_debezium=bench.against_debezium
    )


def _dump(bench: Bench) -> Measured:
    rows = bench.size.of(3_000_000)
    return dump.measure(bench.database, bench.ours, rows, bench.size.rounds, against_debezium=bench.against_debezium)


def _latency(bench: Bench) -> Measured:
    size = bench.size
    return latency.measure(bench.database, bench.ours, size.of(2_000_000), size.seconds(15), size.few_rounds)


def _writers(bench: Bench) -> Measured:
    size = bench.size
    return writers.measure(
        bench.postgres, bench.ours, size.of(10), size.of(2_000_000), int(size.seconds(10)), size.few_rounds,
        against_debezium=bench.against_debezium,
    )  # fmt: skip


def _memory(bench: Bench) -> Measured:
    return memory.measure(bench.database, bench.ours, bench.size.of(1_000_000))


def _lakes(bench: Bench) -> Measured:
    size = bench.size
    return lakes.measure(
        bench.postgres, bench.ours, size.of(4_000_000), size.of(1_500_000), size.few_rounds,
        against_debezium=bench.against_debezium,
    )  # fmt: skip


def _batches(bench: Bench) -> Measured:
    return lakes.measure_batches(bench.postgres, bench.ours, bench.size.of(500))


def _growth(bench: Bench) -> Measured:
    return growth.measure(bench.size.of(500))


def _sinks(bench: Bench) -> Measured:
    size = bench.size
    sizes = sinks.Sizes(size.of(4_000_000), size.of(1_500_000), size.of(10_000_000))
    return sinks.measure(
        bench.postgres, bench.ours, sizes, size.few_rounds, against_debezium=bench.against_debezium
    )  # fmt: skip


def _tables(bench: Bench) -> Measured:
    size = bench.size
    counts = tables.COUNTS if size.scale >= 1 else tables.COUNTS[:1]
    return tables.measure(bench.postgres, counts, size.seconds(30))


PARTS: Mapping[str, Part] = {
    "catchup": Part(SOURCES, _catchup),
    "dump": Part(SOURCES, _dump),
    "latency": Part(("postgres",), _latency),
    "writers": Part(("postgres",), _writers),
    "memory": Part(("postgres",), _memory),
    "lakes": Part(("postgres",), _lakes),
    "batches": Part(("postgres",), _batches),
    "sinks": Part(("postgres",), _sinks),
    "tables": Part(("postgres",), _tables),
    "growth": Part((NO_SOURCE,), _growth),
}


def block_name(source: str, part: str) -> str:
    """The name of a part's block in docs/benchmarks.md."""
    return part if source == NO_SOURCE else f"{source} {part}"


def all_blocks() -> list[str]:
    return [block_name(source, name) for name, part in PARTS.items() for source in part.sources]
