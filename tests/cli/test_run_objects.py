"""`dblog run FILE` with everything on object storage: checkpoint, spool and files, by one set of credentials."""

from __future__ import annotations

import io
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from dblog.testing.object_server import ObjectServer
from tests.cli.program import Process, dblog
from tests.cli.test_run_file import Shop, on_one, shop
from tests.conftest import Database
from tests.sinks.target import replayed
from tests.spark.home import quick_spark

__all__ = ["shop"]

pytestmark = [pytest.mark.server, pytest.mark.spark, pytest.mark.slow, on_one]

STORAGE = """
[storage]
endpoint = "{endpoint}"
region = "us-east-1"
access_key = {{ env = "STORAGE_ACCESS_KEY" }}
secret_key = {{ env = "STORAGE_SECRET_KEY" }}
"""


class Bucket:
    """A shop whose pipeline has all its files in a bucket."""

    def __init__(self, shop: Shop, server: ObjectServer, uri: str) -> None:
        self.shop = shop
        self.server = server
        self.uri = uri

    @property
    def secrets(self) -> list[str]:
        return [self.shop.password, str(self.server.storage.access_key), str(self.server.storage.secret_key)]

    def write(self) -> Path:
        kinds = [("parquet", "s3a"), ("ndjson", "s3")]
        sinks = [f'type = "{kind}"\npath = "{self.uri.replace("s3:", scheme + ":")}/{kind}"' for kind, scheme in kinds]
        storage = STORAGE.format(endpoint=self.server.storage.endpoint)
        return self.shop.write(*sinks, more=f'folder = "{self.uri}/kept"\n{storage}')

    def life(self, *arguments: object, keys: tuple[str, str] = ("STORAGE_ACCESS_KEY", "STORAGE_SECRET_KEY")) -> Process:
        """A life of the program, with the keys in these variables of its environment."""
        folder = self.shop.folder / f"life{len(self.shop.lives)}"
        folder.mkdir()
        environment = {
            "SHOP_PASSWORD": self.shop.password,
            "DBLOG_URL": self.shop.database.url,
            "DBLOG_STATE": str(self.shop.folder / "elsewhere.db"),
            "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
            keys[0]: str(self.server.storage.access_key),
            keys[1]: str(self.server.storage.secret_key),
            **quick_spark(),
        }
        process = Process(folder, "run", *arguments, **environment)
        self.shop.lives.append(process)
        return process

    def names(self, below: str) -> list[str]:
        root = self.uri.removeprefix("s3://")
        return [name.removeprefix(f"{root}/") for name in self.server.names(f"{self.uri}/{below}")]

    def parquet_events(self, folder: str = "parquet") -> list[dict[str, Any]]:
        found = self.server.objects(f"{self.uri}/{folder}/public.t")
        files = [content for name, content in sorted(found.items()) if name.endswith(".parquet")]
        rows = [row for content in files for row in pq.read_table(io.BytesIO(content)).to_pylist()]
        return [event(row["_op"], row["_lsn"], row["_seq"], {"id": row["id"], "n": row["n"]}) for row in rows]

    def ndjson_events(self) -> list[dict[str, Any]]:
        found = self.server.objects(f"{self.uri}/ndjson/public.t")
        assert not [name for name in found if "/." in name], "a temporary file is left"
        rows = [json.loads(line) for _, content in sorted(found.items()) for line in content.splitlines()]
        return [event(r["op"], r["lsn"], r["seq"], r["after"] or {**r["key"], "n": None}) for r in rows]


def event(op: str, lsn: int, seq: int, row: dict[str, Any]) -> dict[str, Any]:
    return {"op": op, "lsn": lsn, "seq": seq, "key": (row["id"],), "row": row}


@pytest.fixture
def everything(shop: Shop, object_server: ObjectServer, bucket: str) -> Bucket:
    return Bucket(shop, object_server, bucket)


def command_lines(life: Process) -> list[str]:
    """The command lines of a life's processes, which everybody on the machine can see."""
    found = []
    mine = psutil.Process(life.process.pid)
    for process in (mine, *mine.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended meanwhile
            found.append(" ".join(process.cmdline()))
    return found


def check(database: Database, events: list[dict[str, Any]]) -> None:
    """Each change is there once, and together they give the table's rows."""
    changes = [(e["lsn"], e["seq"]) for e in events if e["op"] != "read"]
    assert len(changes) == len(set(changes))
    found = {row["id"]: row["n"] for row in replayed(events).values()}
    assert found == dict(database.execute("select id, n from t"))  # type: ignore[arg-type]


def check_nobody_has_seen_the_keys(everything: Bucket) -> None:
    for process in everything.shop.lives:
        assert not [secret for secret in everything.secrets if secret in process.stdout + process.stderr]
    for name, content in everything.server.objects(everything.uri).items():
        assert not [secret for secret in everything.secrets if secret.encode() in content], name
    for path in (p for p in everything.shop.folder.rglob("*") if p.is_file() and "spark" not in p.parts):
        assert not [secret for secret in everything.secrets if secret.encode() in path.read_bytes()], path


def test_a_pipeline_goes_on_after_kills_with_all_its_files_in_a_bucket(everything: Bucket) -> None:
    path = everything.write()
    database = everything.shop.database

    def changes(number: int) -> None:
        database.execute(f"update t set n = {number} where id % 3 = 0; delete from t where id = {number}")
        database.execute(f"insert into t values ({1000 + number}, {number})")

    # 1. killed while the first batches are written
    with everything.life(path) as first:
        first.until(lambda: any(name.endswith(".parquet") for name in everything.names("parquet")), 240)
        changes(1)
        shown = command_lines(first)
        assert any("java" in line for line in shown)
        assert not [line for line in shown for secret in everything.secrets if secret in line]
        first.process.kill()
        first.wait()

    # 2. killed when both streams have committed a batch
    with everything.life(path) as second:
        changes(2)
        done = {sink: len(everything.names(f"kept/{sink}/checkpoint/commits")) for sink in ("parquet", "ndjson")}
        for sink, before in done.items():
            second.until(lambda: len(everything.names(f"kept/{sink}/checkpoint/commits")) > before, 240)  # noqa: B023
        changes(3)
        second.process.kill()
        second.wait()

    # 3. the rest
    changes(4)
    with everything.life(path, "--once", "--verbose") as third:
        assert third.wait(240) == 0, third.stderr[-3000:]
    check(database, everything.parquet_events())
    check(database, everything.ndjson_events())
    assert {"kept/parquet/stream", "kept/ndjson/stream"} <= set(everything.names("kept"))
    assert not (everything.shop.folder / "shop.dblog").exists()
    assert not any("_temporary" in name or "_writing" in name for name in everything.names("parquet"))

    check_nobody_has_seen_the_keys(everything)


def test_flags_and_the_environment_are_enough(everything: Bucket) -> None:
    endpoint = f"storageEndpoint={everything.server.storage.endpoint}"
    flags = ("--table", "t", "--into", f"{everything.uri}/lake", "--option", endpoint, "--once")
    for number in (1, 2):
        with everything.life(*flags, keys=("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")) as life:
            assert life.wait(240) == 0, life.stderr[-3000:]
        check(everything.shop.database, everything.parquet_events("lake"))
        everything.shop.database.execute(f"update t set n = {number} where id = 5")
    assert [e["op"] for e in everything.parquet_events("lake") if e["op"] != "read"] == ["update"]
    check_nobody_has_seen_the_keys(everything)


def test_wrong_keys_end_it_before_spark_starts(everything: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    path = everything.write()
    monkeypatch.setenv("STORAGE_ACCESS_KEY", str(everything.server.storage.access_key))
    monkeypatch.setenv("STORAGE_SECRET_KEY", "not-the-secret-key")
    for command in ("run", "check"):
        said = dblog(command, path, code=2).stderr
        assert f"cannot read the pipeline's folder '{everything.uri}/kept/parquet'" in said.replace("\n", " ")
        assert "keys in [storage] are right" in said.replace("\n", " ")
        assert "not-the-secret-key" not in said
    assert everything.shop.slots == set()
