"""Programs on a standalone cluster: two workers with file systems of their own, and executors that are killed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
import pyspark
import pytest

from dblog.testing.object_server import ObjectServer
from tests.cli.program import PROGRAM, Process, document
from tests.conftest import Database
from tests.sinks.target import replayed
from tests.spark.apps import delivered, environment, running
from tests.spark.holding import HoldingProxy
from tests.spark.home import quick_spark
from tests.spark.standalone import SMALL, Cluster, cluster, executor_with, kill

pytestmark = [
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.parametrize("postgres", ["pg18"], indirect=True),
]

ROWS = 600


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests of the file. Its workers see no folder of a test."""
    with cluster(hidden=tmp_path_factory.getbasetemp()) as running:
        yield running


# -- a program with a stream -------------------------------------------------------------------------------------------


def test_a_cluster_dumps_and_follows(
    database: Database, spark_cluster: Cluster, tmp_path: Path, object_server: ObjectServer, bucket: str
) -> None:
    database.execute("create table t (id int primary key, n int)")
    database.execute("insert into t select i, 0 from generate_series(1, 5000) i")
    options = {"url": database.url, "table": "public.t", "chunkRows": 500, "parallelism": 4}
    options |= {"spool": f"{bucket}/spool", **object_server.storage.options()}
    before = spark_cluster.started()
    with running(tmp_path, options, master=spark_cluster.url, conf=SMALL) as app:
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
    assert spark_cluster.started() == before + 2, "both workers had an executor"


# -- dblog run ---------------------------------------------------------------------------------------------------------


class Pipeline:
    """`dblog run` on the cluster, with its spool, its checkpoint and its lake in a bucket."""

    def __init__(self, database: Database, cluster: Cluster, folder: Path, objects: ObjectServer, uri: str) -> None:
        self.database, self.cluster, self.folder, self.objects, self.uri = database, cluster, folder, objects, uri
        self.target = Database(database.server, f"{database.name}_target")
        self.password = database.url.split(":")[2].split("@")[0]
        from_executor = lambda port: executor_with(port) is not None  # noqa: E731
        self.to_source = HoldingProxy(database.server, from_executor)
        self.to_target = HoldingProxy(database.server, from_executor)
        self.to_bucket = HoldingProxy(objects, from_executor)

    @property
    def environment(self) -> dict[str, str]:
        (self.folder / "tmp").mkdir(exist_ok=True)
        storage = self.objects.storage
        return {
            "SHOP_PASSWORD": self.password,
            "TARGET_URL": self.to_target.through(self.target.url),
            "STORAGE_ACCESS_KEY": str(storage.access_key),
            "STORAGE_SECRET_KEY": str(storage.secret_key),
            "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
            "TMPDIR": str(self.folder / "tmp"),
            **quick_spark(),
        }

    def write(self, *, sinks: list[str], more: str = "", master: str = "") -> Path:
        url = self.to_source.through(self.database.url).replace(f":{self.password}@", "@")
        settings = "\n".join(f'"{name}" = "{value}"' for name, value in SMALL.items())
        path = self.folder / "shop.toml"
        path.write_text(
            f"""
[source]
url = "{url}"
password = {{ env = "SHOP_PASSWORD" }}
tables = ["public.*"]
options = {{ chunkRows = 100, parallelism = 2 }}
[pipeline]
every = 1
state = "state.db"
{more}
[storage]
endpoint = "http://127.0.0.1:{self.to_bucket.port}"
access_key = {{ env = "STORAGE_ACCESS_KEY" }}
secret_key = {{ env = "STORAGE_SECRET_KEY" }}
[spark]
{master}
[spark.settings]
{settings}
"""
            + "".join(f"[[sink]]\n{sink}\n" for sink in sinks)
        )
        return path

    # -- what the sinks have -----------------------------------------------------------------------------------------

    def events(self) -> list[dict[str, Any]]:
        """What the complete batches of the sink `parquet` have, in the order of the batches."""
        names = self.objects.names(f"{self.uri}/parquet/public.t")
        complete = [name.rpartition("/")[0] for name in names if name.endswith("/_dblog")]
        complete.sort(key=lambda name: int(name.rpartition("=")[2]))
        objects = [self.objects.objects(f"s3://{folder}") for folder in complete]
        files = [file for batch in objects for name, file in sorted(batch.items()) if name.endswith(".parquet")]
        rows = [row for file in files for row in pq.read_table(io.BytesIO(file)).to_pylist()]
        return [{"op": r["_op"], "lsn": r["_lsn"], "seq": r["_seq"], "key": (r["id"],), "row": r} for r in rows]

    def of_parquet(self) -> dict[int, int]:
        return {row["id"]: row["n"] for row in replayed(self.events()).values()}

    def of_delta(self) -> dict[int, int]:
        options = self.objects.storage.delta_options()
        rows = deltalake.DeltaTable(f"{self.uri}/lake/public.t", storage_options=options).to_pyarrow_table()
        assert rows.num_rows == len(set(rows["id"].to_pylist())), "no key is there twice"
        return dict(zip(rows["id"].to_pylist(), rows["n"].to_pylist(), strict=True))

    def of_sql(self) -> dict[int, int]:
        return dict(self.target.execute("select id, n from public.t"))  # type: ignore[arg-type]

    def of_source(self) -> dict[int, int]:
        return dict(self.database.execute("select id, n from t"))  # type: ignore[arg-type]


@pytest.fixture
def pipeline(
    database: Database, spark_cluster: Cluster, tmp_path: Path, object_server: ObjectServer, bucket: str
) -> Iterator[Pipeline]:
    database.execute("create table t (id int primary key, n int, note text)")
    database.execute(f"insert into t select i, 0 from generate_series(1, {ROWS}) i")
    made = Pipeline(database, spark_cluster, tmp_path, object_server, bucket)
    made.target.create()
    yield made
    for proxy in (made.to_source, made.to_target, made.to_bucket):
        proxy.close()
    made.target.drop()


@contextmanager
def writer(database: Database) -> Iterator[None]:
    """Counts up the rows, one after the other, while the body runs. A row's `n` grows by one with each change."""
    ended = threading.Event()

    def write() -> None:
        session = database.connect()
        number = 0
        while not ended.wait(0.05):
            number += 1
            session.cursor().execute("update t set n = n + 1 where id = %s", [number * 7 % ROWS + 1])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


SINKS = {
    "lake": 'type = "delta"\nname = "lake"\npath = "{uri}/lake"',
    "sql": 'type = "sql"\nname = "sql"\nurl = {{ env = "TARGET_URL" }}',
    "files": 'type = "parquet"\nname = "files"\npath = "{uri}/parquet"',
}


def kill_holder(life: Process, proxy: HoldingProxy) -> None:
    """Kill the executor that has sent the request that the proxy holds."""
    life.until(proxy.held.is_set, 120)
    executor = executor_with(proxy.port_of_client)
    assert executor is not None
    kill(executor)
    executor.wait(20)
    proxy.let_go()


def test_dblog_run_survives_executors_that_are_killed_while_they_select_and_while_they_write(
    pipeline: Pipeline, request: pytest.FixtureRequest
) -> None:
    thorough = request.config.getoption("--thorough")
    sinks = {name: sink for name, sink in SINKS.items() if thorough or name != "sql"}
    found = {"lake": pipeline.of_delta, "sql": pipeline.of_sql, "files": pipeline.of_parquet}
    bucket = pipeline.uri.removeprefix("s3://").encode()
    writes = {
        "lake": (pipeline.to_bucket, rb"(PUT|POST) /" + bucket + rb"/lake/[^ ]*\.parquet"),
        "sql": (pipeline.to_target, rb"copy .*from stdin"),
        "files": (pipeline.to_bucket, rb"(PUT|POST) /" + bucket + rb"/parquet/[^ ]*\.parquet"),
    }
    path = pipeline.write(
        sinks=[sink.format(uri=pipeline.uri) for sink in sinks.values()], more=f'folder = "{pipeline.uri}/kept"'
    )
    started = pipeline.cluster.started()
    lake = ("--pipeline", "shop_lake", "--state", pipeline.folder / "state.db")
    with Process(pipeline.folder, "run", path, "--master", pipeline.cluster.url, **pipeline.environment) as life:
        try:
            with writer(pipeline.database):
                # the first dumps
                life.until(lambda: life.stderr.count("all dumps have ended") == len(sinks), 240)
                assert pipeline.cluster.started() == started + 2, "both workers have an executor"
                for _ in range(3 if thorough else 1):
                    # in mid-select: the rows of a chunk are on their way
                    pipeline.to_source.hold(rb"copy \(select.*to stdout", answer=True)
                    dump = document("dump", "public.t", *lake)
                    kill_holder(life, pipeline.to_source)
                    life.until(lambda: document("dumps", dump["id"], *lake)["state"] == "completed", 120)  # noqa: B023
                    # in mid-write: the driver would write a small batch itself
                    for sink in sinks:
                        proxy, pattern = writes[sink]
                        proxy.hold(pattern)
                        pipeline.database.execute("update t set n = n + 1, note = repeat(md5(n::text), 200)")
                        kill_holder(life, proxy)
            expected = pipeline.of_source()
            for sink in sinks:
                life.until(lambda: found[sink]() == expected, 120)  # noqa: B023
        except AssertionError:
            print(pipeline.cluster.log())
            raise
        life.send(2)
        assert life.wait(60) == 130, life.stderr[-3000:]
    check_log(pipeline.events(), expected)
    assert pipeline.cluster.started() >= started + 2 + 1 + len(sinks)
    assert not (pipeline.folder / "shop.dblog").exists()


def check_log(events: list[dict[str, Any]], expected: dict[int, int]) -> None:
    """Each change of a row is there once and in order: its `n` grows by one from change to change."""
    last: dict[int, int] = {}
    order: dict[int, tuple[int, int]] = {}
    for event in events:
        row, at = event["row"], (event["lsn"], event["seq"])
        assert at >= order.get(row["id"], at), "no key goes back"
        order[row["id"]] = at
        if row["id"] in last:
            assert row["n"] - last[row["id"]] == (event["op"] == "update"), (row, last[row["id"]])
        last[row["id"]] = row["n"]
    assert last == expected


SCRIPT = "from dblog.cli import main\nmain()\n"


@pytest.mark.parametrize("apart", ["spool", "lake"])
def test_a_folder_that_executors_do_not_see_is_refused(pipeline: Pipeline, apart: str) -> None:
    if not pipeline.cluster.apart:
        pytest.skip("this user may not have mounts of its own")
    path = pipeline.write(
        sinks=['type = "delta"\npath = "' + ("lake" if apart == "lake" else f"{pipeline.uri}/lake") + '"'],
        more="" if apart == "spool" else f'spool = "{pipeline.uri}/spool"',
        master=f'master = "{pipeline.cluster.url}"' if apart == "lake" else "",
    )
    if apart == "spool":  # started by Spark, which names the master
        script = pipeline.folder / "run_dblog.py"
        script.write_text(SCRIPT)
        settings = [word for name, value in SMALL.items() for word in ("--conf", f"{name}={value}")]
        command = [Path(pyspark.__file__).parent / "bin/spark-submit", "--master", pipeline.cluster.url, *settings]
    else:
        command, script = PROGRAM, None
    done = subprocess.run(
        [*map(str, command), *([str(script)] if script else []), "run", str(path), "--once"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**environment(), **pipeline.environment, "PYSPARK_DRIVER_PYTHON": sys.executable},
    )
    said = " ".join((done.stdout + done.stderr).split())  # Spark passes on all that its program says as output
    where = {"spool": "on the spool '" + str(pipeline.folder / "shop.dblog/delta/spool"), "lake": "in '"}[apart]
    assert f"do not see the driver's files {where}" in said, said[-3000:]
    assert "like s3://bucket/path" in said
    assert done.returncode == 2
    assert not pipeline.database.execute("select 1 from pg_replication_slots where database = current_database()")
    assert not list(pipeline.folder.rglob(".dblog-*"))
