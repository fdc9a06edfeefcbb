"""A MySQL or MariaDB server of one's own, for the demo and for tests.

The server listens on 127.0.0.1 only, has one account with a password, and keeps all its files in one directory, which
is gone with it. It lives no longer than the process that started it: see `server`, whose guard this one has too.
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
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

from dblog.demo.server import PORT_ATTEMPTS, START_SECONDS, STOP_SECONDS, _free_port
from dblog.errors import ConfigError, SourceError

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


class MySQLServer:
    """One server. `start` and `stop` it, or use it in a `with`.

    `kill` ends the server as a crash would and keeps the data: `start` then recovers it, on the same port.
    """

    def __init__(self, install: Install | None, *, settings: Mapping[str, str] | None = None) -> None:
        """`install` is what `find_mariadb` or `find_mysql` has found."""
        if install is None:
            raise ConfigError("no MySQL or MariaDB is installed", hint="apt-get install mariadb-server")
        self._install = install
        self._settings = {**SETTINGS, **install.family.settings, **(settings or {})}
        self._home: Path | None = None
        self._password = secrets.token_urlsafe(24)
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"MySQLServer({self._name}, {f'port={self._port}' if self.running else 'stopped'})"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def family(self) -> Family:
        return self._install.family

    @property
    def _name(self) -> str:
        return self.family.name

    @property
    def port(self) -> int:
        return self._port

    @property
    def data(self) -> Path:
        return self._own() / "data"

    @property
    def log(self) -> Path:
        """What the server writes to its standard error."""
        return self._own() / "server.log"

    def url(self, database: str = "", user: str = USER, password: str | None = None) -> str:
        """Where to connect. The password of the one account that has all rights is known here."""
        secret = self._password if password is None and user == USER else password
        login = quote(user, safe="") + (f":{quote(secret, safe='')}" if secret else "")
        return f"{self._name}://{login}@127.0.0.1:{self._port}/{quote(database, safe='')}"

    def start(self) -> Self:
        """Create the data directory if there is none, and return when the server accepts connections."""
        if self.running:
            return self
        try:
            if self._home is None:
                self._prepare()
            for _ in range(PORT_ATTEMPTS):
                self._port = self._port or _free_port()
                if self._launch():
                    return self
                self._port = 0  # another process took it between our look and the server's bind
            raise SourceError(f"no free port was found for {self._name}")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Shut down and remove the data. Does nothing to a stopped server."""
        self._end(signal.SIGTERM)
        if self._guard is not None:
            with suppress(BrokenPipeError):
                self._guard.communicate(b"stopped\n")
            self._guard = None
        self._home = None
        self._port = 0

    def kill(self) -> None:
        """End at once: the next `start` recovers."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(STOP_SECONDS)
        self._process = None

    def _own(self) -> Path:
        if self._home is None:
            raise ConfigError("the server has no directory before it is started", hint="call start() first")
        return self._home

    def _prepare(self) -> None:
        """Make the server's own directory, then its data. The guard comes first so that nothing is left behind."""
        self._home = home = Path(tempfile.mkdtemp(prefix=f"dblog-{self._name}-"))
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "guard", home / "pid", home],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # out of reach of a Ctrl-C or a kill of the owner's process group
        )
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
        places = [f"--datadir={self.data}", f"--tmpdir={home}"]
        creator = self._install.creator
        command = [str(creator), "--no-defaults", *places, *self._account(), *self.family.create]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/", env=_environment())
        if done.returncode:
            raise SourceError(f"{creator.name} failed: {(done.stderr or done.stdout).strip()[-2000:]}")

    def _account(self) -> list[str]:
        """The server does not start as root unless it is told to."""
        return ["--user=root"] if os.geteuid() == 0 else []

    def _launch(self) -> bool:
        """Whether the server accepts connections; False if its port is taken."""
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
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._install.program, "--no-defaults", "--skip-name-resolve", *options, *self._account()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            said = self.log.read_bytes()[begin:].decode(errors="replace")
            if "ready for connections" in said:
                return True
            if self._process.poll() is not None or time.monotonic() > deadline:
                if "Bind on TCP/IP port" in said:
                    return False
                raise SourceError(f"{self._name} did not start:\n{said[-2000:].strip()}")
            time.sleep(0.01)


def _environment() -> dict[str, str]:
    """Messages in English because some are looked at."""
    return {"PATH": f"{os.defpath}:/usr/sbin", "LC_ALL": "C"}
