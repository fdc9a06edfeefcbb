"""Two instances of a pipeline, real processes: one leads, and the other takes over when it ends, dies, hangs or is cut
off. In the end source and target are the same, and no key has gone back to an older version."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.ha.instance import AUDIT, LEASE, Shop, Writer
from tests.proxy import Proxy

pytestmark = [
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.parametrize("postgres", ["pg18"], indirect=True),
]


@pytest.fixture
def target(database: Database) -> Iterator[Database]:
    made = Database(database.server, f"{database.name}_target")
    made.create()
    yield made
    made.drop()


def test_a_standby_takes_over_from_a_leader_that_dies_hangs_or_stops(
    database: Database, target: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute("create table t (id int primary key, n bigint)")
    database.execute("insert into t select i, 0 from generate_series(1, 500) i")
    shop = Shop(database, target, tmp_path, state=target.url)
    times: dict[str, float] = {}
    try:
        with Writer(database, 500):
            first = shop.start()
            assert first.lead() == 1
            shop.wait_batch(1)
            target.execute(AUDIT)
            second = shop.start()
            second.stand_by()
            shop.wait_batch(1)
            # 1. killed: what the program has started ends by itself
            began = time.time()
            first.send(signal.SIGKILL)
            assert second.lead() == 2
            times["killed"] = shop.wait_batch(2) - began
            # 2. stopped, with all its processes, and woken up: it ends, and has not written a row
            third = shop.start()
            third.stand_by()
            second.send_all(signal.SIGSTOP)
            epoch = third.lead()
            assert epoch == 3
            shop.wait_batch(epoch)
            second.send_all(signal.SIGCONT)
            assert second.wait() == 1
            assert "the leader no longer" in second.said
            shop.wait_batch(epoch)
            # 3. stopped in order: it hands over at once
            fourth = shop.start()
            fourth.stand_by()
            began = time.time()
            third.send(signal.SIGTERM)
            assert fourth.lead() == 4
            times["led after a clean stop"] = time.time() - began
            times["stopped"] = shop.wait_batch(4) - began
            assert third.wait() == 0
        shop.wait_converged()
        shop.check_audit()
        fourth.send(signal.SIGTERM)
        assert fourth.wait() == 0
    finally:
        shop.end()
    with capsys.disabled():
        print(f" lease {LEASE} s, first batch after: {', '.join(f'{k} {v:.1f} s' for k, v in times.items())}")


def test_a_dump_goes_on_after_a_kill_and_a_leader_that_is_cut_off_from_the_store_ends(
    database: Database, target: Database, tmp_path: Path
) -> None:
    database.execute("create table t (id int primary key, n bigint)")
    database.execute("insert into t select i, 0 from generate_series(1, 20000) i")
    with Proxy(database.server) as proxy:
        more = "[throttle]\nrows_per_second = 2000\nchunk_rows = 500\n"
        shop = Shop(database, target, tmp_path, state=target.url, more=more)
        try:
            with Writer(database, 500):
                # 1. killed while it dumps
                first = shop.start()
                assert first.lead() == 1
                copied = "select count(*) from public.t"
                shop.wait(lambda: shop.batch()[1] >= 2, "the dump has begun")
                second = shop.start(state=proxy.through(target.url))
                second.stand_by()
                assert target.execute(copied)[0][0] < 20000, "the dump has ended too early for this test"
                first.send_all(signal.SIGKILL)
                assert second.lead() == 2
                shop.wait_batch(2)
                target.execute(AUDIT)
                # 2. cut off from the state store
                third = shop.start()
                third.stand_by()
                proxy.pause()
                assert second.wait() == 1
                assert "the lease with epoch 2 is over" in second.said
                assert third.lead() == 3
                shop.wait_batch(3)
            shop.wait_converged()
            shop.check_audit()
        finally:
            shop.end()
