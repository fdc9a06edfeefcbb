"""A query over two streams, killed in every state that its checkpoint can have: each stream goes on where it was.

Before PySpark 4.2 a stream learns that from the order of Spark's calls alone, and that order is another one in each of
these states.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.spark.apps import App, delivered, running

pytestmark = [
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.parametrize("postgres", ["pg18"], indirect=True),
]
ROWS = 100
MIDDLE = 3
"""A batch in the middle of the dump."""


def newest(folder: Path, log: str) -> int:
    """The number of the newest entry in one of the checkpoint's logs."""
    return max((int(p.name) for p in (folder / "checkpoint" / log).glob("[0-9]*")), default=-1)


def test_a_query_of_two_streams_is_killed_in_every_state_of_its_checkpoint(database: Database, tmp_path: Path) -> None:
    for name, first in (("t", 1), ("u", 1001)):
        database.execute(f"create table {name} (id int primary key, n int)")
        database.execute(f"insert into {name} select i, 0 from generate_series({first}, {first + ROWS - 1}) i")
    options = {"url": database.url, "chunkRows": "20", "parallelism": "1"}
    also = {**options, "table": "public.u", "spool": str(tmp_path / "spool-u")}

    def source() -> dict[int, int]:
        return dict(database.execute("select id, n from t union all select id, n from u"))

    def target() -> dict[int, int]:
        return {key[0]: row["n"] for key, row in delivered(tmp_path).state().items()}

    def stalled(app: App, batch: int) -> None:
        app.go()
        app.until((tmp_path / f"stalled-{batch}").exists)
        assert (newest(tmp_path, "offsets"), newest(tmp_path, "commits")) == (batch, batch - 1)

    with ExitStack() as started:

        def life(**given: object) -> App:
            """A Spark takes seconds to start: it does so while the one before it lives."""
            one = {**options, "table": "public.t", **({"drain": "true"} if given.pop("last", False) else {})}
            more = {**also, **({"drain": "true"} if "drain" in one else {})}
            conf = {"spark.ui.enabled": "false"}
            return started.enter_context(running(tmp_path, one, also=more, held=True, conf=conf, **given))

        # 1. batch 0 is planned and not committed
        first, second = life(stall=0), life(stall=MIDDLE)
        stalled(first, 0)
        first.kill()
        # 2. a later batch is planned and not committed
        third = life()
        stalled(second, MIDDLE)
        second.kill()
        # 3. all is committed; while nobody runs, one of the two tables changes
        fourth = life(last=True)
        third.go()
        third.until(lambda: target() == source() and newest(tmp_path, "commits") == newest(tmp_path, "offsets"))
        third.kill()
        database.execute("update u set n = 1 where id <= 1003; delete from u where id = 1004")
        # 4. to the end
        fourth.go()
        fourth.wait()

    history = delivered(tmp_path)
    history.check_order()
    assert target() == source()
    assert history.count("read") == 2 * ROWS
    assert (history.count("update"), history.count("delete")) == (3, 1)
