"""A Kafka broker of one's own, for tests: one node that is broker and controller, and forgets everything when it stops.

It listens on 127.0.0.1 only. `scripts/kafka.sh` puts its programs below the virtual environment.
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
from dblog.testing.server_process import OwnServer, free_port

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
    # After a crash it waits this long for its earlier life to be given up.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
}
# It starts soon rather than run fast, and says on standard error when it has started or what is wrong.
JAVA_OPTIONS = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
)
# $1 the pid file, $2 the broker's own directory. A line on the pipe says that the broker is already down; its end says
# that the owner is gone.
GUARD = """
read -r _ || { kill -9 "$(cat "$1")"; sleep 0.2; }
rm -rf "$2"
"""


@dataclass(frozen=True)
class Install:
    """A Java, and the folder of a broker's jars."""

    java: Path
    jars: Path

    def command(self, program: str, *arguments: str | Path) -> list[str | Path]:
        return [self.java, *JAVA_OPTIONS, "-cp", f"{self.jars}/*", program, *arguments]


def find_kafka(root: Path | None = None) -> Install | None:
    """The one in `root`, by default where `scripts/kafka.sh` puts it; None if it, or a Java, is not there."""
    jars = root or Path(sys.prefix) / "kafka" / "broker"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    return Install(Path(java), jars) if java and jars.is_dir() else None


class KafkaBroker(OwnServer):
    """Kafka. Topics that are written to and do not exist are made, with three partitions."""

    _scheme = "kafka"
    _shutdown = signal.SIGTERM
    _crash = signal.SIGKILL
    _taken = "Address already in use"

    def __init__(self, install: Install | None = None, *, settings: Mapping[str, str] | None = None) -> None:
        install = install or find_kafka()
        if install is None:
            raise ConfigError("there is no Kafka, or no Java", hint="run scripts/kafka.sh .venv; set JAVA_HOME")
        super().__init__()
        self._install = install
        self._settings = {**SETTINGS, **(settings or {})}

    def __repr__(self) -> str:
        return f"KafkaBroker({f'port={self._port}' if self.running else 'stopped'})"

    @property
    def servers(self) -> str:
        """Where to connect, as `bootstrap.servers` has it."""
        return f"127.0.0.1:{self._port}"

    def _prepare(self) -> None:
        """Make the broker's own directory. The guard comes first so that nothing is left behind."""
        self._home = home = Path(tempfile.mkdtemp(prefix="dblog-kafka-"))
        self._watch(GUARD, home / "pid", home)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        options = ["format", f"--cluster-id={cluster}", f"--config={self._written(free_port())}"]
        command = self._install.command("kafka.tools.StorageTool", *options)
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/", env=self._environment())
        if done.returncode:
            raise SourceError(f"kafka could not make its storage: {(done.stderr or done.stdout).strip()[-2000:]}")

    def _written(self, port: int) -> Path:
        """The file of its settings. The controller is the broker's own affair: it has another port in each life."""
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
        """The guard must know the process, and Java does not say what it is: the shell does before it becomes Java."""
        run = self._install.command("kafka.Kafka", self._written(self._port))
        return ["/bin/sh", "-c", 'echo $$ >"$1"; shift; exec "$@"', "kafka", self._own() / "pid", *run]

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.defpath, "LC_ALL": "C"}

    def _ready(self, pid: int, begin: int) -> bool:
        return "Kafka Server started" in self._said(begin)
