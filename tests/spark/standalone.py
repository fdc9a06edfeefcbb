"""A standalone cluster of Spark: a master, and two workers that see neither the driver's files nor each other's.

A worker is a process in a mount namespace of its own, with an empty file system over the folders that it must not see.
What works there does not work because all of them happen to be on one disk.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyspark

from tests.spark.apps import environment
from tests.spark.home import QUICK_START, java_options

DEPLOY = "org.apache.spark.deploy"
EXECUTOR = "CoarseGrainedExecutorBackend"
WORKERS = 2
NO_PAGE = ("--webui-port", "0")
NAMESPACES = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])
"""Ways to start a process with mounts of its own: as root, and as another user where the system allows it."""
# $1: the number of folders to hide, then these folders, then the command.
HIDING = 'n=$1; shift; while [ $n -gt 0 ]; do mount -t tmpfs none "$1" || exit 1; shift; n=$((n - 1)); done; exec "$@"'

SMALL = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_START,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.cores.max": str(WORKERS),
    "spark.ui.enabled": "false",
}
"""Settings with which an application uses one core of each worker."""


class Cluster:
    """The running cluster: its master's URL, and its executors."""

    def __init__(self, url: str, folders: list[Path], apart: bool) -> None:
        self.url = url
        self.folders = folders
        """The work folder of each worker."""
        self.apart = apart
        """Whether the workers have file systems of their own. That needs root, or namespaces of users."""

    def started(self) -> int:
        """How many executors have been started so far, on both workers."""
        return sum(1 for folder in self.folders for _ in folder.glob("app-*/*/stderr"))

    def log(self) -> str:
        """The last lines of all executors, to be shown with a failure."""
        paths = [path for folder in self.folders for path in sorted(folder.glob("app-*/*/stderr"))]
        return "\n".join(f"--- {path}\n{path.read_text()[-2000:]}" for path in paths)


def executor_with(port: int) -> psutil.Process | None:
    """The executor that has a connection from this port: itself, or one of its Python processes. None: it is another
    process."""
    owners = (found.pid for found in psutil.net_connections("tcp") if found.laddr and found.laddr.port == port)
    for pid in filter(None, owners):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            for one in (process, *process.parents()):
                if any(EXECUTOR in word for word in one.cmdline()):
                    return one
    return None


@contextmanager
def cluster(hidden: Path) -> Iterator[Cluster]:
    """A cluster whose workers have one core each, and do not see the folder `hidden`."""
    base = Path(tempfile.mkdtemp(prefix="dblog-cluster-"))
    folders = [base / f"worker{n}" for n in range(WORKERS)]
    for folder in folders:
        folder.mkdir()
    namespace = _namespace()
    master = [f"{DEPLOY}.master.Master", "-h", "127.0.0.1", "-p", "0", *NO_PAGE]
    started = [_launch(base, "master.log", [], *master)]
    try:
        url = _said(base / "master.log", r"spark://127\.0\.0\.1:\d+")
        for n, folder in enumerate(folders):
            # on one host, Spark would read files of the other worker from the disk instead of asking it for them
            host = f"127.0.0.{n + 2}"
            others = [hidden, *(other for other in folders if other != folder)]
            before = [*namespace, "sh", "-c", HIDING, "sh", str(len(others)), *map(str, others)] if namespace else []
            size = ["-h", host, "-c", "1", "-m", "1g", "-d", str(folder), *NO_PAGE]
            started.append(_launch(folder, "worker.log", before, f"{DEPLOY}.worker.Worker", *size, url))
        for folder in folders:
            _said(folder / "worker.log", "Successfully registered with master")
        yield Cluster(url, folders, bool(namespace))
    finally:
        for one in started:
            family = psutil.Process(one.pid).children(recursive=True) if one.poll() is None else []
            one.kill()
            for each in family:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            one.wait()
        shutil.rmtree(base, ignore_errors=True)


def _namespace() -> list[str]:
    """The command before another one that gives it mounts of its own; empty if this user may not have them."""
    for command in NAMESPACES:
        with suppress(OSError):
            if subprocess.run([*command, "true"], check=False, capture_output=True).returncode == 0:
                return command
    return []


def _launch(folder: Path, name: str, before: list[str], *arguments: str) -> subprocess.Popen[bytes]:
    command = [*before, str(Path(pyspark.__file__).parent / "bin/spark-class"), *arguments]
    own = {"JDK_JAVA_OPTIONS": java_options(), "SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_DIRS": str(folder / "local")}
    with (folder / name).open("w") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={**environment(), **own, "TMPDIR": str(folder)},
            start_new_session=True,
        )


def _said(path: Path, pattern: str, seconds: float = 60.0) -> str:
    """What the pattern matches in a log, once it is there."""
    deadline = time.monotonic() + seconds
    while not (found := re.search(pattern, path.read_text())):
        assert time.monotonic() < deadline, path.read_text()[-3000:]
        time.sleep(0.2)
    return found[0]


def kill(executor: psutil.Process) -> None:
    """End an executor at once. Its Python processes find that out themselves."""
    os.kill(executor.pid, 9)
