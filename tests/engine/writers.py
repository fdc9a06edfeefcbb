"""Concurrent writers on an audited table `t`, in processes of their own: pgbench with a mix of all operations."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import Database
from tests.history import AUDIT, audited

MOVE = """
create function move(a int, b int) returns void language plpgsql as $$
begin
  update t set id = b where id = a;
exception when unique_violation then null;
end $$;
"""
SCRIPTS = {
    "update t set note = md5(random()::text) where id = :a": 70,
    "delete from t where id = :a": 10,
    "insert into t values (:a, 0, 'new') on conflict do nothing": 15,
    "select move(:a, :b)": 5,
}


def create_hot(database: Database, rows: int) -> None:
    database.execute(
        f"{AUDIT} {MOVE} create table t (id int primary key, version bigint, note text); {audited('t')}"
        f"insert into t select i, 0, 'first' from generate_series(1, {rows}) i"
    )


@contextmanager
def writers(database: Database, clients: int, rows: int, *, rate: int = 1000) -> Iterator[None]:
    """So many sessions that write at `rate` transactions a second together, until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        command: list[str | Path] = [database.server.bin / "pgbench", "-n", "-c", str(clients), "-T", "600"]
        for number, (statement, weight) in enumerate(SCRIPTS.items()):
            script = Path(folder, f"{number}.sql")
            script.write_text(f"\\set a random(1, {rows})\n\\set b random(1, {rows})\n{statement};\n")
            command += ["-f", f"{script}@{weight}"]
        command += ["-R", str(rate), database.url]
        said = Path(folder, "said")
        with said.open("w") as output:
            running = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield
            assert running.poll() is None, f"the writers stopped: {said.read_text()}"
        finally:
            running.kill()
            running.wait()
