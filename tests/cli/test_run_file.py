"""`dblog run FILE` on a real database: through several lives, with sinks that fail, are slow or are away."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dblog.cli.runner import _check
from dblog.pipelines.config import read_config
from dblog.pipelines.running import streams_of
from dblog.sources.problems import NO_KEY
from tests.cli.program import Process, dblog, document
from tests.conftest import Database
from tests.spark.home import quick_spark

on_one = pytest.mark.parametrize("postgres", ["pg18"], indirect=True)


class Shop:
    """A folder with a pipeline's file, and the program's lives in it."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.folder = folder
        self.password = database.url.split(":")[2].split("@")[0]
        self.lives: list[Process] = []
        shutil.copy(Path(__file__).with_name("keep.py"), folder)

    def write(self, *sinks: str, more: str = "", tables: str = "public.*") -> Path:
        url = self.database.url.replace(f":{self.password}@", "@")
        source = f'[source]\nurl = "{url}"\npassword = {{ env = "SHOP_PASSWORD" }}\ntables = ["{tables}"]\n'
        pipeline = f'[pipeline]\nevery = 0.2\nstate = "state.db"\n{more}\n'
        path = self.folder / "shop.toml"
        path.write_text(source + pipeline + "".join(f"[[sink]]\n{sink}\n" for sink in sinks))
        return path

    def keep(self, name: str, **settings: Any) -> str:
        """A sink that keeps what it is given in a file of its name."""
        given = "".join(f", {n} = {value}" for n, value in settings.items())
        into = f'into = "{self.folder / name}"'
        return f'type = "python"\nname = "{name}"\ntarget = "keep:Keep"\nsettings = {{ {into}{given} }}'

    def life(self, *arguments: str) -> Process:
        folder = self.folder / f"life{len(self.lives)}"
        folder.mkdir()
        environment = {
            "SHOP_PASSWORD": self.password,
            "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
            **quick_spark(),
        }
        self.lives.append(Process(folder, "run", self.folder / "shop.toml", *arguments, **environment))
        return self.lives[-1]

    def rows(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def said(self, name: str) -> list[str]:
        path = self.folder / f"{name}.said"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def slots(self) -> set[str]:
        found = self.database.execute("select slot_name from pg_replication_slots where database = current_database()")
        return {slot for (slot,) in found}


@pytest.fixture
def shop(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    database.execute("create table t (id int primary key, n int)")
    database.execute("insert into t select i, 0 from generate_series(1, 300) i")
    shop = Shop(database, tmp_path)
    monkeypatch.setenv("SHOP_PASSWORD", shop.password)
    monkeypatch.setenv("DBLOG_STATE", str(tmp_path / "elsewhere.db"))
    return shop


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.slow
@on_one
class TestLives:
    """The program in processes of its own."""

    def test_a_pipeline_goes_on_where_it_stopped_and_one_sink_that_fails_does_not_stop_the_others(
        self, shop: Shop
    ) -> None:
        # 1. what is there, once; the sink is away at first
        throttle = "[throttle]\nrows_per_second = 100000\n[[table]]\nmatch = 't'\nrename = { n = 'number' }"
        shop.write(shop.keep("good"), more=throttle)
        (shop.folder / "good.away").write_text("once\ntwice\nthrice\n")
        with shop.life("--once", "--json") as first:
            assert first.wait(180) == 0, first.stderr
        assert sorted(row["id"] for row in shop.rows("good")) == list(range(1, 301))
        assert {(row["_op"], row["number"]) for row in shop.rows("good")} == {("read", 0)}
        assert first.stderr.count("WARNING good: the sink cannot be reached") == 1, "three tries are one absence"
        assert first.stderr.count("INFO    good: the sink is reachable again after") == 1
        told = [json.loads(line) for line in first.stdout.splitlines()]
        assert {t["sink"] for t in told} == {"good"}
        assert [t["batch"] for t in told] == sorted({t["batch"] for t in told})
        assert (told[-1]["changes"], told[-1]["rows"]) == (0, 300)
        assert shop.said("good")[-1] == "close"
        assert shop.slots == {"shop"}
        store = ("--state", shop.folder / "state.db")
        assert document("status", *store)["state"] == "stopped"
        assert document("set", *store)["rows_per_second"] == 100_000

        # 2. another sink comes, and fails; the first keeps its slot and goes on
        shop.write(shop.keep("good"), 'type = "python"\nname = "bad"\ntarget = "keep:fail"', more="restarts = 1")
        shop.database.execute("update t set n = 1 where id = 5")
        with shop.life() as second:
            failed = "ERROR   bad: sink 'bad' failed: ValueError: no room for ***"
            second.until(lambda: failed in second.stderr, 180)
            second.until(lambda: len(shop.rows("good")) == 301, 60)
            shop.database.execute("alter table t add column extra text; update t set extra = 'x' where id = 6")
            second.until(lambda: len(shop.rows("good")) == 302, 60)
            assert shop.slots == {"shop", "shop_bad"}
            second.send(signal.SIGTERM)
            assert second.wait(90) == 1
        new = shop.rows("good")[300:]
        assert [(row["id"], row["_op"], row.get("extra")) for row in new] == [(5, "update", None), (6, "update", "x")]
        assert re.search("good: batch .*, 2 changes and 0 rows of dumps, the log up to .*; ended", second.stderr)
        assert "; failed" in second.stderr
        assert second.stdout == ""
        assert document("status", *store, "--pipeline", "shop")["state"] == "stopped"
        bad = document("status", *store, "--pipeline", "shop_bad")
        assert (bad["state"], "no room for ***" in bad["error"]) == ("failed", True)
        assert [len(s["columns"]) for s in document("schemas", *store, "--pipeline", "shop").values()] == [2, 3]
        history = document("schemas", "public.t", *store, "--pipeline", "shop")
        assert [h["differences"] for h in history] == [["first seen"], ["column 'extra' (text) was added"]]

        # 3. nobody has seen the password
        for process in shop.lives:
            assert shop.password not in process.stdout + process.stderr
            assert "Traceback" not in process.stderr
        for path in (p for p in shop.folder.rglob("*") if p.is_file() and "spark" not in p.parts):
            assert shop.password.encode() not in path.read_bytes(), path

    def test_an_interruption_lets_the_batch_end_and_a_second_one_does_not(self, shop: Shop) -> None:
        shop.write(shop.keep("slow", seconds=4))
        with shop.life() as first:
            first.until(lambda: any(line.startswith("begin") for line in shop.said("slow")), 180)
            assert not shop.rows("slow")
            first.send(signal.SIGINT)
            assert first.wait(60) == 130
        taken = [line for line in shop.said("slow") if line.startswith("end")]
        assert len(taken) == 1
        assert shop.said("slow")[-1] == "close"
        assert shop.rows("slow")
        assert "stopping after the current batches" in first.stderr
        number = taken[0].split()[1]
        assert (shop.folder / "shop.dblog/slow/checkpoint/commits" / number).exists()

        shop.database.execute("update t set n = 1 where id = 7")
        shop.write(shop.keep("slow", seconds=600))
        begun = len(shop.said("slow"))
        with shop.life() as second:
            second.until(lambda: any(line.startswith("begin") for line in shop.said("slow")[begun:]), 180)
            second.send(signal.SIGINT)
            second.until(lambda: "stopping" in second.stderr)
            second.send(signal.SIGINT)
            assert second.wait(10) == 130

        shop.write(shop.keep("slow"))
        with shop.life("--once") as third:
            assert third.wait(180) == 0, third.stderr
        rows = shop.rows("slow")
        assert len(rows) == 301, "each row once: what was committed is not given again"
        assert [(row["id"], row["n"]) for row in rows if row["_op"] == "update"] == [(7, 1)]
        ends = [line for line in shop.said("slow") if line.startswith("end")]
        assert len(ends) == len(set(ends))

    def test_a_new_stream_that_fails_before_its_sink_has_anything_leaves_nothing_behind(self, shop: Shop) -> None:
        shop.write('type = "noop"', more='restarts = 0\nspool = "/proc/no/spool"')
        with shop.life("--once") as only:
            assert only.wait(180) == 1, only.stderr
        assert re.search("ERROR +noop: .*the spool", only.stderr), only.stderr
        assert shop.slots == set()
        assert not shop.database.execute("select from pg_publication")
        assert not (shop.folder / "shop.dblog/noop/checkpoint").exists()

    def test_what_init_writes_runs(self, shop: Shop) -> None:
        shop.database.execute("create table keyless (id int)")
        path = shop.folder / "shop.toml"
        result = dblog("init", "--url", shop.database.url, "-o", path)
        assert shop.password not in result.output + path.read_text()
        assert "1 table, 1 left out" in result.stderr
        assert "export SHOP_PASSWORD=" in result.stderr
        with shop.life("--once", "--state", str(shop.folder / "state.db")) as only:
            assert only.wait(180) == 0, only.stderr
        lines = [line for file in shop.folder.rglob("*.ndjson") for line in file.read_text().splitlines()]
        assert sorted(json.loads(line)["key"]["id"] for line in lines) == list(range(1, 301))


class TestRefusals:
    """What is said before Spark takes its time to start."""

    @pytest.fixture(autouse=True)
    def _no_java(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JAVA_HOME", "/nowhere")

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--url", "postgresql://a@b/c"], "--url cannot be used with a file"),
            (["--table", "a"], "--table cannot be used with a file"),
            (["--option", "a=b"], "--option cannot be used with a file"),
            (["--every", "3"], "--every cannot be used with a file"),
            (["--http", "127.0.0.1:0", "--token-env", "NO_SUCH"], "'NO_SUCH' is not set"),
            ([], "Spark needs Java"),
        ],
    )
    def test_flags_that_a_file_has_a_place_for(self, tmp_path: Path, arguments: list[str], said: str) -> None:
        path = tmp_path / "shop.toml"
        path.write_text('[source]\nurl = "postgresql://cdc@127.0.0.1:1/shop"\ntables = "t"\n[[sink]]\ntype = "noop"\n')
        assert said in dblog("run", path, *arguments, code=2).stderr
        assert not (tmp_path / "shop.dblog").exists()

    def test_a_url_in_the_environment_does_not_disturb(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DBLOG_URL", "postgresql://app:secret-7@127.0.0.1:1/other")
        result = dblog("run", tmp_path / "shop.toml", code=2)
        assert "No such file or directory" in result.stderr
        assert "dblog init" in result.stderr

    def test_neither_a_file_nor_a_url(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("DBLOG_URL", raising=False)
        assert "no database is named" in dblog("run", code=2).stderr

    def test_json_and_standard_output_do_not_mix(self, tmp_path: Path) -> None:
        path = tmp_path / "shop.toml"
        path.write_text('[source]\nurl = "postgresql://c@127.0.0.1:1/s"\ntables = "t"\n[[sink]]\ntype = "stdout"\n')
        assert "would write to standard output" in dblog("run", path, "--json", code=2).stderr

    def test_each_sink_needs_a_server_id_of_its_own(self, tmp_path: Path) -> None:
        path = tmp_path / "shop.toml"
        source = '[source]\nurl = "mysql://cdc@127.0.0.1:1/shop"\ntables = "t"\n[source.options]\nserverId = 7\n'
        path.write_text(source + '[[sink]]\ntype = "noop"\n[[sink]]\ntype = "noop"\nname = "other"\n')
        assert "each sink needs its own" in dblog("run", path, code=2).stderr


@pytest.mark.server
@on_one
class TestCheck:
    """`dblog check FILE`."""

    def test_source_and_sinks_are_looked_at_and_nothing_is_changed(self, shop: Shop) -> None:
        path = shop.write('type = "noop"', shop.keep("kept"))
        found = document("check", path)
        assert (found["ready"], found["sinks"]) == (True, {"noop": None, "kept": None})
        made = [p["what"] for p in found["problems"] if p["creatable"]]
        assert {"slot 'shop_noop' does not exist", "slot 'shop_kept' does not exist"} <= set(made)
        text = dblog("check", path).stdout
        assert "sinks   noop, kept" in text
        assert re.search(r"ready: \d tables?; 5 things will be created at the start", text)
        assert shop.slots == set()
        assert not (shop.folder / "shop.dblog").exists()
        assert shop.password not in text

    def test_a_table_that_cannot_be_followed_is_left_out_and_named(self, shop: Shop) -> None:
        shop.database.execute("create table bare (n int); create table bare2 (n int)")
        path = shop.write('type = "noop"', shop.keep("kept"))
        found = document("check", path)
        assert (found["ready"], found["left_out"]) == (True, ["public.bare", "public.bare2"])
        assert re.search(r"ready: \d tables?; 2 left out; ", dblog("check", path).stdout)
        config, told = read_config(path), []
        log = SimpleNamespace(warning=told.append)
        _check(config, streams_of(config, lambda sink, text: None), log)  # type: ignore[arg-type]
        assert told == [f"left out: 2 tables: {NO_KEY}: public.bare, public.bare2"]  # once for both sinks
        path.write_text(path.read_text().replace("[source]", '[source]\nunsuitable = "refuse"'))
        assert document("check", path, code=1)["left_out"] == []
        path.write_text(path.read_text() + '[[table]]\nmatch = "public.bare"\nexclude = ["n"]\n')
        path.write_text(path.read_text().replace("refuse", "skip"))
        assert document("check", path)["ready"]  # what is said of a table that is left out has no effect

    def test_a_sink_that_cannot_work_is_a_problem_as_one_of_the_source_is(self, shop: Shop) -> None:
        shop.database.execute("create table keyless (id int)")
        sinks = 'type = "noop"', 'type = "python"\ntarget = "keep:nothing"'
        path = shop.write(*sinks, tables='public.t", "public.keyless')
        text = dblog("check", path, code=1).stdout
        assert "table 'public.keyless' has no primary key" in text
        assert "✗ sink python: 'keep:nothing' cannot be imported" in text
        assert "not ready: 2 to fix first" in text
        found = document("check", path, code=1)
        assert "cannot be imported" in found["sinks"]["python"]["error"]

    def test_the_administrators_sql_is_for_all_streams(self, shop: Shop) -> None:
        path = shop.write('type = "noop"', shop.keep("kept"))
        script = dblog("check", path, "--admin-sql").stdout
        assert script.count("CREATE PUBLICATION") == 2
        assert script.count("CREATE SCHEMA") == 1
        shop.database.execute(script)
        assert not any("publication" in p["what"] for p in document("check", path)["problems"])

    @pytest.mark.parametrize(
        ("route", "said"),
        [
            ("match = 't'\nmask = { nn = 'null' }", "names the columns ['nn'], which public.t does not have"),
            ("match = 'tt'", "table.tt matches no followed table"),
            ("match = 't'\nexclude = ['id']", "['id'] of public.t are excluded"),
        ],
    )
    def test_what_is_said_of_tables_must_fit_them(self, shop: Shop, route: str, said: str) -> None:
        path = shop.write('type = "noop"', more=f"[[table]]\n{route}")
        assert said in dblog("check", path, code=2).stderr
        assert said in dblog("run", path, code=2).stderr

    def test_a_sink_that_is_wrong_stops_the_start(self, shop: Shop) -> None:
        path = shop.write('type = "python"\ntarget = "keep:nothing"')
        assert "sink python: 'keep:nothing' cannot be imported" in dblog("run", path, code=2).stderr

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ('http = "0.0.0.0:0"', "can be reached from other machines, but no token is set"),
            ('http = "127.0.0.1"', "'127.0.0.1' is not an address to serve at"),
            ('state = "shop.toml/state.db"', "shop.toml' is not a folder that can be written to"),
            ('state = "shop.toml"', "is not a state store"),
        ],
    )
    def test_check_and_run_find_the_same_wrong_with_the_surroundings(self, shop: Shop, more: str, said: str) -> None:
        path = shop.write('type = "noop"', more=more)
        if more.startswith("state"):
            path.write_text(path.read_text().replace('state = "state.db"\n', ""))
        assert said in dblog("check", path, code=1).stdout
        assert not document("check", path, code=1)["ready"]
        result = dblog("run", path, code=2 if more.startswith("http") else 1)
        assert said in result.stderr
        self._is_untouched(shop)

    def test_check_and_run_find_that_there_is_no_java(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        path = shop.write('type = "noop"')
        monkeypatch.setenv("JAVA_HOME", "/nowhere")
        assert "✗ java: Spark needs Java" in dblog("check", path, code=1).stdout
        assert "Spark needs Java" in dblog("run", path, code=2).stderr
        self._is_untouched(shop)

    @pytest.mark.parametrize("column", ["_op", "N"])
    def test_check_and_run_find_columns_that_cannot_be_told_apart(
        self, shop: Shop, column: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        shop.database.execute(f'create table odd (id int primary key, n int, "{column}" int)')
        path = shop.write('type = "noop"', tables="public.odd")
        said = f"Spark cannot distinguish column '{column}' of public.odd from"
        assert said in dblog("check", path, code=1).stdout
        dblog("run", path, code=1)
        assert said in capfd.readouterr().err
        self._is_untouched(shop)

    def test_check_and_run_find_that_the_slot_of_a_checkpoint_is_gone(
        self, shop: Shop, capfd: pytest.CaptureFixture[str]
    ) -> None:
        path = shop.write('type = "noop"')
        self._plan(shop, {"v": 1, "pos": 1, "tables": [["public", "t"]]})
        said = "slot 'shop' does not exist, but a checkpoint needs its log"
        assert said in dblog("check", path, code=1).stdout
        dblog("run", path, code=1)
        assert said in capfd.readouterr().err
        assert shop.slots == set()

    def test_check_and_run_find_that_somebody_else_has_read_the_slot(
        self, shop: Shop, capfd: pytest.CaptureFixture[str]
    ) -> None:
        path = shop.write('type = "noop"')
        shop.database.execute(dblog("check", path, "--admin-sql").stdout)
        shop.database.execute("select pg_create_logical_replication_slot('shop', 'pgoutput')")
        self._plan(shop, {"v": 1, "pos": 1, "tables": [["public", "t"]]})
        said = "but the checkpoint is only at 1"
        assert said in dblog("check", path, code=1).stdout
        dblog("run", path, code=1)
        assert said in capfd.readouterr().err

    def _plan(self, shop: Shop, offset: dict[str, Any]) -> None:
        """A checkpoint as Spark writes it, whose first batch is committed."""
        checkpoint = shop.folder / "shop.dblog/noop/checkpoint"
        for folder, lines in {"offsets": ["v1", "{}", json.dumps(offset)], "commits": ["v1", "{}"]}.items():
            (checkpoint / folder).mkdir(parents=True)
            (checkpoint / folder / "0").write_text("\n".join(lines))

    def _is_untouched(self, shop: Shop) -> None:
        assert shop.slots == set()
        assert not shop.database.execute("select from pg_publication")
        assert not (shop.folder / "shop.dblog").exists()
