"""A new slot waits for every open transaction: as long as it takes, in plain sight, and leaving nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2.extensions
import pytest

from dblog.errors import PreconditionFailed, SourceError
from tests.cli.program import dblog
from tests.engine.conftest import MakeQuery, check, on_postgres, wait_for
from tests.engine.control import Control
from tests.engine.query import Query
from tests.families import OnPostgres
from tests.proxy import Proxy

pytestmark = [pytest.mark.server, on_postgres]

OPEN_SECONDS = 3.0
SLOTS = "select slot_name from pg_replication_slots where database = current_database()"


def writer(database: OnPostgres, key: int) -> psycopg2.extensions.connection:
    """A session with an open transaction that has written."""
    session = database.connect(autocommit=False)
    session.cursor().execute(f"insert into t values ({key}, 0) /* 'not shown' */")
    return session


@contextmanager
def overlapping(database: OnPostgres) -> Iterator[Callable[[], int]]:
    """Writers, each open for about three seconds, so that one is open at any moment; how many have begun."""
    ended, begun = threading.Event(), 0

    def write() -> None:
        nonlocal begun
        while not ended.is_set():
            begun += 1
            session = writer(database, 1000 + begun)
            ended.wait(OPEN_SECONDS)
            session.commit()
            session.close()

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
        ended.wait(OPEN_SECONDS / len(threads))
    try:
        yield lambda: begun
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def started() -> Iterator[Callable[[Query], Future[bool]]]:
    """Starts a stream in another thread: the first step, which makes the slot."""
    made: list[Query] = []

    def start(stream: Query) -> Future[bool]:
        made.append(stream)
        assert stream.engine  # made here, so that two threads do not make two
        return pool.submit(stream.step)

    with ThreadPoolExecutor(4) as pool:
        yield start
        for stream in made:
            stream.engine.stop()


def waits_of(stream: Query) -> str:
    return str(Control(stream).pipeline.status().get("waiting") or "")


def creating(database: OnPostgres) -> list[tuple[Any, ...]]:
    return database.execute(
        "select pid from pg_stat_activity where query ~ 'create_logical_replication_slot' and pid <> pg_backend_pid() "
        "and state = 'active' and datname = current_database()"
    )


def test_a_slot_is_made_although_there_is_always_an_open_transaction(table: OnPostgres, query: MakeQuery) -> None:
    with overlapping(table) as begun:
        stream = query(patienceSeconds=60)
        assert stream.step()
        assert begun() >= 3
    check(stream, table)


def test_who_holds_up_the_slot_is_the_state_of_the_pipeline(
    table: OnPostgres, query: MakeQuery, started: Callable[[Query], Future[bool]]
) -> None:
    first, second = writer(table, 101), writer(table, 102)
    stream = query(patienceSeconds=60)
    starting = started(stream)
    pids = [session.info.backend_pid for session in (first, second)]
    holder = r"pid {} \(\w+, \d+ s, idle in transaction: insert into t values \(\.\.\.\)"
    both = "the replication slot waits for 2 transactions: " + ", ".join(holder.format(pid) for pid in pids)
    wait_for(lambda: re.fullmatch(both, waits_of(stream)), 30)
    control = Control(stream)
    shown = dblog("status", "--state", stream.given["state"], "--pipeline", control.pipeline.name).stdout
    assert re.search(r"^pipeline .* waiting *$", shown, re.MULTILINE)
    assert f"pid {pids[0]} (" in shown
    assert "0 tables" not in shown
    assert "running" not in shown
    first.commit()
    one = "the replication slot waits for 1 transaction: " + holder.format(pids[1])
    wait_for(lambda: re.fullmatch(one, waits_of(stream)), 30)
    assert not starting.done()
    second.commit()
    assert starting.result(30)
    wait_for(lambda: "slot" not in waits_of(stream), 30)
    check(stream, table)


def test_when_the_patience_ends_the_error_names_who_held_it_up(table: OnPostgres, query: MakeQuery) -> None:
    session = writer(table, 101)
    named = rf"could not be created in 2 s: it waits for 1 transaction: pid {session.info.backend_pid} \(\w+, \d+ s, "
    with pytest.raises(PreconditionFailed, match=named):
        query(patienceSeconds=2).step()
    wait_for(lambda: not table.execute(SLOTS))
    session.commit()
    assert not table.execute(SLOTS)


def test_a_stream_that_is_stopped_while_it_waits_leaves_no_slot(
    table: OnPostgres, query: MakeQuery, started: Callable[[Query], Future[bool]]
) -> None:
    session = writer(table, 101)
    stream = query(patienceSeconds=600)
    starting = started(stream)
    wait_for(lambda: "pid" in waits_of(stream), 30)
    stream.engine.stop()
    with pytest.raises(SourceError, match="stopped"):
        starting.result(20)
    wait_for(lambda: not table.execute(SLOTS) and not creating(table))
    session.commit()
    assert not table.execute(SLOTS)


START = """
import sys
from tests.engine.query import Query
Query(sys.argv[1], sys.argv[2], table="t", patienceSeconds="600").step()
"""


def test_a_process_that_is_killed_while_it_waits_leaves_no_slot(table: OnPostgres, tmp_path: Path) -> None:
    session = writer(table, 101)
    command = [sys.executable, "-c", START, table.url, str(tmp_path / "spool")]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        wait_for(lambda: creating(table), 60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    wait_for(lambda: not table.execute(SLOTS) and not creating(table), 30)
    session.commit()
    time.sleep(0.5)
    assert not table.execute(SLOTS)


def test_a_connection_that_is_cut_while_it_waits_is_tried_again(
    table: OnPostgres, query: MakeQuery, proxy: Proxy, started: Callable[[Query], Future[bool]]
) -> None:
    session = writer(table, 101)
    stream = query(url=proxy.url(table.name), patienceSeconds=60)
    starting = started(stream)
    wait_for(lambda: "pid" in waits_of(stream), 30)
    first = creating(table)
    proxy.cut()
    wait_for(lambda: creating(table) and creating(table) != first, 30)
    session.commit()
    assert starting.result(30)
    assert len(table.execute(SLOTS)) == 1
    check(stream, table)


def test_a_role_without_statistics_still_names_the_sessions(table: OnPostgres, query: MakeQuery) -> None:
    """To a role that is not a member of pg_read_all_stats the server tells neither age nor query of others."""
    table.execute("create role cdc login superuser password 'x'", "alter role cdc nosuperuser replication")
    try:
        table.execute(
            f"grant all on database {table.name} to cdc; alter table t owner to cdc; grant all on schema public to cdc"
        )
        session = writer(table, 101)
        url = table.server.url(table.name, "cdc", "x")
        with pytest.raises(PreconditionFailed, match=rf"1 transaction: pid {session.info.backend_pid} \(\w+\)"):
            query(url=url, patienceSeconds=2).step()
        session.commit()
    finally:
        table.execute("drop owned by cdc cascade; drop role cdc")
