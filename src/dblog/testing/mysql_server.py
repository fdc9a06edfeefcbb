"""A MySQL or MariaDB server of one's own, for the demo and for tests.

The server listens on 127.0.0.1 only, has one account with a password, and keeps all its files in one directory, which
is gone with it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dblog.errors import ConfigError, SourceError
from dblog.testing.server_process import OwnServer

USER = "dblog"
SETTINGS = {
    "server_id": "1",
    "log_bin": "binlog",
    "binlog_row_metadata": "FULL",
    "max_connections": "200",
    "innodb_buffer_pool_size": "64M",
    "performance_schema": "OFF",
    "character_set_server": "utf8mb4",
}


@dataclass(frozen=True)
class Family:
    """Where the servers of two families differ."""

    name: str
    """Also the scheme of its URLs."""
    create: tuple[str, ...]
    """The options that make a data directory."""
    settings: Mapping[str, str]
    accounts: tuple[str, ...] = ()
    """What is to be done about the accounts that it has from the beginning."""


MARIADB = Family(
    "mariadb",
    ("--skip-test-db", "--auth-root-authentication-method=socket", "--skip-name-resolve"),
    {"binlog_format": "ROW", "innodb_log_file_size": "64M"},
)
MYSQL = Family(
    "mysql",
    ("--initialize-insecure", "--innodb-redo-log-capacity=64M"),
    {"innodb_redo_log_capacity": "64M", "secure_file_priv": "", "mysqlx": "OFF"},
    ("DROP USER IF EXISTS root@localhost",),
)


@dataclass(frozen=True)
class Install:
    """A server's program, and the one that makes its data directory."""

    family: Family
    program: Path
    creator: Path

    @property
    def version(self) -> str:
        """As in "10.11.6"."""
        shown = subprocess.check_output([self.program, "--no-defaults", "--version"], text=True)
        return str(re.findall(r"Ver (\d+\.\d+\.\d+)", shown)[0])


def find_mariadb(root: Path | None = None) -> Install | None:
    """The machine's, or the one below `root`; None if it is not there."""
    program, creator = _which("mariadbd", root), _which("mariadb-install-db", root)
    return Install(MARIADB, program, creator) if program and creator else None


def find_mysql(root: Path | None = None) -> Install | None:
    """The one below `root`, by default where `scripts/mysql.sh` puts it; None if it is not there."""
    program = _which("mysqld", root or Path(sys.prefix) / "mysql")
    return Install(MYSQL, program, program) if program else None


def _which(name: str, root: Path | None) -> Path | None:
    machine = f"/usr/sbin:/usr/local/sbin:{os.environ.get('PATH', os.defpath)}"
    found = shutil.which(name, path=f"{root / 'bin'}:{root / 'sbin'}" if root else machine)
    return Path(found) if found else None


# $1 the pid file, $2 the server's own directory. A line on the pipe says that the server is already down; its end says
# that the owner is gone.
GUARD = """
read -r _ || { kill -9 "$(cat "$1")"; sleep 0.2; }
rm -rf "$2"
"""


class MySQLServer(OwnServer):
    """MySQL or MariaDB."""

    _user = USER
    _shutdown = signal.SIGTERM
    _crash = signal.SIGKILL
    _taken = "Bind on TCP/IP port"

    def __init__(self, install: Install | None, *, settings: Mapping[str, str] | None = None) -> None:
        """`install` is what `find_mariadb` or `find_mysql` has found."""
        if install is None:
            raise ConfigError("no MySQL or MariaDB is installed", hint="apt-get install mariadb-server")
        super().__init__()
        self._install = install
        self._scheme = install.family.name
        self._settings = {**SETTINGS, **install.family.settings, **(settings or {})}
        self._password = secrets.token_urlsafe(24)

    def __repr__(self) -> str:
        return f"MySQLServer({self._scheme}, {f'port={self._port}' if self.running else 'stopped'})"

    @property
    def family(self) -> Family:
        return self._install.family

    def url(self, database: str = "", user: str = USER, password: str | None = None) -> str:
        """Where to connect. The password of the one account that has all rights is known here."""
        return self._url(database, user, password)

    def _prepare(self) -> None:
        """Make the server's own directory, then its data. The guard comes first so that nothing is left behind."""
        self._home = home = Path(tempfile.mkdtemp(prefix=f"dblog-{self._scheme}-"))
        self._watch(GUARD, home / "pid", home)
        accounts = [
            "SET sql_log_bin = 0",
            f"CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{self._password}'",
            f"GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION",
            *self.family.accounts,
        ]
        script = home / "accounts.sql"
        script.touch(0o600)
        script.write_text(";\n".join(accounts) + ";\n")
        # A server that starts removes what it takes for remains of an earlier one from the folder for temporary tables.
        folders = [f"--datadir={self.data}", f"--tmpdir={home}"]
        creator = self._install.creator
        command = [str(creator), "--no-defaults", *folders, *self._account(), *self.family.create]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/", env=self._environment())
        if done.returncode:
            raise SourceError(f"{creator.name} failed: {(done.stderr or done.stdout).strip()[-2000:]}")

    def _account(self) -> list[str]:
        """The server does not start as root unless it is told to."""
        return ["--user=root"] if os.geteuid() == 0 else []

    def _command(self) -> list[str | Path]:
        home = self._own()
        fixed = {
            "datadir": self.data,
            "port": self._port,
            "bind_address": "127.0.0.1",
            "socket": home / "socket",
            "pid_file": home / "pid",
            "init_file": home / "accounts.sql",
            "tmpdir": home,
        }
        options = [f"--{name}={value}" for name, value in {**self._settings, **fixed}.items()]
        return [self._install.program, "--no-defaults", "--skip-name-resolve", *options, *self._account()]

    def _environment(self) -> dict[str, str]:
        return {"PATH": f"{os.defpath}:/usr/sbin", "LC_ALL": "C"}

    def _ready(self, pid: int, begin: int) -> bool:
        return "ready for connections" in self._said(begin)
