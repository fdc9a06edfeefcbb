"""What `dblog run` writes is for its user alone, and what it listens on is for this machine alone."""

from __future__ import annotations

import ipaddress
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from tests.cli.program import Process
from tests.conftest import Database
from tests.spark.apps import environment
from tests.spark.home import quick_spark

pytestmark = [pytest.mark.server, pytest.mark.spark, pytest.mark.slow]
on_one = pytest.mark.parametrize("postgres", ["pg18"], indirect=True)

FILE = """
[source]
url = "{url}"
tables = ["public.*"]
[pipeline]
every = 0.2
state = "state.db"
[[sink]]
type = "ndjson"
path = "events"
[[sink]]
type = "parquet"
path = "lake"
"""


@pytest.fixture
def open_umask() -> Iterator[None]:
    """As most machines have it: all may read what is created."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def listening(pid: int) -> set[str]:
    """The addresses that a process and all its children listen on."""
    root = psutil.Process(pid)
    found: set[str] = set()
    for process in [root, *root.children(recursive=True)]:
        try:
            found |= {c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
        except psutil.NoSuchProcess:
            continue
    return found


def foreign(addresses: set[str]) -> set[str]:
    """Those that other machines can reach. Java may write an IPv4 address as one of IPv6."""
    return {a for a in addresses if not ipaddress.ip_address(a.removeprefix("::ffff:")).is_loopback}


def readable_by_others(*folders: Path) -> list[str]:
    paths = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    assert len(paths) > len(folders)
    return [f"{stat.filemode(path.stat().st_mode)} {path}" for path in paths if path.stat().st_mode & 0o077]


@on_one
@pytest.mark.usefixtures("open_umask")
def test_nobody_else_can_read_or_reach_a_pipeline(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key, n int)")
    database.execute("insert into t select i, 0 from generate_series(1, 300) i")
    (tmp_path / "shop.toml").write_text(FILE.format(url=database.url))
    (tmp_path / "process").mkdir()
    java = {"JAVA_HOME": os.environ.get("JAVA_HOME", ""), **quick_spark()}
    ours = [tmp_path / name for name in ("shop.dblog", "events", "lake")]
    with Process(tmp_path / "process", "run", tmp_path / "shop.toml", **java) as process:
        process.until(lambda: len(list(tmp_path.glob("events/public.t/*.ndjson"))) > 0, 180)
        process.until(lambda: len(list(tmp_path.glob("lake/public.t/*/_dblog"))) > 0, 180)
        addresses = listening(process.process.pid)
        assert readable_by_others(*(path for path in (tmp_path / "shop.dblog").glob("*/spool"))) == []
        process.send(signal.SIGTERM)
        assert process.wait(90) == 0, process.stderr
    assert addresses, "this test sees no sockets"
    assert foreign(addresses) == set()
    assert readable_by_others(*ours) == []


@on_one
@pytest.mark.usefixtures("open_umask")
def test_nobody_else_can_read_files_of_a_run_without_a_file(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key); insert into t values (1)")
    java = {"JAVA_HOME": os.environ.get("JAVA_HOME", ""), **quick_spark(), "DBLOG_URL": database.url}
    (tmp_path / "process").mkdir()
    options = ("--table", "public.t", "--into", tmp_path / "out", "--once", "--state", tmp_path / "state.db")
    options = (*options, "--option", f"spool={tmp_path / 'spool'}", "--option", "before=true")
    with Process(tmp_path / "process", "run", *options, **java) as process:
        assert process.wait(180) == 0, process.stderr
    (file, *_) = (tmp_path / "out").glob("public.t/*/*.parquet")
    assert "_before" in pq.read_schema(file).names
    assert readable_by_others(tmp_path / "out", tmp_path / "spool") == []


SESSION = """
import dblog, os
spark = dblog.session()
print(spark.sparkContext.uiWebUrl, "SPARK_LOCAL_IP" in os.environ, flush=True)
input()
spark.stop()
"""


def test_a_session_on_this_machine_listens_for_this_machine_alone(tmp_path: Path) -> None:
    clean = {k: v for k, v in environment().items() if k not in ("SPARK_LOCAL_IP", "MASTER")}
    command = [sys.executable, "-c", SESSION]
    with subprocess.Popen(
        command, cwd=tmp_path, env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().split() == [f"http://127.0.0.1:{ui_port(process.pid)}", "False"]
            addresses = listening(process.pid)
        finally:
            process.communicate("\n", timeout=60)
    assert len(addresses) > 0
    assert foreign(addresses) == set()


def ui_port(pid: int) -> int:
    """The port of Spark's web page, the first free one from 4040 on."""
    root = psutil.Process(pid)
    ports = [
        c.laddr.port
        for process in root.children(recursive=True)
        for c in process.net_connections("inet")
        if c.status == psutil.CONN_LISTEN and 4040 <= c.laddr.port < 4060
    ]
    assert len(ports) == 1
    return ports[0]
