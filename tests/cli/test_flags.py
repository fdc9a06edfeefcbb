"""`dblog run` without a file: what its flags become, and that it runs as a pipeline of a file does."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dblog.cli.flags import Format, config_of_flags
from dblog.errors import ConfigError
from dblog.pipelines.file_settings import RESTARTS
from dblog.pipelines.running import streams_of
from tests.cli.program import Process, document
from tests.conftest import Database
from tests.spark.home import quick_spark

URL = "postgresql://cdc:secret-7@db.example/shop"
START = 400.0
"""Seconds that a Spark may take to start and deliver, on a machine that is very busy."""


def config(folder: Path, output: Format = Format.parquet, every: float | None = None, **options: str) -> Any:
    given = {"url": URL, **({} if {"table", "tables"} & set(options) else {"table": "public.t"}), **options}
    into = folder / "out" if output in (Format.parquet, Format.json) else None
    return config_of_flags(given, output, into, None if into else folder / "kept", every)


def stream(folder: Path, *given: Any, **more: Any) -> Any:
    (found,) = streams_of(config(folder, *given, **more), lambda sink, text: None)
    return found


@pytest.mark.parametrize(
    ("output", "kind", "path"),
    [("parquet", "parquet", "out"), ("json", "ndjson", "out"), ("console", "stdout", None), ("noop", "noop", None)],
)
def test_each_format_is_a_type_of_sink(tmp_path: Path, output: str, kind: str, path: str | None) -> None:
    found = config(tmp_path, Format(output))
    (sink,) = found.sinks
    assert (sink.name, sink.kind) == ("output", kind)
    assert sink.settings.get("path") == (None if path is None else str(tmp_path / path))
    assert found.folder == (tmp_path / "out" / "_checkpoint" if path else tmp_path / "kept")
    assert found.restarts == RESTARTS
    assert found.private


def test_the_slot_is_named_after_the_tables_and_the_pipeline_after_the_slot(tmp_path: Path) -> None:
    found = stream(tmp_path)
    assert found.read.slot.startswith("dblog_public_t_")
    assert (found.name, found.read.pipeline, found.read.own["publication"]) == (found.read.slot,) * 3
    named = stream(tmp_path, pipeline="My shop")
    assert (named.name, named.read.slot) == ("My shop", found.read.slot)
    chosen = stream(tmp_path, pipeline="shop", slot="mine", publication="all_of_it")
    assert (chosen.name, chosen.read.slot, chosen.read.own["publication"]) == ("shop", "mine", "all_of_it")


def test_addresses_are_not_paths() -> None:
    keys = {"storageAccessKey": "the-access-key", "storageSecretKey": "the-secret-key"}
    given = {"url": URL, "table": "public.t", "storageEndpoint": "http://127.0.0.1:9000", **keys}
    found = config_of_flags(given, Format.parquet, "s3://bucket/lake", None, None)
    assert (found.folder, found.sinks[0].settings["path"]) == ("s3://bucket/lake/_checkpoint", "s3://bucket/lake")
    assert (found.objects.endpoint, found.objects.secret_key) == ("http://127.0.0.1:9000", "the-secret-key")
    assert {"the-access-key", "the-secret-key"} <= set(found.secrets)
    assert not [secret for secret in keys.values() if secret in repr(found)]


def test_another_name_counts_at_once_although_the_checkpoint_is_the_same(tmp_path: Path) -> None:
    first = stream(tmp_path, pipeline="shop")
    first.folder.make("shop")
    assert stream(tmp_path, pipeline="store").name == "store"


def test_batches_follow_each_other_unless_every_says_otherwise(tmp_path: Path) -> None:
    assert config(tmp_path).every == 0.0
    assert config(tmp_path, every=2.5).every == 2.5


def test_options_of_the_source_keep_their_meaning(tmp_path: Path) -> None:
    found = stream(
        tmp_path,
        chunkRows="500",
        Columns="a, b",
        spool=str(tmp_path / "spool"),
        state="off",
        BEFORE="true",
        dump="never",
    )
    assert found.read.settings.chunk_rows == 500
    assert not found.read.settings.dump
    assert found.read.settings.before
    assert found.read.ranges
    assert found.read.spool == str(tmp_path / "spool" / "output")
    assert found.read.state == "off"
    assert [(r.pattern.text, r.include) for r in found.routes] == [("public.t", ("a", "b"))]
    assert found.read.columns is None, "the route leaves them out"


@pytest.mark.parametrize("output", Format)
def test_old_rows_are_delivered_where_the_sink_writes_them(tmp_path: Path, output: Format) -> None:
    assert stream(tmp_path, output, before="true").read.settings.before == (output is not Format.noop)
    assert not stream(tmp_path, output).read.settings.before


def test_many_tables_are_patterns(tmp_path: Path) -> None:
    found = stream(tmp_path, tables="public.*, !public.tmp_*")
    assert [pattern.exclude for pattern in found.read.patterns] == [False, True]


def test_a_stream_of_mysql_has_its_own_options(tmp_path: Path) -> None:
    found = stream(tmp_path, url="mysql://cdc:secret-7@db.example/shop", table="orders", serverId="7", dates="string")
    assert found.read.table == ("shop", "orders")
    assert (found.read.own["server_id"], found.read.own["dates"]) == (7, "string")


def test_the_url_does_not_show_itself(tmp_path: Path) -> None:
    found = config(tmp_path)
    assert "secret-7" not in repr(found.source)
    assert found.secrets == ("secret-7",)


def test_how_rows_are_delivered_is_the_sinks_choice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="option 'deliver' cannot be set"):
        config(tmp_path, deliver="rows")


def test_the_checkpoint_of_a_spark_query_is_not_taken_for_a_pipelines(tmp_path: Path) -> None:
    (tmp_path / "out" / "_checkpoint" / "offsets").mkdir(parents=True)
    with pytest.raises(ConfigError, match="is the checkpoint of a Spark query"):
        config(tmp_path)


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("postgres", ["pg18"], indirect=True)
def test_a_query_that_fails_is_restarted_as_that_of_a_file_is(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key, n int, secret text)")
    database.execute("insert into t select i, 0, 'hush' from generate_series(1, 300) i")
    (tmp_path / "life").mkdir()
    store = ("--state", str(tmp_path / "state.db"))
    flags = ("--table", "public.t", "--format", "console", "--checkpoint", str(tmp_path / "kept"), "--every", "0.2")
    environment = {"DBLOG_URL": database.url, "JAVA_HOME": os.environ.get("JAVA_HOME", ""), **quick_spark()}

    with Process(tmp_path / "life", "run", *flags, *store, "--option", "columns=id,n", **environment) as life:

        def rows() -> list[dict[str, Any]]:
            whole = life.stdout.rpartition("\n")[0]
            return [json.loads(line) for line in whole.splitlines()]

        life.until(lambda: len(rows()) == 300, START)
        pid = document("status", *store)["pid"]
        os.kill(pid, signal.SIGKILL)  # the source's process
        life.until(lambda: "output: the stream failed, restart 1 of 5 in 1 s" in life.stderr, START)
        life.until(lambda: "output: running again after" in life.stderr, START)
        now = document("status", *store)
        assert (now["state"], now["restarts"]) == ("running", 1)
        database.execute("update t set n = 1 where id = 5")
        life.until(lambda: len(rows()) == 301, START)
        life.send(signal.SIGTERM)
        assert life.wait(START) == 0
    assert rows()[-1]["after"] == {"id": 5, "n": 1}
    assert "hush" not in life.stdout
    assert document("status", *store)["state"] == "stopped"
