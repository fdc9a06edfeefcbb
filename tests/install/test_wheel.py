"""The wheel as a user installs it: in an environment without the development extras, with every sink that needs no
connector of a lake, the demo, the HTTP API and `readStream`.

The tests share one environment, and come in this order: first what `pip install dblog` must be able to do, then what
needs an extra.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dblog import __version__
from dblog.testing.kafka_broker import KafkaBroker, find_kafka
from dblog.testing.mysql_server import MySQLServer
from dblog.testing.postgres_server import PostgresServer
from dblog.testing.server_process import free_port
from tests.conftest import EVERY_MYSQL_SERVER
from tests.families import AnyDatabase, OnMySQL, OnPostgres
from tests.install.bare import ROOT, Bare, run
from tests.sinks.endpoint import Endpoint
from tests.spark.home import CONNECTORS

pytestmark = [pytest.mark.server, pytest.mark.spark, pytest.mark.slow]

ROWS = [(i, f"row {i}") for i in range(1, 31)]
MYSQL = EVERY_MYSQL_SERVER[:1]
"""One of them is enough; the tests of sinks have all."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    folder = tmp_path_factory.mktemp("bare")
    made = Bare(folder)
    made.install()
    yield made
    shutil.rmtree(folder, ignore_errors=True)  # most of a gigabyte


@pytest.fixture(scope="module")
def with_extras(bare: Bare) -> Bare:
    bare.install("[http,demo]")
    return bare


@contextmanager
def fresh(database: AnyDatabase) -> Iterator[AnyDatabase]:
    database.create()
    yield database
    database.drop()


def name() -> str:
    return f"test_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def source(servers: dict[str, PostgresServer]) -> Iterator[OnPostgres]:
    with fresh(OnPostgres(servers["pg18"].start(), name())) as database:
        fill(database)
        yield database


def fill(database: AnyDatabase) -> None:
    database.execute(
        "create table t (id int primary key, note varchar(100))",
        "insert into t values " + ", ".join(f"({key}, '{note}')" for key, note in ROWS),
    )


def password_of(url: str) -> str:
    found = re.search(r"://[^:/@]+:([^@]+)@", url)
    assert found is not None
    return found[1]


def events(lines: str) -> list[tuple[Any, Any]]:
    """The rows of envelopes, sorted."""
    rows = [json.loads(line)["after"] for line in lines.splitlines()]
    return sorted((row["id"], row["note"]) for row in rows)


# -- pip install dblog ---------------------------------------------------------------------------------------------

EVERY_MODULE = """
import importlib, pkgutil, dblog, pyspark_dblog
extra = ("dblog.control", "dblog.sinks.lake.native.delta", "dblog.sinks.lake.native.iceberg")
found = [m.name for m in pkgutil.walk_packages(dblog.__path__, "dblog.") if not m.name.startswith(extra)]
for name in found:
    importlib.import_module(name)
print(*found)
"""


def test_every_module_but_those_of_extras_is_imported(bare: Bare, tmp_path: Path) -> None:
    found = bare.python(EVERY_MODULE, tmp_path).split()
    assert {"dblog.sinks.ndjson", "dblog.sinks.sql.sink", "dblog.sinks.kafka", "dblog.demo.demo"} <= set(found)


def test_the_wheel_and_the_program_have_the_version_of_the_package(bare: Bare, tmp_path: Path) -> None:
    assert bare.wheel.name.split("-")[:2] == ["dblog", __version__]
    assert bare.dblog("--version", folder=tmp_path)[0] == f"dblog {__version__}\n"


def test_what_needs_an_extra_names_it(bare: Bare, tmp_path: Path) -> None:
    _, err = bare.dblog("serve", folder=tmp_path, code=2)
    assert "pip install 'dblog[http]'" in err
    _, err = bare.dblog("demo", folder=tmp_path, code=2)
    assert "pip install 'dblog[demo]'" in err


def test_a_lake_names_its_extra_at_every_step(bare: Bare, source: OnPostgres, tmp_path: Path) -> None:
    environment = {"SHOP_PASSWORD": password_of(source.url)}
    arguments = ("init", "--sink", "delta", "-o", "shop.toml")
    _, err = bare.dblog(*arguments, folder=tmp_path, DBLOG_URL=source.url)
    assert "pip install 'dblog[delta]'" in err
    out, _ = bare.dblog("check", "shop.toml", folder=tmp_path, code=1, **environment)
    assert "pip install 'dblog[delta]'" in out
    _, err = bare.dblog("run", "shop.toml", "--once", folder=tmp_path, code=2, **environment)
    assert "pip install 'dblog[delta]'" in err
    _, err = bare.dblog("demo", "--sink", "delta", folder=tmp_path, code=2)
    assert "pip install 'dblog[demo,delta]'" in err


SINKS = """
[[sink]]
type = "stdout"
[[sink]]
type = "noop"
[[sink]]
type = "parquet"
path = "lake"
[[sink]]
type = "sql"
url = { env = "POSTGRES_TARGET" }
schema = "copy"
[[sink]]
type = "http"
url = { env = "ENDPOINT" }
[[sink]]
type = "python"
target = "count:Count"
settings = { into = "counted" }
"""
MYSQL_SINK = """
[[sink]]
type = "sql"
name = "my"
url = { env = "MYSQL_TARGET" }
schema = "%s"
records = "%s"
"""
KAFKA_SINK = """
[[sink]]
type = "kafka"
servers = "%s"
package = "none"
"""
COUNT = """
from pathlib import Path

class Count:
    def __init__(self, settings):
        self.path = Path(settings["into"])

    def write(self, batch):
        for table in batch.tables:
            if table.rows is not None:
                frame = table.rows.mapInArrow(lambda parts: parts, table.rows.schema)
                self.path.write_text(str(frame.count()))
"""


def test_a_pipeline_reaches_every_sink(
    bare: Bare,
    source: OnPostgres,
    servers: dict[str, PostgresServer],
    mysql_servers: dict[str, MySQLServer],
    tmp_path: Path,
) -> None:
    endpoint = Endpoint()
    with (
        closing(endpoint),
        fresh(OnPostgres(servers["pg18"], name())) as target,
        several(mysql_servers) as my_target,
        kafka(tmp_path) as broker,
    ):
        environment = {"SHOP_PASSWORD": password_of(source.url)}
        bare.dblog("init", "-o", "shop.toml", folder=tmp_path, DBLOG_URL=source.url)
        file = tmp_path / "shop.toml"
        file.write_text(file.read_text() + SINKS)
        (tmp_path / "count.py").write_text(COUNT)
        environment |= {"POSTGRES_TARGET": target.url, "ENDPOINT": endpoint.url}
        if my_target is not None:
            file.write_text(file.read_text() + MYSQL_SINK % (my_target.name, my_target.name))
            environment["MYSQL_TARGET"] = my_target.url
        if broker is not None:
            file.write_text(file.read_text() + KAFKA_SINK % broker.servers)
            environment["SPARK_CONF_DIR"] = str(tmp_path / "conf")
        checked, _ = bare.dblog("check", "shop.toml", folder=tmp_path, **environment)
        assert "ready" in checked
        out, err = bare.dblog("run", "shop.toml", "--once", folder=tmp_path, **environment)

        assert events(out) == ROWS, err
        written = sorted((tmp_path / "shop-changes" / "public.t").glob("*.ndjson"))
        assert events("".join(path.read_text() for path in written)) == ROWS
        files = (tmp_path / "lake" / "public.t").glob("*/*.parquet")
        rows = [row for path in files for row in pq.read_table(path, partitioning=None).to_pylist()]
        assert sorted((row["id"], row["note"]) for row in rows) == ROWS
        assert target.execute("select id, note from copy.t order by id") == ROWS
        posted = [event["after"] for request in endpoint.taken() for event in request.events]
        assert sorted((row["id"], row["note"]) for row in posted) == ROWS
        assert (tmp_path / "counted").read_text() == str(len(ROWS))
        if my_target is not None:
            assert my_target.execute("select id, note from t order by id") == ROWS
        if broker is not None:
            assert re.search(r"kafka: batch .* 30 rows of dumps", err)


@contextmanager
def several(servers: dict[str, MySQLServer]) -> Iterator[OnMySQL | None]:
    """A database of MySQL or MariaDB, where one is installed."""
    if not MYSQL:
        yield None
        return
    with fresh(OnMySQL(servers[MYSQL[0]].start(), name())) as database:
        assert isinstance(database, OnMySQL)
        yield database


@contextmanager
def kafka(folder: Path) -> Iterator[KafkaBroker | None]:
    """A broker, where it and Spark's connector could be fetched. Spark is told of the connector by its own settings."""
    if find_kafka() is None or not CONNECTORS.exists():
        yield None
        return
    (folder / "conf").mkdir()
    jars = ",".join(str(jar) for jar in sorted(CONNECTORS.glob("*.jar")))
    (folder / "conf" / "spark-defaults.conf").write_text(f"spark.jars {jars}\n")
    with KafkaBroker() as broker:
        yield broker


@pytest.mark.parametrize("server", MYSQL)
def test_a_file_that_init_wrote_runs_as_it_is(
    bare: Bare, mysql_servers: dict[str, MySQLServer], server: str, tmp_path: Path
) -> None:
    with fresh(OnMySQL(mysql_servers[server].start(), name())) as database:
        fill(database)
        bare.dblog("init", "-o", "shop.toml", folder=tmp_path, DBLOG_URL=database.url)
        environment = {"SHOP_PASSWORD": password_of(database.url)}
        bare.dblog("check", "shop.toml", folder=tmp_path, **environment)
        bare.dblog("run", "shop.toml", "--once", folder=tmp_path, **environment)
        written = sorted((tmp_path / "shop-changes" / f"{database.schema}.t").glob("*.ndjson"))
        assert events("".join(path.read_text() for path in written)) == ROWS


READ_STREAM = """
import os, dblog
spark = dblog.session()
rows = spark.readStream.format("dblog").option("url", os.environ["DBLOG_URL"]).option("table", "public.t").load()
query = rows.writeStream.option("checkpointLocation", "checkpoint").format("parquet").option("path", "out")
query.trigger(availableNow=True).start().awaitTermination()
print(*sorted(row.id for row in spark.read.parquet("out").collect()))
"""


def test_a_program_reads_the_stream(bare: Bare, source: OnPostgres, tmp_path: Path) -> None:
    printed = bare.python(READ_STREAM, tmp_path, DBLOG_URL=source.url)
    assert printed.splitlines()[-1].split() == [str(key) for key, _ in ROWS]


# -- pip install 'dblog[http,demo]' --------------------------------------------------------------------------------


def test_the_http_api_is_served(with_extras: Bare, tmp_path: Path) -> None:
    place = f"127.0.0.1:{free_port()}"
    command = [with_extras.bin / "dblog", "serve", "--http", place]
    with subprocess.Popen(command, cwd=tmp_path, env=with_extras.environment(), stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            assert b"serving" in process.stderr.readline()
            with urllib.request.urlopen(f"http://{place}/openapi.json") as answer:
                assert "/api/v1/pipelines" in json.load(answer)["paths"]
            for file in ("", "page/main.js", "page/style.css", "page/vendor/uPlot.LICENSE.txt"):
                with urllib.request.urlopen(f"http://{place}/{file}") as answer:
                    assert answer.status == 200
            with urllib.request.urlopen(f"http://{place}/metrics") as answer:
                assert answer.status == 200
        finally:
            process.terminate()


def test_the_demo_converges(with_extras: Bare, tmp_path: Path) -> None:
    out, _ = with_extras.dblog("demo", "--seconds", 1, "--rows", 3000, folder=tmp_path)
    assert re.search(r"converged: .* 0 differences", out)


# -- the image ------------------------------------------------------------------------------------------------------


def test_what_the_dockerfile_installs_can_be_installed_and_run(with_extras: Bare, tmp_path: Path) -> None:
    file = (ROOT / "Dockerfile").read_text()
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", file, re.MULTILINE)
    (command,) = re.findall(r"^RUN (pip install .*)$", file, re.MULTILINE)
    command = command.replace("/dist/", f"{with_extras.wheel.parent}/").replace(" --no-cache-dir", " -q")
    path = {"PATH": f"{with_extras.bin}:{os.environ['PATH']}"}
    installs = {**os.environ, **path, "EXTRAS": extras}
    installs.pop("PYTHONPATH", None)
    done = run("sh", "-euc", command, folder=tmp_path, environment=installs)
    assert done.returncode == 0, done.stderr[-3000:]
    entry = run(
        ROOT / "deploy/docker/entrypoint.sh", "--version", folder=tmp_path, environment=with_extras.environment(**path)
    )
    assert entry.stdout == f"dblog {__version__}\n", entry.stderr
    with_extras.python("import deltalake, fastapi, pyiceberg, uvicorn", tmp_path)
