"""A database server as a child process: on 127.0.0.1, with all its files in one directory.

A server never outlives the process that started it, its owner. The guard is a small second process with the reading end
of a pipe. When the owner ends, even by `kill -9`, the pipe closes, and the guard stops the server and removes its
directory. (A parent-death signal would depend on the thread that started the server, and exists on Linux only.)
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from dblog.errors import ConfigError, SourceError

START_SECONDS = 60.0
STOP_SECONDS = 15.0
PORT_ATTEMPTS = 5
GUARD = """
read -r _ || { kill -9 "$(cat "$1")"; sleep 0.2; }
rm -rf "$2"
"""
"""The guard of a server that has a pid file ($1) and a folder of its own ($2). A line on the pipe means that the server
has already stopped; the end of the pipe means that the owner has ended."""


class OwnServer:
    """One server. `start` and `stop` it, or use it in a `with`.

    `kill` ends the server like a crash and keeps the data. The next `start` recovers it, on the same port.
    """

    _scheme: str
    """The scheme of its URLs."""
    _user: str
    """The first account, which has all privileges."""
    _shutdown: signal.Signals
    _crash: signal.Signals
    _taken: str
    """The server's message when its port is in use."""

    def __init__(self, *, port: int | None = None, run_as: Mapping[str, Any] | None = None) -> None:
        self._wanted_port = port
        self._port = port or 0
        self._run_as = run_as or {}
        self._password = ""
        self._home: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def port(self) -> int:
        return self._port

    @property
    def data(self) -> Path:
        return self._own() / "data"

    @property
    def log(self) -> Path:
        """The file with the server's standard error."""
        return self._own() / "server.log"

    def _url(self, database: str, user: str, password: str | None) -> str:
        """The URL for a user. The first account's password is filled in; for another user it is an argument."""
        secret = self._password if password is None and user == self._user else password
        login = quote(user, safe="") + (f":{quote(secret, safe='')}" if secret else "")
        return f"{self._scheme}://{login}@127.0.0.1:{self._port}/{quote(database, safe='')}"

    def start(self) -> Self:
        """Create the data directory if there is none, and return when the server accepts connections."""
        if self.running:
            return self
        try:
            if self._home is None:
                self._prepare()
            for attempt in range(1, PORT_ATTEMPTS + 1):
                self._port = self._port or free_port()
                if self._launch():
                    return self
                # Another process took the port after we had found it free.
                if self._wanted_port or attempt == PORT_ATTEMPTS:
                    raise SourceError(f"port {self._port!r} is in use", hint="leave the port out to get a free one")
                self._port = 0
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server, and remove its data unless they must be kept. Does nothing if it is stopped already."""
        self._end(self._shutdown)
        if self._guard is not None:
            with suppress(BrokenPipeError):
                self._guard.communicate(b"stopped\n")
            self._guard = None
        self._home = None
        self._port = self._wanted_port or 0

    def kill(self) -> None:
        """End the server at once, like a crash. The next `start` recovers its data."""
        self._end(self._crash)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                # A shutdown waits for replication clients, and one that does not read blocks it for ever.
                self._process.send_signal(self._crash)
                self._process.wait(STOP_SECONDS)
        self._process = None

    def _own(self) -> Path:
        if self._home is None:
            raise ConfigError("the server has no directory before it is started", hint="call start() first")
        return self._home

    def _watch(self, script: str, *arguments: Path) -> None:
        """Start the guard: a shell script that reads from a pipe until a line (the server has stopped) or its end
        comes."""
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", script, "guard", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # so that Ctrl-C or a kill of the owner's process group does not reach it
            **self._run_as,
        )

    def _launch(self) -> bool:
        """Start the process. Returns whether it accepts connections; False if its port is in use."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=self._environment(),
                start_new_session=True,
                **self._run_as,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._ready(self._process.pid, begin):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self._said(begin)
                if self._taken in said:
                    return False
                raise SourceError(f"{self._scheme} did not start:\n{said[-2000:].strip()}")
            time.sleep(0.01)
        return True

    def _said(self, begin: int) -> str:
        return self.log.read_bytes()[begin:].decode(errors="replace")

    # -- what a subclass implements --------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Create the server's directory and its data, after starting the guard."""
        raise NotImplementedError

    def _command(self) -> Sequence[str | Path]:
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        """The server's environment variables: none of the owner's, and English messages, because some are parsed."""
        raise NotImplementedError

    def _ready(self, pid: int, begin: int) -> bool:
        """Whether the server accepts connections. The messages since its start are in its log from byte `begin` on."""
        raise NotImplementedError


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
