"""Two servers of MySQL or MariaDB that replicate, each with a log of its own."""

from __future__ import annotations

from dblog.databases.mysql.connect import parse
from tests.conftest import MySQLDatabase, mysql_server_of

_SETTINGS = {
    "mariadb": {"log_slave_updates": "ON", "slave_parallel_threads": "4"},
    "mysql": {"log_replica_updates": "ON", "replica_preserve_commit_order": "ON"},
}


class Cluster:
    """A primary and a replica of it, with the database `shop`."""

    def __init__(self, kind: str) -> None:
        self.mariadb = kind != "mysql"
        settings = _SETTINGS["mariadb" if self.mariadb else "mysql"]
        servers = [mysql_server_of(kind, **settings, server_id=str(n)).start() for n in (1, 2)]
        self.primary, self.replica = (MySQLDatabase(server, "shop") for server in servers)
        if not self.mariadb:  # what a server does to itself when it is made is not its cluster's
            for database in (self.primary, self.replica):
                database.server_execute("reset binary logs and gtids")
        # the replica's files have other numbers, and other sizes
        self.replica.server_execute("flush local binary logs", "flush local binary logs", "flush local binary logs")
        self.follow()
        self.primary.server_execute("create database shop")

    def follow(self) -> None:
        """Let the replica replicate from the primary."""
        at = parse(self.primary.url)
        if self.mariadb:
            change = (
                f"change master to master_host = '{at.host}', master_port = {at.port}, master_user = '{at.user}', "
                f"master_password = '{at.password}', master_use_gtid = slave_pos, master_connect_retry = 1"
            )
        else:
            change = (
                f"change replication source to source_host = '{at.host}', source_port = {at.port}, "
                f"source_user = '{at.user}', source_password = '{at.password}', source_auto_position = 1, "
                f"get_source_public_key = 1, source_connect_retry = 1"
            )
        self.replica.server_execute(change)
        self.start()

    def start(self) -> None:
        self.replica.server_execute("start slave" if self.mariadb else "start replica")

    def stop_replication(self) -> None:
        self.replica.server_execute("stop slave" if self.mariadb else "stop replica")

    def promote(self) -> MySQLDatabase:
        """The replica becomes the primary, and the other way round."""
        self.caught_up()
        self.stop_replication()
        if self.mariadb:  # what it has written itself counts when it becomes a replica
            position = self.primary.server_execute("select @@gtid_current_pos")[0][0]
            self.primary.server_execute(f"set global gtid_slave_pos = '{position}'")
        self.primary, self.replica = self.replica, self.primary
        self.follow()
        return self.primary

    def caught_up(self) -> None:
        """Wait until the replica has all transactions of the primary."""
        wanted = self.gtids(self.primary)
        if self.mariadb:
            call = f"select master_gtid_wait('{wanted}', 30)"
        else:
            call = f"select wait_for_executed_gtid_set('{wanted}', 30)"
        assert self.replica.server_execute(call)[0][0] == 0, f"{wanted} has not arrived"

    def gtids(self, database: MySQLDatabase) -> str:
        variable = "@@gtid_current_pos" if self.mariadb else "@@gtid_executed"
        return str(database.server_execute(f"select {variable}")[0][0]).replace("\n", "")

    def stop(self) -> None:
        for database in (self.primary, self.replica):
            database.server.stop()
