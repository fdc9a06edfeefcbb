"""A PostgreSQL primary and a streaming standby of it, which can be promoted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dblog.testing.postgres_server import PostgresServer
from tests.conftest import SETTINGS, QuickPostgres
from tests.families import OnPostgres

STANDBY = {"hot_standby_feedback": "on", "sync_replication_slots": "on", "wal_receiver_status_interval": "1"}
PRIMARY = {"wal_sender_timeout": "10s"}
FOLLOWED = "select 1 from pg_replication_slots where slot_type = 'physical' and active"


class Copied(QuickPostgres):
    """A server whose data directory is a copy of another server's, which it follows by streaming replication."""

    def __init__(self, primary: PostgresServer, slot: str) -> None:
        super().__init__("wheel", settings={**SETTINGS, **PRIMARY, **STANDBY})
        self._primary, self._slot = primary, slot

    def _create(self, secret: Path) -> None:
        self.data.mkdir(parents=True)
        self.data.chmod(0o700)
        self._give(self.data)
        how = ["--write-recovery-conf", "--create-slot", f"--slot={self._slot}", "--checkpoint=fast", "--no-sync"]
        self._run([self.bin / "pg_basebackup", "-D", self.data, "-d", self._primary.url(), *how])
        self._password = secret.read_text()


class Pair:
    """A primary and a standby, with the database `shop`. After a promotion the standby is the primary, and the next
    `follow` makes a new standby."""

    def __init__(self) -> None:
        self.servers: list[PostgresServer] = [QuickPostgres("wheel", settings={**SETTINGS, **PRIMARY}).start()]
        OnPostgres(self.servers[0], "shop").create()
        self.standby: OnPostgres | None = None

    @property
    def primary(self) -> OnPostgres:
        return OnPostgres(self.servers[-1 if self.standby is None else -2], "shop")

    def follow(self) -> OnPostgres:
        """Let a new standby follow the primary."""
        primary = self.primary
        self.servers.append(Copied(primary.server, self.slot).start())
        self.standby = OnPostgres(self.servers[-1], "shop")
        wait_until(lambda: primary.execute(FOLLOWED))
        return self.standby

    @property
    def slot(self) -> str:
        """The physical slot of the standby."""
        return f"standby{len(self.servers) - (self.standby is not None)}"

    @property
    def url(self) -> str:
        """Both servers in one URL."""
        first, second = self.servers[-2:]
        login, _, rest = first.url("shop").partition("@")
        return f"{login}@127.0.0.1:{second.port},{rest}"

    def cut(self) -> None:
        """The standby gets no more of the log."""
        assert self.standby is not None
        self.standby.execute("alter system set primary_conninfo = ''", "select pg_reload_conf()")
        wait_until(lambda: not self.primary.execute(FOLLOWED))

    def caught_up(self) -> None:
        """Wait until the standby has replayed the log of the primary."""
        assert self.standby is not None
        (end,) = self.primary.execute("select pg_current_wal_flush_lsn()")[0]
        standby = self.standby
        wait_until(lambda: standby.execute(f"select pg_last_wal_replay_lsn() >= '{end}'") == [(True,)])

    def promote(self) -> OnPostgres:
        """The primary dies, and the standby takes its place."""
        assert self.standby is not None
        self.primary.server.kill()
        promoted, self.standby = self.standby, None
        promoted.execute("select pg_promote()")
        return promoted

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


def wait_until(ready: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)
