"""Steps: batches, transactions, and everything that can break: processes, networks, servers."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pymysql.err

from tests.life import dumps
from tests.life.life import Life
from tests.life.stream import Killed
from tests.life.world import GONE, Session
from tests.life.writers import Dice, single, write

# -- batches and transactions -------------------------------------------------------------------------------


def batches(life: Life, dice: Dice) -> None:
    for _ in range(dice.randint(1, 8)):
        life.stream.step(selects_last=dice.random() < 0.3)


def transactions(life: Life, dice: Dice) -> None:
    """Transactions of this process, between the steps of the stream."""
    for _ in range(dice.randint(1, 12)):
        write(life.world, life.session, dice)
        if dice.random() < 0.2:
            life.stream.step()


def settle(life: Life, dice: Dice) -> None:
    """Nobody writes: deliver everything, and compare."""
    life.settle()


# -- processes that die, or stop for a while ---------------------------------------------------------------


def kill_while_planning(life: Life, dice: Dice) -> None:
    _warm(life, dice)
    if not life.stream.planned:
        with suppress(Killed):
            life.stream.plan(kill_after=dice.choice([0.02, 0.1, 0.3]) * dice.random())
    life.stream.kill()


def _warm(life: Life, dice: Dice) -> None:
    """Usually let the process run before it is killed: else it is killed while it starts."""
    if dice.random() < 0.7:
        life.stream.step()


def kill_before_the_batch_runs(life: Life, dice: Dice) -> None:
    if not life.stream.planned:
        life.stream.plan(commit=dice.random() < 0.5)
    life.stream.kill()


def kill_while_the_batch_runs(life: Life, dice: Dice) -> None:
    _warm(life, dice)
    if life.stream.planned or life.stream.plan():
        with suppress(Killed):
            life.stream.attempt(kill_after=dice.choice([0.02, 0.1, 0.3]) * dice.random())
    life.stream.kill()


def kill_before_the_batch_is_committed(life: Life, dice: Dice) -> None:
    """The sink has the batch, the checkpoint does not: it is delivered again, and must be the same."""
    for _ in range(dice.randint(1, 2)):
        if life.stream.planned or life.stream.plan():
            life.stream.attempt(selects_last=dice.random() < 0.3)
        life.stream.kill()


def kill_between_batches(life: Life, dice: Dice) -> None:
    life.stream.step()
    life.stream.kill()


def stop_in_order(life: Life, dice: Dice) -> None:
    life.stream.step()
    life.stream.stop()


def lose_the_spool(life: Life, dice: Dice) -> None:
    moment = dice.choice(["planned", "delivered", "finished"])
    if moment != "finished" and (life.stream.planned or life.stream.plan()) and moment == "delivered":
        life.stream.attempt()
    life.stream.lose_spool()


def freeze_the_stream(life: Life, dice: Dice) -> None:
    child = life.stream.child
    life.later(dice.uniform(0, 0.03), lambda: child.signal(signal.SIGSTOP))
    life.later(dice.uniform(0.3, 1.0), lambda: child.signal(signal.SIGCONT))
    for _ in range(2):
        life.stream.step()


# -- networks and servers ----------------------------------------------------------------------------------


def cut_connections(life: Life, dice: Dice) -> None:
    life.later(dice.uniform(0, 0.05), life.proxy.cut)
    for _ in range(dice.randint(1, 4)):
        life.stream.step()


def pause_the_network(life: Life, dice: Dice) -> None:
    life.later(dice.uniform(0, 0.03), life.proxy.pause)
    life.later(dice.uniform(0.2, 0.8), life.proxy.resume)
    for _ in range(2):
        life.stream.step()


def refuse_connections(life: Life, dice: Dice) -> None:
    life.proxy.refuse()
    life.proxy.cut()
    life.later(dice.uniform(0.1, 0.8), life.proxy.accept)
    life.stream.step()


def end_all_sessions(life: Life, dice: Dice) -> None:
    def end() -> None:
        with suppress(*GONE, pymysql.err.Error):  # a session may have ended by itself, or be our own
            life.database.end_sessions()

    life.later(dice.uniform(0, 0.03), end)
    for _ in range(2):
        life.stream.step()


def crash_the_server(life: Life, dice: Dice) -> None:
    server = life.database.server
    life.later(dice.uniform(0, 0.05), server.kill, server.start)
    for _ in range(2):
        life.stream.step()


def freeze_the_server(life: Life, dice: Dice) -> None:
    process = life.database.server._process
    assert process is not None
    life.later(dice.uniform(0, 0.03), lambda: process.send_signal(signal.SIGSTOP))
    life.later(dice.uniform(0.2, 0.6), lambda: process.send_signal(signal.SIGCONT))
    for _ in range(2):
        life.stream.step()


def stick_commits(life: Life, dice: Dice) -> None:
    """For a while commits are in the log and nobody sees them: they wait for a standby or a replica that is away."""
    hold, release = _sticking(life)
    hold()
    tables = dice.choices(["a", "b", "f"], k=4)
    stuck = [threading.Thread(target=_write_once, args=(life, dice.random(), t), daemon=True) for t in tables]
    for thread in stuck:
        thread.start()
    if life.on_postgres:  # the stream itself commits without waiting
        waiting = "select 1 from pg_stat_activity where wait_event = 'SyncRep' and datname = current_database()"
        deadline = time.monotonic() + 3  # a transaction may wait for the key of another one that is stuck
        while len(life.database.execute(waiting)) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        life.later(4.0, release)
    else:
        life.later(dice.uniform(0.8, 1.8), release)
    if dice.random() < 0.7:
        dumps.ask(life, ["a", "b", "f"])
    for _ in range(dice.randint(4, 10)):
        life.stream.step()
    if dice.random() < 0.3:
        life.stream.kill()
        life.stream.step()
    life.hurry()
    release()
    for thread in stuck:
        thread.join(60)
        assert not thread.is_alive(), "a transaction does not come to an end"


def _write_once(life: Life, seed: float, table: str) -> None:
    session, dice = Session(life.world, waits=True), Dice(seed).prepare(life.world)
    dice.table = table
    try:
        act = single(dice)
        life.world.write(session, dice.keys, act)
    except BaseException as error:
        life.world.failed.append(error)
    session.close()


def _sticking(life: Life) -> tuple[Callable[[], object], Callable[[], object]]:
    database = life.database
    if life.on_postgres:
        reload = "select pg_reload_conf()"
        return (
            lambda: database.execute("alter system set synchronous_standby_names = 'absent'", reload),
            lambda: database.execute("alter system reset synchronous_standby_names", reload),
        )
    mariadb = life.server_name != "mysql"
    prefix = "rpl_semi_sync_master" if mariadb else "rpl_semi_sync_source"
    alone = "wait_no_slave" if mariadb else "wait_no_replica"
    if not mariadb and not database.execute(f"show variables like '{prefix}_enabled'"):
        database.execute("install plugin rpl_semi_sync_source soname 'semisync_source.so'")
    names = ("timeout = 600000", "wait_point = AFTER_SYNC", f"{alone} = ON", "enabled = ON")
    return (
        lambda: database.execute(*(f"set global {prefix}_{name}" for name in names)),
        lambda: database.execute(f"set global {prefix}_enabled = OFF"),
    )
