"""`dblog init`: the file it writes is right, says what is there, and has no secret in it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dblog.cli.init import InitSink
from dblog.pipelines.config import read_config
from dblog.pipelines.example import SINKS
from tests.cli.program import dblog, document
from tests.conftest import Database, MySQLDatabase

pytestmark = pytest.mark.server
on_one = pytest.mark.parametrize("postgres", ["pg18"], indirect=True)


@on_one
def test_the_tables_are_named_and_those_that_cannot_be_captured_left_out(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("create table orders (id int primary key, n int); create table keyless (id int)")
    database.execute("insert into orders select i from generate_series(1, 50) i; analyze orders")
    database.execute("""create schema "My 'S"; create table "My 'S"."a.b" (id int, primary key (id))""")
    database.execute("""create table "My 'S"."line\nend" (id int)""")
    secret = database.url.split(":")[2].split("@")[0]
    path = tmp_path / "web-shop.toml"
    found = document("init", "--url", database.url, "-o", path)
    text = path.read_text()
    assert found["text"] == text
    assert secret not in text
    assert found["tables"]["public.orders"] == {"rows": 50, "key": ["id"], "problem": None}
    assert "has no primary key" in found["tables"]["public.keyless"]["problem"]
    assert found["problems"] == []
    assert "#   public.orders, about 50 rows, key id" in text
    monkeypatch.setenv("WEB_SHOP_PASSWORD", secret)
    config = read_config(path)
    assert (config.name, config.source["url"]) == ("web_shop", database.url)
    checked = document("check", path)
    assert checked["ready"]
    assert checked["tables"] == ["My 'S.a.b", "public.orders"]


@on_one
def test_all_that_stands_in_comments_can_be_switched_on(database: Database, tmp_path: Path) -> None:
    database.execute("create table orders (id int primary key, notes text, email text)")
    path = tmp_path / "shop.toml"
    dblog("init", "--url", database.url, "-o", path)
    lines = path.read_text().splitlines()
    text = "\n".join(line.removeprefix("# ") for line in lines[3:] if not line.startswith(("#   ", "# 1 table")))
    found = tomllib.loads(text)
    assert set(found) == {"source", "pipeline", "throttle", "table", "sink"}
    assert [sink["type"] for sink in found["sink"]] == ["ndjson", "sql"]
    secret = database.url.split(":")[2].split("@")[0]
    text = text.split("[[sink]]  # further sinks")[0].replace('{ env = "SHOP_PASSWORD" }', f'"{secret}"')
    path.write_text(text)
    config = read_config(path)
    assert (config.http, config.throttle["rows_per_second"]) == ("127.0.0.1:8080", 50_000)
    assert config.sinks[0].routes[0].mask == {"email": "sha256"}
    assert document("check", path)["ready"]


@on_one
def test_what_an_administrator_must_do_stands_at_the_top(database: Database) -> None:
    role = f"{database.name}_app"
    database.execute("create table orders (id int primary key); create table keyless (id int)")
    database.execute(f"create role {role} login password 'pw'; grant select on orders to {role}")
    try:
        text = dblog("init", "--url", database.server.url(database.name, role, "pw"), "-o", "-").stdout
    finally:
        database.execute(f"drop owned by {role}; drop role {role}")
    assert "# Fix these problems first:" in text
    assert f'ALTER ROLE "{role}" REPLICATION;' in text
    (publication,) = [line for line in text.splitlines() if "CREATE PUBLICATION" in line]
    assert '"public"."orders"' in publication
    assert "keyless" not in publication
    assert tomllib.loads(text)["source"]["watermark"] == "none"


@on_one
def test_a_file_that_is_there_is_not_touched(database: Database, tmp_path: Path) -> None:
    database.execute("create table orders (id int primary key)")
    path = tmp_path / "shop.toml"
    path.write_text("precious")
    assert "exists" in dblog("init", "--url", database.url, "-o", path, code=2).stderr
    assert path.read_text() == "precious"
    assert "No such file" in dblog("init", "--url", database.url, "-o", tmp_path / "no/shop.toml", code=2).stderr


@on_one
def test_without_a_name_the_file_is_called_like_the_database(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("create table orders (id int primary key)")
    monkeypatch.chdir(tmp_path)
    assert f"wrote {database.name}.toml: 1 table" in dblog("init", "--url", database.url).stderr
    assert (tmp_path / f"{database.name}.toml").exists()


@on_one
def test_an_empty_database_has_nothing_to_write_about(database: Database, tmp_path: Path) -> None:
    assert "no table in the database matches" in dblog("init", "--url", database.url, "-o", "-", code=2).stderr


def test_a_database_of_mysql(mysql_database: MySQLDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mysql_database.execute("create table orders (id int primary key)", "create table keyless (id int)")
    path = tmp_path / "shop.toml"
    found = document("init", "--url", mysql_database.url, "-o", path)
    name = mysql_database.name
    assert set(found["tables"]) == {f"{name}.orders", f"{name}.keyless"}
    assert found["tables"][f"{name}.orders"]["problem"] is None
    assert found["tables"][f"{name}.keyless"]["problem"]
    assert tomllib.loads(path.read_text())["source"]["tables"] == [f"{name}.*", f"!{name}.keyless"]
    monkeypatch.setenv("SHOP_PASSWORD", mysql_database.url.split(":")[2].split("@")[0])
    assert document("check", path)["ready"]


@on_one
@pytest.mark.parametrize("sink", ["parquet", "delta", "iceberg"])
def test_a_file_for_another_sink_can_be_checked_and_check_says_who_writes_the_lake(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    database.execute("create table orders (id int primary key, n int)")
    monkeypatch.setenv("SHOP_PASSWORD", database.url.split(":")[2].split("@")[0])
    path = tmp_path / "shop.toml"
    dblog("init", "--url", database.url, "-o", path, "--sink", sink)
    (config,) = read_config(path).sinks
    assert config.kind == sink
    checked = document("check", path)
    assert (checked["ready"], checked["sinks"]) == (True, {sink: None})
    writer = "native (Spark is started without a connector)"
    said = {} if sink == "parquet" else {sink: {"format": sink, "writer": writer}}
    assert checked["facts"] == said
    shown = dblog("check", path).stdout
    assert (f"sink    {sink}: format {sink}, writer {writer}" in shown) == bool(said)


def test_the_sinks_of_init_are_those_that_there_is_an_example_of() -> None:
    assert [sink.value for sink in InitSink] == list(SINKS)
