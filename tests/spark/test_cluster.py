"""A standalone cluster: a master, two workers, and executors in processes of their own."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

from tests.conftest import Database
from tests.spark.apps import delivered, environment, running
from tests.spark.home import java_options

pytestmark = [
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.parametrize("postgres", ["pg18"], indirect=True),
]

DEPLOY = "org.apache.spark.deploy"
NO_PAGE = ("--webui-port", "0")


def launch(folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [Path(pyspark.__file__).parent / "bin/spark-class", *arguments]
    with (folder / name).open("w") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={**environment(), "JDK_JAVA_OPTIONS": java_options(), "SPARK_NO_DAEMONIZE": "1"},
            start_new_session=True,
        )


def said(path: Path, pattern: str, seconds: float = 60.0) -> str:
    """What the pattern matches in a log, once it is there."""
    deadline = time.monotonic() + seconds
    while not (found := re.search(pattern, path.read_text())):
        assert time.monotonic() < deadline, path.read_text()[-3000:]
        time.sleep(0.2)
    return found[0]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a cluster of two workers with one core each."""
    started = [launch(tmp_path, "master.log", f"{DEPLOY}.master.Master", "-h", "127.0.0.1", "-p", "0", *NO_PAGE)]
    try:
        url = said(tmp_path / "master.log", r"spark://127\.0\.0\.1:\d+")
        for n in range(2):
            size = ["-h", "127.0.0.1", "-c", "1", "-m", "1g", "-d", str(tmp_path / f"work{n}"), *NO_PAGE]
            started.append(launch(tmp_path, f"worker{n}.log", f"{DEPLOY}.worker.Worker", *size, url))
        for n in range(2):
            said(tmp_path / f"worker{n}.log", "Successfully registered with master")
        yield url
    finally:
        for one in started:
            family = psutil.Process(one.pid).children(recursive=True) if one.poll() is None else []
            one.kill()
            for each in family:
                if each.is_running():
                    each.kill()
            one.wait()


def test_a_cluster_dumps_and_follows(database: Database, master: str, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key, n int)")
    database.execute("insert into t select i, 0 from generate_series(1, 5000) i")
    options = {"url": database.url, "table": "public.t", "chunkRows": 500, "parallelism": 4}
    settings = {
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.pyspark.python": sys.executable,
        "spark.cores.max": "2",
        "spark.ui.enabled": "false",
    }
    with running(tmp_path, options, master=master, conf=settings) as app:
        app.until(lambda: bool(list((tmp_path / "out").glob("*.json"))), 120)
        for n in range(10):
            database.execute("update t set n = n + 1 where id %% 10 = %s", [n])
            database.execute("delete from t where id = %s", [n * 7 + 1])
        database.execute("insert into t values (-1, 0)")
        app.until(lambda: (-1,) in delivered(tmp_path).state(), 120)
        app.until(lambda: len(delivered(tmp_path).state()) == 4991, 60)
    history = delivered(tmp_path)
    history.check_order()
    history.check_state([{"id": i, "n": n} for i, n in database.execute("select id, n from t")])
    # more than one executor has read chunks: each has its own connection
    homes = {p for n in range(2) for p in (tmp_path / f"work{n}").glob("app-*/*/stderr")}
    assert len(homes) == 2
