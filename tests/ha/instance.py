"""Instances of one pipeline from a PostgreSQL database into another one, in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.cli.program import PATH, PROGRAM
from tests.conftest import Database
from tests.spark.home import quick_spark

PATIENCE = 90.0
"""How long a test waits for what must happen, in seconds: the machine may be busy."""
LEASE = 3.0

AUDIT = """
create table public.audit (nr bigserial primary key, id int, n bigint, pid int, epoch bigint, at timestamptz);
create function public.note() returns trigger language plpgsql as $$ begin
  insert into public.audit (id, n, pid, epoch, at) select coalesce(new.id, old.id), new.n, pg_backend_pid(), b.epoch,
    clock_timestamp() from dblog.batches b where b.pipeline = 'shop';
  return null;
end $$;
create trigger note after insert or update or delete on public.t for each row execute function public.note();
"""
"""Records every row that a session of the sink writes: with the epoch that the ledger has at this moment."""


class Instance:
    """`dblog run --standby` with all the processes that it starts, in a process group of its own."""

    def __init__(self, folder: Path, file: Path, *more: str, **environment: str) -> None:
        folder.mkdir()
        self.err = folder / "err"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("DBLOG_", "PG"))}
        with self.err.open("w") as err:
            self.process = subprocess.Popen(
                [*PROGRAM, "run", str(file), "--standby", *more],
                stdout=subprocess.DEVNULL,
                stderr=err,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**clean, "PYTHONPATH": PATH, "PYTHONIOENCODING": "utf-8", **quick_spark(), **environment},
            )

    @property
    def said(self) -> str:
        return self.err.read_text("utf-8")

    def until(self, text: str) -> re.Match[str]:
        """Wait until the instance says this."""
        deadline = time.monotonic() + PATIENCE
        while (found := re.search(text, self.said)) is None:
            assert self.process.poll() is None, (self.process.returncode, self.said)
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)
        return found

    def lead(self) -> int:
        """Wait until it is the leader; its epoch."""
        return int(self.until(r"this instance is the leader, with epoch (\d+)")[1])

    def stand_by(self) -> None:
        self.until("standby, ready to take over")

    def send(self, number: signal.Signals) -> None:
        """To the program alone: what it has started finds out by itself."""
        self.process.send_signal(number)

    def send_all(self, number: signal.Signals) -> None:
        """To all processes of the instance."""
        os.killpg(self.process.pid, number)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self.send_all(signal.SIGKILL)
        self.process.wait()


class Shop:
    """The pipeline's file, its databases, and the instances that run it."""

    def __init__(self, source: Database, target: Database, folder: Path, *, state: str, more: str = "") -> None:
        self.source, self.target, self.folder = source, target, folder
        self.instances: list[Instance] = []
        self.file = folder / "shop.toml"
        self.file.write_text(
            f'[source]\nurl = "{source.url}"\ntables = ["public.t"]\n'
            f'[pipeline]\nevery = 0.2\nstate = {{ env = "SHOP_STATE" }}\n'
            f'[ha]\nlease_seconds = {LEASE}\n{more}\n[[sink]]\ntype = "sql"\nurl = "{target.url}"\n'
        )
        self.state = state

    def start(self, *, state: str | None = None) -> Instance:
        folder = self.folder / f"instance{len(self.instances)}"
        java = os.environ.get("JAVA_HOME", "")
        self.instances.append(Instance(folder, self.file, SHOP_STATE=state or self.state, JAVA_HOME=java))
        return self.instances[-1]

    def batch(self) -> tuple[int, int]:
        """The epoch and the last batch in the target's ledger."""
        if self.target.execute("select to_regclass('dblog.batches')") == [(None,)]:
            return 0, -1
        found = self.target.execute("select epoch, batch from dblog.batches where pipeline = 'shop'")
        return found[0] if found else (0, -1)

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not ready():
            assert time.monotonic() < deadline, (what, [i.said for i in self.instances])
            time.sleep(0.02)

    def wait_batch(self, epoch: int) -> float:
        """Wait until the leader with this epoch has committed a batch to the target. Returns when, by `time.time`."""
        before = self.batch()[1]
        self.wait(lambda: self.batch() >= (epoch, before + 1), f"a batch of epoch {epoch}")
        return time.time()

    def wait_converged(self) -> None:
        rows = "select id, n from public.t order by id"
        self.wait(lambda: self.source.execute(rows) == self.target.execute(rows), "convergence")

    def check_audit(self) -> None:
        """Check that versions of a key only grew, and that no session wrote for two epochs: one that did would be a
        leader that had been replaced."""
        newest: dict[int, int] = {}
        epochs: dict[int, int] = {}
        written = self.target.execute("select id, n, pid, epoch from public.audit order by nr")
        assert written
        for key, version, pid, epoch in written:
            if version is not None:
                assert version >= newest.get(key, 0), f"an older version of {key} after a newer one"
                newest[key] = version
            assert epochs.setdefault(pid, epoch) == epoch, f"the session {pid} of epoch {epochs[pid]} wrote in {epoch}"
        assert [e for _, _, _, e in written] == sorted(e for _, _, _, e in written)

    def end(self) -> None:
        for each in self.instances:
            each.end()


class Writer:
    """Changes rows of the source while the body runs: each change has a greater version."""

    def __init__(self, source: Database, keys: int) -> None:
        self._source = source
        self._keys = keys
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with self._source.connect(autocommit=True).cursor() as cursor:
                version = 1
                while not self._over.wait(0.01):
                    key, version = version % self._keys + 1, version + 1
                    cursor.execute(
                        "insert into t values (%s, %s) on conflict (id) do update set n = excluded.n", (key, version)
                    )
                    if version % 7 == 0:
                        cursor.execute("delete from t where id = %s", (version % 5 + 1,))
        except BaseException as error:
            self._error = error
