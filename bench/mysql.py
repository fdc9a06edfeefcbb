"""MariaDB and MySQL to measure on. Everybody reads the log from a place on: there is nothing to keep for anybody."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bench.database import DELETES, INSERTS, UPDATES, Database, Stretch
from bench.figures import Bound
from dblog.databases.mysql.connect import connect, parse, server
from dblog.testing.mysql_server import MYSQL, Install, MySQLServer

MEMORY = {"innodb_buffer_pool_size": "1G"}
# No checkpoint in the middle of a measurement.
REDO_LOG = {"MariaDB": {"innodb_log_file_size": "1G"}, "MySQL": {"innodb_redo_log_capacity": "2G"}}
NUMBERS = 3_000_000
SERVER_ID = "7777"

_ROW = """
    {g}, mod({g}, 100000), left(sha2({g}, 256), 46), {g} * 1.2345,
    timestamp '2026-01-01 00:00:00' + interval {g} second, if(mod({g}, 10) = 0, null, mod({g}, 2) = 0),
    json_object('k', {g}, 'tag', concat('t', mod({g}, 10))), unhex(left(sha2({g}, 256), 32)),
    unhex(left(sha2({g}, 256), 32)), {g} / 7e0
"""

_WRITER = f"""
create procedure write_changes(in previous bigint, in transactions int)
begin
    while transactions > 0 do
        start transaction;
        insert into wide select {_ROW.format(g="(previous + g)")} from numbers where g <= {INSERTS};
        update wide set n = n + 1, amount = amount + 1
        where id between previous - {INSERTS - 1} and previous - {INSERTS - UPDATES};
        delete from wide
        where id between previous - {INSERTS - UPDATES - 1} and previous - {INSERTS - UPDATES - DELETES};
        commit;
        set previous = previous + {INSERTS}, transactions = transactions - 1;
    end while;
end
"""


class MySQL(Database):
    """A server of either family."""

    reader_bound = Bound(0.4)
    debezium_bound = debezium_dump_bound = Bound(8.0)
    catchup_changes = 3_000_000
    schema = "bench"
    columns = """
        id bigint primary key, n int, name varchar(64), amount decimal(18,4), at timestamp(6) null, flag bool, doc json,
        ref binary(16), raw varbinary(64), score double
    """

    def __init__(self, install: Install, server: MySQLServer) -> None:
        self.version = install.version
        self.family = _family(install)
        self._programs = install.program.parent if install.family is MYSQL else None
        program = self.family.lower()
        self._client, self._log_client = program, "mysqlbinlog" if self._programs else "mariadb-binlog"
        self.receiver, self.reader = f"{self._log_client} --raw", f"{self._client} --quick to /dev/null"
        self.has_debezium = install.family is MYSQL  # its connector refuses MariaDB
        self.url = server.url()
        self.pid = int((server.data.parent / "pid").read_text())
        with self.connect().cursor() as cursor:
            cursor.execute(f"create database {self.schema}")
        # With TLS the server would spend its time on that. It lets us in without, because it knows the password now.
        self.url = server.url(self.schema) + "?ssl_mode=DISABLED"
        with self.connect().cursor() as cursor:
            cursor.execute("create table numbers (g bigint primary key)")
            cursor.execute("insert into numbers values (1)")
            count = 1
            while count < NUMBERS:
                count += cursor.execute(f"insert into numbers select g + {count} from numbers")
        super().__init__()
        self.run(_WRITER)

    def connect(self) -> Any:
        return connect(self.url, program="bench")

    def settle(self, table: str) -> None:
        self.run(f"analyze table {table}")

    def write_transaction(self, table: str, rows: int) -> None:
        if rows > NUMBERS:
            raise ValueError(f"more than {NUMBERS} rows")
        self.run(f"insert into {table} select {_ROW.format(g='g')} from numbers where g <= %s", rows)

    def position(self) -> dict[str, Any]:
        """As Debezium stores it."""
        with self._session.cursor() as cursor:
            cursor.execute(server(self._session).log_status)
            file, place, _, _, *gtids = cursor.fetchone()
        found = {"file": file, "pos": place}
        return {**found, "gtids": gtids[0]} if gtids and gtids[0] else found

    def forget(self, stream: str) -> None:
        pass

    def _run(self, program: str, *options: str) -> float:
        """Seconds that a program of the server's makers takes."""
        at = parse(self.url)
        path = str(self._programs / program) if self._programs else program
        command = [path, "--no-defaults", f"-h{at.host}", f"-P{at.port}", f"-u{at.user}", *options]
        begin = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "MYSQL_PWD": at.password})
        return time.monotonic() - begin

    def receive_log(self, stretch: Stretch) -> float:
        options = ["--read-from-remote-server", "--raw", "--to-last-log", f"--start-position={stretch.begin['pos']}"]
        with tempfile.TemporaryDirectory(prefix="dblog-bench-") as folder:
            return self._run(self._log_client, *options, f"--result-file={folder}/", stretch.begin["file"])

    def read_out(self, table: str) -> float:
        return self._run(self._client, "--quick", "-BN", "-e", f"select * from {table}", self.schema)

    def debezium_follows(self, stretch: Stretch, form: str) -> Mapping[str, str]:
        return {**self._debezium(), "snapshot.mode": "recovery", "offset": json.dumps(stretch.begin)}

    @contextmanager
    def debezium_dumps(self, table: str, signals: str) -> Iterator[Mapping[str, str]]:
        self._newest = self.ask("select max(id) from information_schema.processlist")
        yield {**self._debezium(), "snapshot.mode": "no_data"}

    def debezium_reads(self) -> bool:
        """Whether a session newer than all of ours reads the log."""
        sessions = "select count(*) from information_schema.processlist where id > %s and command like 'Binlog Dump%%'"
        return bool(self.ask(sessions, self._newest))

    def _debezium(self) -> Mapping[str, str]:
        at = parse(self.url)
        return {
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "database.hostname": at.host,
            "database.port": str(at.port),
            "database.user": at.user,
            "database.password": at.password,
            "database.server.id": SERVER_ID,
            "database.include.list": self.schema,
            "database.ssl.mode": "disabled",
            "driver.allowPublicKeyRetrieval": "true",
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "include.schema.changes": "false",
        }


@contextmanager
def mysql(install: Install) -> Iterator[MySQL]:
    """What `find_mariadb` or `find_mysql` has found."""
    with MySQLServer(install, settings={**MEMORY, **REDO_LOG[_family(install)]}) as server:
        yield MySQL(install, server)


def _family(install: Install) -> str:
    return "MySQL" if install.family is MYSQL else "MariaDB"
