"""A Kafka broker for tests: one node that is broker and controller. Its data are removed when it stops.

It listens on 127.0.0.1 only. `scripts/kafka.sh` installs its programs in the virtual environment.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dblog.errors import ConfigError, SourceError
from dblog.testing.server_process import GUARD, OwnServer, free_port

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "BROKER",
    "controller.listener.names": "CONTROLLER",
    "num.partitions": "3",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # After a crash the broker waits this long until its earlier session has expired.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
}
# Options for a fast start instead of high speed, and for messages on standard error.
JAVA_OPTIONS = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
)


@dataclass(frozen=True)
class Install:
    """A Java program, and the folder of Kafka's jars."""

    java: Path
    jars: Path

    def command(self, program: str, *arguments: str | Path) -> list[str | Path]:
        return [self.java, *JAVA_OPTIONS, "-cp", f"{self.jars}/*", program, *arguments]


def find_kafka(root: Path | None = None) -> Install | None:
    """The Kafka in `root`, by default the folder of `scripts/kafka.sh`; None without Kafka or Java."""
    jars = root or Path(sys.prefix) / "kafka" / "broker"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    return Install(Path(java), jars) if java and jars.is_dir() else None


class KafkaBroker(OwnServer):
    """A Kafka broker. It creates missing topics on write, with three partitions."""

    _scheme = "kafka"
    _shutdown = signal.SIGTERM
    _crash = signal.SIGKILL
    _taken = "Address already in use"

    def __init__(self, install: Install | None = None, *, settings: Mapping[str, str] | None = None) -> None:
        install = install or find_kafka()
        if install is None:
            raise ConfigError("Kafka or Java is not installed", hint="run scripts/kafka.sh .venv; set JAVA_HOME")
        super().__init__()
        self._install = install
        self._settings = {**SETTINGS, **(settings or {})}

    def __repr__(self) -> str:
        return f"KafkaBroker({f'port={self._port}' if self.running else 'stopped'})"

    @property
    def servers(self) -> str:
        """The address, as for `bootstrap.servers`."""
        return f"127.0.0.1:{self._port}"

    def _prepare(self) -> None:
        """Create the broker's directory. The guard is started first, so that nothing is left behind."""
        self._home = home = Path(tempfile.mkdtemp(prefix="dblog-kafka-"))
        self._watch(GUARD, home / "pid", home)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        options = ["format", f"--cluster-id={cluster}", f"--config={self._written(free_port())}"]
        command = self._install.command("kafka.tools.StorageTool", *options)
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/", env=self._environment())
        if done.returncode:
            raise SourceError(f"kafka could not create its storage: {(done.stderr or done.stdout).strip()[-2000:]}")

    def _written(self, port: int) -> Path:
        """Write the file of settings. The controller gets a new port at every start."""
        controller = f"127.0.0.1:{free_port()}"
        folders = {
            "listeners": f"BROKER://127.0.0.1:{port},CONTROLLER://{controller}",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self.data),
        }
        path = self._own() / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in {**self._settings, **folders}.items()))
        return path

    def _command(self) -> list[str | Path]:
        """A shell that writes its process id for the guard and then becomes Java, which would not write it."""
        run = self._install.command("kafka.Kafka", self._written(self._port))
        return ["/bin/sh", "-c", 'echo $$ >"$1"; shift; exec "$@"', "kafka", self._own() / "pid", *run]

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.defpath, "LC_ALL": "C"}

    def _ready(self, pid: int, begin: int) -> bool:
        return "Kafka Server started" in self._said(begin)
