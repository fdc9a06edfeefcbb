"""A MySQL or MariaDB server for the demo and for tests.

The server listens on 127.0.0.1 only, has one account with a password, and keeps all its files in one directory, which
is removed when it stops.
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
from dblog.testing.server_process import GUARD, OwnServer

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
class ServerFamily:
    """The differences between MySQL and MariaDB servers."""

    name: str
    """The name, which is also the scheme of URLs."""
    create: tuple[str, ...]
    """The options of the program that creates a data directory."""
    settings: Mapping[str, str]
    accounts: tuple[str, ...] = ()
    """Statements for the accounts that a new server has."""


MARIADB = ServerFamily(
    "mariadb",
    ("--skip-test-db", "--auth-root-authentication-method=socket", "--skip-name-resolve"),
    {"binlog_format": "ROW", "innodb_log_file_size": "64M"},
)
MYSQL = ServerFamily(
    "mysql",
    ("--initialize-insecure", "--innodb-redo-log-capacity=64M"),
    {"innodb_redo_log_capacity": "64M", "secure_file_priv": "", "mysqlx": "OFF"},
    ("DROP USER IF EXISTS root@localhost",),
)


@dataclass(frozen=True)
class Install:
    """A server's program, and the program that creates its data directory."""

    family: ServerFamily
    program: Path
    creator: Path

    @property
    def version(self) -> str:
        """As in "10.11.6"."""
        shown = subprocess.check_output([self.program, "--no-defaults", "--version"], text=True)
        return str(re.findall(r"Ver (\d+\.\d+\.\d+)", shown)[0])


def find_mariadb(root: Path | None = None) -> Install | None:
    """The machine's MariaDB, or the one in `root`; None if there is none."""
    program, creator = _which("mariadbd", root), _which("mariadb-install-db", root)
    return Install(MARIADB, program, creator) if program and creator else None


def find_mysql(root: Path | None = None) -> Install | None:
    """The MySQL in `root`, by default the folder of `scripts/mysql.sh`; None if there is none."""
    program = _which("mysqld", root or Path(sys.prefix) / "mysql")
    return Install(MYSQL, program, program) if program else None


def _which(name: str, root: Path | None) -> Path | None:
    machine = f"/usr/sbin:/usr/local/sbin:{os.environ.get('PATH', os.defpath)}"
    found = shutil.which(name, path=f"{root / 'bin'}:{root / 'sbin'}" if root else machine)
    return Path(found) if found else None


class MySQLServer(OwnServer):
    """MySQL or MariaDB."""

    _user = USER
    _shutdown = signal.SIGTERM
    _crash = signal.SIGKILL
    _taken = "Bind on TCP/IP port"

    def __init__(self, install: Install | None, *, settings: Mapping[str, str] | None = None) -> None:
        """`install` is the result of `find_mariadb` or `find_mysql`."""
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
    def family(self) -> ServerFamily:
        return self._install.family

    def url(self, database: str = "", user: str = USER, password: str | None = None) -> str:
        """The URL to connect to. The password of the account with all privileges is filled in."""
        return self._url(database, user, password)

    def _prepare(self) -> None:
        """Create the server's directory and its data. The guard is started first, so that nothing is left behind."""
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
        self._create()

    def _create(self) -> None:
        """Create the data directory, which is the same whatever the settings."""
        # A starting server removes files that look like old temporary tables from its tmpdir, so it gets its own.
        folders = [f"--datadir={self.data}", f"--tmpdir={self._own()}"]
        creator = self._install.creator
        command = [str(creator), "--no-defaults", *folders, *self._account(), *self.family.create]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/", env=self._environment())
        if done.returncode:
            raise SourceError(f"{creator.name} failed: {(done.stderr or done.stdout).strip()[-2000:]}")

    def _account(self) -> list[str]:
        """The option without which the server does not start as root."""
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
