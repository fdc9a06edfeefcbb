"""Steps: another server takes over. The stream is connected to it by the address that it has.

The replica is made when the first failover needs one. Nobody writes while the servers change places; what is lost with
a primary that dies was written, and perhaps delivered, after the replica had stopped following.
"""

from __future__ import annotations

import time

from dblog.databases.mysql.connect import parse
from tests.conftest import mysql_server_of
from tests.families import OnMySQL
from tests.life.life import Failure, Life
from tests.life.world import Id, Session, Transaction
from tests.life.writers import Dice, write

CATCH_UP_SECONDS = 60.0


def fail_over(life: Life, dice: Dice) -> None:
    """A replica that has everything becomes the primary; the primary becomes its replica."""
    if not _may_have_replica(life):
        return
    replica = _replica(life)
    with life.writers.paused():
        if dice.random() < 0.6:
            _leave_a_batch(life, dice)
        _wait_caught_up(life, replica)
        _promote(life, replica)
        life.replica, old = None, life.database
        life.move_to(replica)
        _follow(life, old, replica)
        life.replica = old
    for _ in range(dice.randint(0, 3)):
        life.stream.step()


def fail_over_with_a_loss(life: Life, dice: Dice) -> None:
    """A primary dies with transactions that the replica does not have; the stream may have delivered them."""
    if not _may_have_replica(life):
        return
    replica = _replica(life)
    with life.writers.paused():
        _wait_caught_up(life, replica)
        _promote(life, replica)
        for _ in range(dice.randint(1, 5)):
            write(life.world, life.session, dice)
        for _ in range(dice.randint(0, 3)):
            life.stream.step()
        if dice.random() < 0.5:
            _leave_a_batch(life, dice)
        old, life.replica = life.database, None
        life.move_to(replica)
        old.server.stop()
        life.world.reload()
    for _ in range(dice.randint(0, 3)):
        life.stream.step()


def fail_over_with_errant_transactions(life: Life, dice: Dice) -> None:
    """Transactions that were made on the replica alone, in front of delivered ones in its log."""
    _fail_over_with_errant(life, dice)


def fail_over_with_an_errant_domain(life: Life, dice: Dice) -> None:
    """The same, in a GTID domain that the primary does not have."""
    _fail_over_with_errant(life, dice, new_domain=True)


def _fail_over_with_errant(life: Life, dice: Dice, *, new_domain: bool = False) -> None:
    if not _may_have_replica(life):
        return
    replica = _replica(life)
    domain = 99 + life.servers if new_domain else None  # each of these failovers has a new server
    table = life.world.tables["a"]

    def update_some(tx: Transaction, some: list[Id]) -> None:
        for key in some:
            tx.update("a", key, **dice.values("a", new=False))

    with life.writers.paused():
        _wait_caught_up(life, replica)
        life.epoch.loose.add("a")
        life.epoch.defined.add("a")
        primary, rows = life.world.database, dict(table.rows)
        life.world.database = replica
        keys = sorted(rows)[: dice.randint(1, 6)]
        session = Session(life.world, domain=domain)

        life.world.write(session, set(), lambda tx: update_some(tx, keys))
        session.close()
        life.world.database, table.rows = primary, rows
        life.world.write(life.session, {("a", key) for key in keys[::2]}, lambda tx: update_some(tx, keys[::2]))
        for _ in range(dice.randint(0, 4)):
            write(life.world, life.session, dice)
        for _ in range(dice.randint(0, 6)):
            life.stream.step()
        _wait_caught_up(life, replica)
        _promote(life, replica)
        old, life.replica = life.database, None
        life.move_to(replica)
        old.server.stop()
        life.world.reload()
    for _ in range(dice.randint(0, 3)):
        life.stream.step()


def use_several_domains(life: Life, dice: Dice) -> None:
    """From now on transactions of some tables have a GTID domain of their own: a replica may order them differently."""
    with life.writers.paused():
        _wait_caught_up(life, _replica(life))
        life.world.domains = True
    for _ in range(dice.randint(0, 3)):
        life.stream.step()


def _leave_a_batch(life: Life, dice: Dice) -> None:
    """A batch that the sink has and the checkpoint does not."""
    for _ in range(3):
        write(life.world, life.session, dice)
    if life.stream.planned or life.stream.plan():
        life.stream.attempt()
    life.stream.kill()


def _may_have_replica(life: Life) -> bool:
    """Whether there is a replica, or one can be made. One that is made after several domains were used would replay
    the changes of a row in domains that follow each other as if they were independent."""
    return life.replica is not None or not life.world.domains


def _replica(life: Life) -> OnMySQL:
    if life.replica is None:
        life.servers += 1
        server = mysql_server_of(life.server_name, **life.server_settings(life.servers)).start()
        replica = OnMySQL(server, life.database.name)
        # the replica's files have other numbers, and other sizes
        replica.server_execute(*["flush binary logs"] * 3)
        assert isinstance(life.database, OnMySQL)
        _follow(life, replica, life.database)
        life.replica = replica
    return life.replica


def _follow(life: Life, replica: OnMySQL, primary: OnMySQL) -> None:
    at = parse(primary.url)
    where = {"host": f"'{at.host}'", "port": at.port, "user": f"'{at.user}'", "password": f"'{at.password}'"}
    where["connect_retry"] = 1
    if life.server_name == "mysql":
        where |= {"auto_position": 1}
        options = ", ".join(f"source_{name} = {value}" for name, value in where.items())
        replica.server_execute(
            f"change replication source to {options}, get_source_public_key = 1",
            "start replica",
        )
    else:
        where |= {"use_gtid": "current_pos"}
        options = ", ".join(f"master_{name} = {value}" for name, value in where.items())
        replica.server_execute(f"change master to {options}", "start slave")


def _wait_caught_up(life: Life, replica: OnMySQL) -> None:
    """Wait until the replica has everything that the primary has."""
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while True:
        if life.server_name == "mysql":
            (mine,) = life.database.execute("select @@global.gtid_executed")[0]
            if replica.server_execute(f"select gtid_subset('{mine}', @@global.gtid_executed)") == [(1,)]:
                return
        else:
            # what the replica has written itself may be the last of a domain in its log, but not what it has replicated
            (mine,) = life.database.server_execute("select @@gtid_binlog_pos")[0]
            theirs = replica.server_execute("select @@gtid_binlog_pos, @@gtid_slave_pos")[0]
            if set(mine.split(",")) <= set(",".join(theirs).split(",")):
                return
        if time.monotonic() > deadline:
            status = replica.server_execute("show replica status")
            raise Failure(f"the replica does not catch up (the test itself is wrong): {status}")
        time.sleep(0.05)


def _promote(life: Life, replica: OnMySQL) -> None:
    kind = "replica" if life.server_name == "mysql" else "slave"
    replica.server_execute(f"stop {kind}", f"reset {kind} all")
