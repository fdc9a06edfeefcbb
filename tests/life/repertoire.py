"""Everything that can happen in a life: a line for each kind of step, and what may come of it.

A step is *followed* when the stream goes on and every event fits the ledger. Where the product may stop instead, the
line names the errors with which it may: any other error, and any silence, is a failure. `on=False` takes a step out of
the lives of `make test` and `make chaos`; `--also NAME` takes it in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.life import definitions, dumps, failovers, faults
from tests.life.life import Life
from tests.life.writers import Dice

POSTGRES = ("pg18", "pg15")
MARIADB = ("mariadb", "mariadb11")
MYSQL = ("mysql",)
BINLOG = (*MARIADB, *MYSQL)
EVERY = (*POSTGRES, *BINLOG)

LOST = ("PositionLost",)
REFUSED = ("PreconditionFailed", "PositionLost")


@dataclass(frozen=True)
class Step:
    """One kind of step. `weight`: how often it comes. `stops`: the errors that may end the stream in place of
    following."""

    act: Callable[[Life, Dice], None]
    weight: int
    servers: tuple[str, ...] = EVERY
    stops: tuple[str, ...] = ()
    on: bool = True

    @property
    def name(self) -> str:
        return self.act.__name__.replace("_", " ")


REPERTOIRE = (
    # batches and transactions
    Step(faults.batches, 40),
    Step(faults.transactions, 30),
    Step(faults.settle, 0),
    # processes
    Step(faults.kill_while_planning, 8),
    Step(faults.kill_before_the_batch_runs, 6),
    Step(faults.kill_while_the_batch_runs, 8),
    Step(faults.kill_before_the_batch_is_committed, 12),
    Step(faults.kill_between_batches, 4),
    Step(faults.stop_in_order, 3),
    Step(faults.lose_the_spool, 6),
    Step(faults.freeze_the_stream, 3),
    # networks and servers
    Step(faults.cut_connections, 8),
    Step(faults.pause_the_network, 3),
    Step(faults.refuse_connections, 3),
    Step(faults.end_all_sessions, 4),
    Step(faults.crash_the_server, 2),
    Step(faults.freeze_the_server, 2),
    Step(faults.stick_commits, 3),
    # failovers
    Step(failovers.fail_over, 1, BINLOG),
    Step(failovers.fail_over_with_a_loss, 1, BINLOG, LOST),
    Step(failovers.fail_over_with_errant_transactions, 1, BINLOG, LOST),
    Step(failovers.fail_over_with_an_errant_domain, 1, MARIADB, LOST),
    Step(failovers.use_several_domains, 1, MARIADB),
    # dumps
    Step(dumps.dump_all_tables, 4),
    Step(dumps.dump_tables, 6),
    Step(dumps.dump_keys, 6),
    Step(dumps.dump_rows_under_a_condition, 6),
    Step(dumps.pause_resume_or_cancel_a_dump, 10),
    # definitions that the log shows
    Step(definitions.add_a_column, 3),
    Step(definitions.drop_a_column, 3),
    Step(definitions.rename_a_column, 3),
    Step(definitions.change_a_type, 3),
    Step(definitions.truncate, 3, POSTGRES),
    Step(definitions.truncate, 3, BINLOG),
    Step(definitions.change_the_replica_identity, 3, POSTGRES),
    # definitions that give a table other rows
    Step(definitions.drop_and_create_again, 2, POSTGRES, LOST),
    Step(definitions.drop_and_create_again, 2, BINLOG),
    # one that is away for more than two seconds stops the stream
    Step(definitions.rename_there_and_back, 2, POSTGRES, REFUSED),
    Step(definitions.rename_there_and_back, 2, BINLOG),
    Step(definitions.set_schema_there_and_back, 2, POSTGRES, REFUSED),
    Step(definitions.set_schema_there_and_back, 2, BINLOG),
    Step(definitions.rename_another_table_in, 2, POSTGRES, LOST),
    Step(definitions.rename_another_table_in, 2, BINLOG),
    Step(definitions.swap_by_the_names_of_a_tool, 2, BINLOG),
    # a detached partition is a table that the patterns name: if it was followed, attached it stops the stream
    Step(definitions.detach_and_attach_a_partition, 2, POSTGRES, REFUSED),
    Step(definitions.truncate_a_partition, 2, POSTGRES, LOST),
    Step(definitions.truncate_a_partition, 2, BINLOG),
    Step(definitions.create_a_table_and_restart, 1),
    Step(definitions.create_a_table, 1),
    Step(definitions.drop_a_table_for_good, 1),
    # definitions that break what capture needs
    Step(definitions.take_a_table_out_of_the_publication, 1, POSTGRES, LOST),
    Step(definitions.publish_only_some_columns, 1, POSTGRES, REFUSED),
    Step(definitions.publish_only_some_rows, 1, POSTGRES, REFUSED),
    Step(definitions.inherit, 1, POSTGRES, REFUSED),
    Step(definitions.defer_a_key, 1, POSTGRES, REFUSED),
    Step(definitions.delete_by_cascade, 1, MYSQL),
    Step(definitions.delete_by_cascade, 1, MARIADB, REFUSED),
    Step(definitions.version_by_the_system, 1, MARIADB, REFUSED),
    Step(definitions.change_the_engine, 1, BINLOG, REFUSED),
)


def named(name: str, server: str) -> Step:
    return next(s for s in REPERTOIRE if s.name == name and server in s.servers)


def planned(server: str, seed: int, only: Iterable[str] = (), also: Iterable[str] = ()) -> Iterator[tuple[Step, int]]:
    """The steps of a life, without end, each with the seed of its own choices. `only` these kinds, or those that are
    on and `also` these; `only` and `also` come more often than their weight says."""
    dice = Dice(f"steps {seed}")
    only, also = set(only), set(also)
    steps = [s for s in REPERTOIRE if server in s.servers and (s.name in only if only else s.on or s.name in also)]
    weights = [max(s.weight, 10) if s.weight and s.name in only | also else s.weight for s in steps]
    while True:
        for _ in range(dice.randint(8, 16)):
            yield dice.choices(steps, weights)[0], dice.randrange(1 << 30)
        yield named("settle", server), 0
