"""`dblog run` and `dblog serve`: what they refuse, and one pipeline through its lives."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dblog.errors import ConfigError, DBLogError, PreconditionFailed, SchemaChanged
from dblog.spark.failure import cause
from tests.cli.program import Process, dblog, document
from tests.conftest import Database
from tests.spark.home import quick_spark

URL = ("--url", "postgresql://app:secret-7@127.0.0.1:1/shop")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--into", "x"], "option 'table' or 'tables' is missing"),
        (["--into", "x", "--table", "a", "--tables", "b"], "exclude each other"),
        (["--table", "a"], "--format parquet needs --into"),
        (["--table", "a", "--format", "noop", "--into", "x"], "--format noop does not use --into"),
        (["--table", "a", "--format", "console"], "--format console needs --checkpoint"),
        (["--table", "a", "--format", "csv", "--into", "x"], "'csv' is not one of"),
        (["--table", "a", "--into", "x", "--once", "--every", "3"], "--once and --every cannot be used together"),
        (["--table", "a", "--format", "console", "--checkpoint", "x", "--json"], "would write to standard output"),
        (["--table", "a", "--into", "x", "--option", "chunkrows=many"], "'chunkRows' has the value 'many'"),
        (["--table", "a", "--into", "x", "--option", "speed=1"], "unknown option 'speed'"),
        (["--table", "a", "--into", "x", "--option", "speed"], "'speed' is not an option"),
        (["--table", "a", "--into", "x", "--http", "127.0.0.1:0", "--token-env", "NO_SUCH"], "'NO_SUCH' is not set"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage_before_spark_starts(
    place: str, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    result = dblog("run", *URL, *arguments, code=2)
    assert said in result.stderr
    assert "secret-7" not in result.output


def test_java_is_needed(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert "Spark needs Java" in dblog("run", *URL, "--table", "a", "--into", "x", code=2).stderr


@pytest.mark.parametrize(
    "command", [("serve",), ("run", *URL, "--table", "a", "--into", "x", "--http", "127.0.0.1:0")], ids=["serve", "run"]
)
def test_the_api_without_its_packages_names_the_extra(
    place: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'dblog[http]'" in dblog(*command, code=2).stderr


def test_the_api_is_served_until_it_is_told_to_stop(place: str, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="the extra http is not installed")
    arguments = ("serve", "--http", "127.0.0.1:0", "--token-env", "TOKEN")
    with Process(tmp_path, *arguments, DBLOG_STATE=place, TOKEN="secret-7") as serving:
        serving.until(lambda: "serving http://127.0.0.1:" in serving.stderr)
        url = re.search(r"serving (\S+);", serving.stderr)[1]  # type: ignore[index]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/api/v1/pipelines")
        asked = urllib.request.Request(f"{url}/api/v1/pipelines", headers={"Authorization": "Bearer secret-7"})
        with urllib.request.urlopen(asked) as answer:
            assert answer.status == 200
        serving.send(signal.SIGTERM)
        assert serving.wait() == 0
    assert "secret-7" not in serving.stdout + serving.stderr


class TestCause:
    """Our error in Spark's report."""

    REPORT = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_"
        "ERROR] Failed when Python streaming data source perform latestOffset: Traceback (most recent call last):\n"
        '  File "source.py", line 1, in latestOffset\n'
        "dblog.errors.{error}\n{end}"
    )

    @pytest.mark.parametrize("end", ["", "\n SQLSTATE: 38000", "\tat org.apache.spark.Thing.run(Thing.scala:1)\n"])
    def test_it_is_found_whole(self, end: str) -> None:
        text = "PreconditionFailed: not ready, 1 problem:\n- no key\n  fix: ALTER TABLE t;\nhint: see docs"
        found = cause(self.REPORT.format(error=text, end=end))
        assert type(found) is PreconditionFailed
        assert found.message == "not ready, 1 problem:\n- no key\n  fix: ALTER TABLE t;"
        assert found.hint == "see docs"

    def test_without_a_hint(self) -> None:
        found = cause(self.REPORT.format(error="SchemaChanged: no longer fits", end=" SQLSTATE: 38000"))
        assert (type(found), found.message, found.hint) == (SchemaChanged, "no longer fits", None)

    def test_the_last_of_a_chain_is_the_one_that_was_raised(self) -> None:
        chain = (
            "ConnectionLost: gone\n\nDuring handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\ndblog.errors.ConfigError: wrong\nhint: right"
        )
        found = cause(self.REPORT.format(error=chain, end=""))
        assert (type(found), found.message, found.hint) == (ConfigError, "wrong", "right")

    @pytest.mark.parametrize("end", ["", "\n SQLSTATE: 38000", "\tat org.apache.spark.Thing.run(Thing.scala:1)\n"])
    def test_another_error_of_python_is_shown_without_its_traceback(self, end: str) -> None:
        text = "ImportError: cannot import name 'x'"
        found = cause(self.REPORT.format(error=text, end=end).replace("dblog.errors.", ""))
        assert (type(found), found.message) == (DBLogError, text)
        assert "--verbose" in (found.hint or "")

    def test_an_error_of_sparks_is_its_first_line(self) -> None:
        found = cause("\n[DISK_FULL] no room\n\tat org.apache.spark\n")
        assert (type(found), found.message) == (DBLogError, "[DISK_FULL] no room")
        assert "--verbose" in (found.hint or "")


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("postgres", ["pg18"], indirect=True)
def test_a_pipeline_goes_on_where_it_stopped_and_says_why_it_cannot(database: Database, tmp_path: Path) -> None:
    database.execute(
        "create table t (id int primary key, n int); insert into t select i, 0 from generate_series(1, 500) i"
    )
    into = tmp_path / "rows"

    def life(name: str, *arguments: str) -> Process:
        folder = tmp_path / name
        folder.mkdir()
        given = ["--table", "public.t", "--into", into, "--format", "json", "--pipeline", "shop"]
        given += ["--option", f"spool={tmp_path / 'spool'}"]
        return Process(
            folder,
            "run",
            *given,
            *arguments,
            DBLOG_URL=database.url,
            DBLOG_STATE=str(tmp_path / "state.db"),
            JAVA_HOME=os.environ.get("JAVA_HOME", ""),
            **quick_spark(),
        )

    def rows() -> list[dict[str, Any]]:
        files = sorted(into.glob("public.t/*.ndjson"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    with life("first", "--once", "--json") as first:
        assert first.wait(120) == 0, first.stderr
    assert sorted(r["key"]["id"] for r in rows()) == list(range(1, 501))
    assert {r["op"] for r in rows()} == {"read"}
    told = [json.loads(line) for line in first.stdout.splitlines()]
    assert (told[-1]["sink"], told[-1]["changes"], told[-1]["rows"]) == ("output", 0, 500)
    assert (into / "_checkpoint" / "output" / "checkpoint" / "offsets").is_dir()

    database.execute("update t set n = 1 where id = 5")
    with life("second") as second:
        second.until(lambda: len(rows()) == 501, 120)
        database.execute("update t set n = 2 where id = 5")
        second.until(lambda: len(rows()) == 502)
        store = ("--state", tmp_path / "state.db")
        assert document("status", *store)["state"] == "running"
        dump = document("dump", "public.t", "--keys", "7,999", "--wait", *store)
        assert (dump["state"], dump["emitted"]) == ("completed", 1)
        second.until(lambda: len(rows()) == 503)
        assert [(r["key"]["id"], r["op"]) for r in rows() if r.get("dump") == dump["id"]] == [(7, "read")]
        assert 'no row has the key "999"' in dblog("dumps", dump["id"], *store).stdout
        assert "chunk_emitted" in dblog("watch", "--no-follow", "--last", 100, *store).stdout
        second.send(signal.SIGINT)
        assert second.wait() == 130
    assert document("status", *store)["state"] == "stopped"
    assert [r["after"]["n"] for r in rows() if r["op"] == "update"] == [1, 2]
    assert "stopping" in second.stderr
    assert re.search("output: batch .*, 2 changes and 1 rows of dumps, the log up to .*; ended", second.stderr)
    assert second.stdout == ""
    assert "Traceback" not in second.stderr

    (slot,) = database.execute("select slot_name from pg_replication_slots where database = current_database()")
    database.execute("select pg_drop_replication_slot(%s)", slot)
    with life("third") as third:
        assert third.wait(120) == 1, third.stderr
    assert re.search(rf"ERROR   output: .*\n.*slot '{slot[0]}' does not exist", third.stderr)
    assert "Traceback" not in third.stderr
    secret = database.url.split(":")[2].split("@")[0]
    assert secret not in first.stderr + second.stderr + third.stderr + first.stdout
