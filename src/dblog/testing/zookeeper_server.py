"""ZooKeeper servers for tests and the demo: a single server, or an ensemble of three.

The program is in PySpark's own jars. A server listens on 127.0.0.1 only; its data are removed when it stops.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dblog.errors import ConfigError, SourceError
from dblog.testing.server_process import GUARD, START_SECONDS, OwnServer, free_port

TICK = 200
"""The unit of ZooKeeper's times, in milliseconds. A session lasts 2 to 100 of them here."""
SETTINGS = {
    "tickTime": str(TICK),
    "initLimit": "50",
    "syncLimit": "5",
    "maxSessionTimeout": str(100 * TICK),
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "srvr",
    "clientPortAddress": "127.0.0.1",
    "maxClientCnxns": "0",
    "preAllocSize": "512",
}
# Options for a fast start and little memory instead of high speed.
JAVA_OPTIONS = (
    "-Xms24m",
    "-Xmx96m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dlog4j2.level=WARN",
)
JARS = ("zookeeper-*", "slf4j-api-*", "log4j-*", "netty-*", "metrics-core-*", "snappy-java-*", "commons-*")
"""Patterns of the jars that the server needs. All of Spark's would double the time of its start."""


@dataclass(frozen=True)
class Install:
    """A Java program, and the jars of ZooKeeper."""

    java: Path
    jars: tuple[Path, ...]


def find_zookeeper() -> Install | None:
    """The ZooKeeper of the installed PySpark; None without PySpark or Java."""
    spec = importlib.util.find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else Path("/nowhere")
    jars = tuple(sorted(jar for pattern in JARS for jar in folder.glob(f"{pattern}.jar")))
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    return Install(Path(java), jars) if java and any("zookeeper" in jar.name for jar in jars) else None


class ZooKeeperServer(OwnServer):
    """One server: alone, or a member of an ensemble. `kill` and `start` again keep its data."""

    _scheme = "zookeeper"
    _shutdown = signal.SIGTERM
    _crash = signal.SIGKILL
    _taken = "Address already in use"

    def __init__(
        self,
        install: Install | None = None,
        *,
        port: int | None = None,
        member: int = 0,
        members: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        install = install or find_zookeeper()
        if install is None:
            raise ConfigError("ZooKeeper needs PySpark and Java", hint="pip install pyspark; set JAVA_HOME")
        super().__init__(port=port)
        self._install = install
        self._member = member
        self._members = members
        self._settings = {**SETTINGS, **(settings or {})}

    @property
    def server(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._port}"

    @property
    def mode(self) -> str:
        """`standalone`, `leader` or `follower`; empty if the server does not serve requests now."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=2) as asked:
                asked.sendall(b"srvr")
                answer = b"".join(iter(lambda: asked.recv(4096), b"")).decode()
        except OSError:
            return ""
        return next((line.partition(": ")[2] for line in answer.splitlines() if line.startswith("Mode: ")), "")

    def url(self, path: str = "dblog", login: str = "") -> str:
        """The URL of a state store; `login` is `user:password`."""
        return f"zookeeper://{login}{'@' if login else ''}{self.server}/{path}"

    def _prepare(self) -> None:
        """Create the server's directory. The guard is started first, so that nothing is left behind."""
        self._home = home = Path(tempfile.mkdtemp(prefix="dblog-zookeeper-"))
        self._watch(GUARD, home / "pid", home)
        self.data.mkdir()
        (self.data / "myid").write_text(f"{self._member}\n")

    def _command(self) -> list[str | Path]:
        """A shell that writes its process id for the guard and then becomes Java, which would not write it."""
        members = {f"server.{number}": each for number, each in enumerate(self._members, 1)}
        given = {**self._settings, "dataDir": str(self.data), "clientPort": str(self._port), **members}
        if not any(name.startswith("server.") for name in given):
            given = {name: value for name, value in given.items() if name not in ("initLimit", "syncLimit")}
        file = self._own() / "zoo.cfg"
        file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        path = os.pathsep.join(map(str, self._install.jars))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        run: list[str | Path] = [self._install.java, *JAVA_OPTIONS, "-cp", path, main, file]
        return ["/bin/sh", "-c", 'echo $$ >"$1"; shift; exec "$@"', "zookeeper", self._own() / "pid", *run]

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.defpath, "LC_ALL": "C"}

    def _ready(self, pid: int, begin: int) -> bool:
        """Whether the server serves requests. A member of an ensemble cannot before the others run."""
        if not self._members:
            return self.mode != ""
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=2).close()
        except OSError:
            return False
        return True


class ZooKeeperEnsemble:
    """Three servers that elect a leader. Any two of them serve requests."""

    def __init__(self, size: int = 3) -> None:
        members = [f"127.0.0.1:{free_port()}:{free_port()}" for _ in range(size)]
        self.servers = tuple(
            ZooKeeperServer(port=free_port(), member=number, members=members) for number in range(1, size + 1)
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Start all servers, and return when each serves requests."""
        try:
            for server in self.servers:
                server.start()
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def wait(self) -> None:
        """Return when every server that runs serves requests."""
        deadline = time.monotonic() + START_SECONDS
        while not all(server.mode for server in self.servers if server.running):
            if time.monotonic() > deadline:
                raise SourceError("the ensemble of ZooKeeper has no leader after its start")
            time.sleep(0.05)

    def stop(self) -> None:
        for server in self.servers:
            server.kill()
            server.stop()

    @property
    def leader(self) -> ZooKeeperServer:
        return next(server for server in self.servers if server.running and server.mode == "leader")

    def url(self, path: str = "dblog") -> str:
        return f"zookeeper://{','.join(server.server for server in self.servers)}/{path}"
