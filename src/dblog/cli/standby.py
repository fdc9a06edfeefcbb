"""`dblog run --standby`: wait until this instance is the leader, and end it when its lease is over.

An instance whose lease is over does not become a standby again. It ends with an error, and a supervisor starts it
again: nothing of the old term can be left in a new process. At the deadline Spark's JVM is killed, not asked to stop:
no query goes on, whatever hangs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dblog.cli.log import ConsoleLog
from dblog.cli.program import FAILED
from dblog.cli.signals import Stop
from dblog.errors import ConfigError
from dblog.ha.lease_file import lost
from dblog.ha.term import Candidate, Term, electing
from dblog.pipelines.config import Config
from dblog.spark.session import kill_jvm
from dblog.state import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 0.2
"""How often a standby looks for a signal, in seconds."""
EXIT_SECONDS = 5.0
"""How long the process may take to end after its lease, in seconds. Then it ends without any clean-up."""


def check_standby(config: Config, *, once: bool) -> None:
    """Raise ConfigError if the pipeline cannot have standbys."""
    if once:
        raise ConfigError(
            "--once and a standby cannot be used together", hint="leave out --once, or --standby and [ha]"
        )
    if config.state == "off":
        raise ConfigError(
            "a standby needs a state store, which has the lease, but pipeline.state is off",
            hint='name one that all instances reach: pipeline.state = "postgresql://...", "mysql://..." or '
            '"zookeeper://..."; a file for instances on one machine',
        )


class Leading:
    """The part of a running instance in the election."""

    def __init__(self, candidate: Candidate, log: ConsoleLog) -> None:
        self._candidate = candidate
        self._log = log
        self.lost = False
        """Whether the lease has ended by its deadline."""

    def wait(self, stop: Stop) -> Term | None:
        """Wait until this instance is the leader. None if a signal comes first."""
        told: str | None = None
        while stop.number is None:
            term = self._candidate.wait(0.0)
            if term is not None:
                self._log.info(f"this instance is the leader, with epoch {term.epoch}")
                return term
            if (now := self._situation()) != told and now is not None:
                self._log.info(now)
            told = now or told
            stop.wait(LOOK_SECONDS)
        return None

    def watch(self, term: Term, spark: SparkSession, stop: Stop) -> None:
        """Have Spark killed and the main thread woken at the deadline of the lease."""

        def end() -> None:
            self.lost = True
            kill_jvm(spark)
            self._log.error(f"the lease with epoch {term.epoch} is over: this instance ends")
            stop.wake()
            guard = threading.Timer(EXIT_SECONDS, os._exit, (FAILED,))
            guard.name, guard.daemon = "dblog-leader-exit", True
            guard.start()

        term.watch(end)

    def check(self) -> None:
        """Raise LeaseLost if the lease has ended by its deadline."""
        if self.lost:
            raise lost()

    def _situation(self) -> str | None:
        """What a standby waits for; None if it is not known yet."""
        if (problem := self._candidate.problem) is not None:
            return f"standby: the state store cannot be used: {problem}"
        record = self._candidate.record
        if record.version == 0:
            return None
        who = "nobody" if record.holder is None else record.holder
        return f"standby, ready to take over: {who} leads with epoch {record.epoch}"


@contextmanager
def leading(config: Config, work: Path, log: ConsoleLog) -> Iterator[Leading]:
    """Take part in the election while the body runs."""
    # a call that hangs must not cost the lease
    open_it = partial(open_store, config.state, patience=config.lease_seconds / 4)
    with electing(open_it, config.name, seconds=config.lease_seconds, folder=work) as candidate:
        yield Leading(candidate, log)
