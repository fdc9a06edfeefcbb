"""`dblog dump`, `dumps`, `pause`, `resume`, `cancel` on a store in which the test plays the pipeline."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblog.cli import dump as module
from dblog.state import open_store
from dblog.state.pipeline import Pipeline
from dblog.state.requests import Progress, Request, State, Wish, read_request
from tests.cli.conftest import STATUS, part
from tests.cli.program import Process, dblog, document


class TestRequest:
    """What a command line asks for."""

    @pytest.mark.parametrize(
        ("arguments", "request_"),
        [
            (["public.orders"], Request("public.orders")),
            (["public.*", "!public.tmp_*"], Request("public.*, !public.tmp_*")),
            (["--all"], Request()),
            (["public.orders", "--keys", "1, 2,3"], Request("public.orders", (("1",), ("2",), ("3",)))),
            (["orders", "--key", "a b", "--key", '"c"'], Request("orders", (("a b",), ("c",)))),
            (["orders", "--key", '["a", 1]', "--key", "[2, true]"], Request("orders", (("a", "1"), ("2", "true")))),
            (["orders", "--key", "[12345678901234567890.10]"], Request("orders", (("12345678901234567890.10",),))),
            (["orders", "--where", "total > 1"], Request("orders", (), "total > 1")),
        ],
        ids=["table", "patterns", "all", "keys", "key", "composite", "exact", "where"],
    )
    def test_it_is_in_the_store_as_it_was_written(
        self, running: Pipeline, arguments: list[str], request_: Request
    ) -> None:
        result = dblog("dump", *arguments)
        (made,) = running.dumps()
        assert made.request == request_
        assert result.stdout == f"{made.id}\n"
        assert result.stderr == ""

    def test_keys_come_from_a_file_or_standard_input(self, running: Pipeline, tmp_path: Path) -> None:
        file = tmp_path / "keys"
        file.write_text('[17, "ä"]\n\n["a", 1]\n', "utf-8")
        dblog("dump", "orders", "--keys-file", file)
        dblog("dump", "orders", "--keys-file", "-", stdin="18\n")
        first, second = running.dumps()
        assert first.request.keys == (("17", "ä"), ("a", "1"))
        assert second.request.keys == (("18",),)

    def test_json_is_the_dump(self, running: Pipeline) -> None:
        made = document("dump", "public.orders", "--where", "id > 5")
        (dump,) = running.dumps()
        assert made == dump.to_json()
        assert made["state"] == "queued"

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ([], "no table is named"),
            (["public.orders", "--all"], "tables and --all cannot be used together"),
            (["--all", "--keys", "1"], "a request for keys or a condition needs a table"),
            (["public.*", "--keys", "1"], "exactly one table"),
            (["orders", "--keys", "1,,2"], "--keys has the value '1,,2'"),
            (["orders", "--keys", "1", "--where", "true"], "a request cannot have both keys and a condition"),
            (["orders", "--key", "[1, null]"], "is not a key"),
            (["orders", "--keys", "1", "--key", "[1, 2]"], "some keys have more values than others"),
            (["orders", "--key", "[1"], "--key is '[1', which is not JSON"),
            (["orders", "--keys-file", "/nowhere/keys"], "cannot read the keys"),
            (["orders", "--where", " "], "the condition has 1 characters"),
            (["a.b.c"], "more than two parts"),
        ],
    )
    def test_what_makes_no_sense_is_wrong_usage_and_asks_for_nothing(
        self, running: Pipeline, arguments: list[str], said: str
    ) -> None:
        result = dblog("dump", *arguments, code=2)
        assert result.stderr.startswith("error: ")
        assert said in result.stderr
        assert "hint: " in result.stderr
        assert result.stdout == ""
        assert running.dumps() == []

    def test_a_bad_line_of_a_file_is_named(self, running: Pipeline) -> None:
        assert "line 2 of '-' is 'b'" in dblog("dump", "t", "--keys-file", "-", stdin="1\nb\n", code=2).stderr
        assert "there are no keys in '-'" in dblog("dump", "t", "--keys-file", "-", stdin="\n", code=2).stderr


class TestWithoutARunningPipeline:
    def test_nobody_has_used_the_store(self, place: str) -> None:
        result = dblog("dump", "public.orders", code=3)
        assert "no pipeline has used this state store yet" in result.stderr

    def test_the_dump_is_queued_and_that_is_said(self, pipeline: Pipeline) -> None:
        result = dblog("dump", "public.orders")
        assert result.stdout.strip() == pipeline.dumps()[0].id
        assert "'shop' does not run (never started): the dump is queued and starts when it runs" in result.stderr

    def test_there_is_nothing_to_wait_for_and_nothing_is_asked(self, pipeline: Pipeline) -> None:
        pipeline.say({**STATUS, "state": "stopped"})
        result = dblog("dump", "public.orders", "--wait", code=3)
        assert "pipeline 'shop' does not run (stopped)" in result.stderr
        assert pipeline.dumps() == []

    def test_another_pipeline_is_not_there(self, running: Pipeline) -> None:
        result = dblog("dump", "public.orders", "--pipeline", "store", code=3)
        assert "there is no pipeline 'store'" in result.stderr
        assert "name one of shop" in result.stderr

    def test_of_several_pipelines_one_must_be_named(self, running: Pipeline) -> None:
        other = Pipeline(running.store, "a/b")
        other.open()
        assert "name one of a/b, shop" in dblog("dumps", code=3).stderr
        dblog("dump", "t", "--pipeline", "a/b")
        assert (len(other.dumps()), len(running.dumps())) == (1, 0)


class Played(threading.Thread):
    """A pipeline that runs the first request it sees, to a given end."""

    def __init__(self, place: str, *steps: Progress, status: dict[str, Any] | None = None) -> None:
        super().__init__(daemon=True)
        self._place, self._steps, self._status = place, steps, status

    def run(self) -> None:
        with closing(open_store(self._place)) as store:
            pipeline = Pipeline(store, "shop")
            while not pipeline.dumps():
                time.sleep(0.02)
            (dump,) = pipeline.dumps()
            for step in self._steps:
                time.sleep(0.1)
                pipeline.mirror(dump.id, step)
            if self._status:
                pipeline.say(self._status)


class TestWait:
    def test_until_it_is_completed(self, running: Pipeline, place: str) -> None:
        Played(place, part(State.running, 40, 1, 100), part(State.completed, 100, 2, 100)).start()
        result = dblog("dump", "public.orders", "--wait")
        (dump,) = running.dumps()
        assert result.stdout == f"{dump.id}\n"
        assert f"dump {dump.id} completed: 100 rows read, 98 emitted, 2 dropped" in result.stderr

    def test_json_is_the_dump_as_it_ended(self, running: Pipeline, place: str) -> None:
        Played(place, part(State.completed, 100, 2, 100)).start()
        made = document("dump", "public.orders", "--wait")
        assert (made["state"], made["emitted"]) == ("completed", 98)

    def test_a_failure_is_shown_with_its_reason(self, running: Pipeline, place: str) -> None:
        Played(place, part(State.failed, 3, reason="column nonsense does not exist")).start()
        result = dblog("dump", "public.orders", "--where", "nonsense = 1", "--wait", code=1)
        assert "failed: public.orders: column nonsense does not exist" in result.stderr

    def test_a_pipeline_that_stops_is_not_waited_for(
        self, running: Pipeline, place: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.3)
        Played(place, part(State.running, 40, 0, 100), status={**STATUS, "state": "stopped"}).start()
        result = dblog("dump", "public.orders", "--wait", code=3)
        assert "does not run any more (stopped)" in result.stderr
        assert running.dumps()[0].wish is Wish.run

    def test_an_interruption_leaves_the_dump_running(self, running: Pipeline, place: str, tmp_path: Path) -> None:
        with Process(tmp_path, "dump", "public.orders", "--wait", DBLOG_STATE=place) as waiting:
            waiting.until(lambda: waiting.stdout.endswith("\n"))
            time.sleep(0.3)
            waiting.send(signal.SIGINT)
            assert waiting.wait() == 130
        (dump,) = running.dumps()
        assert dump.wish is Wish.run
        assert f"dump {dump.id} goes on: dblog dumps {dump.id} shows it" in waiting.stderr


class TestDumps:
    @pytest.fixture
    def made(self, running: Pipeline) -> list[str]:
        """The first dump, one for keys that has ended, one under way, one that waits."""
        running.mirror("initial", part(State.completed, 120_000, 12, 120_000))
        keys = running.submit(read_request("public.orders", ["1", "2", "3"]))
        running.mirror(keys.id, part(State.completed, 1, total=3, missing=(("2",), ("3",)), missed=150))
        where = running.submit(read_request("public.orders", where="total > 100"))
        running.mirror(where.id, part(State.running, 63_000, 12, 100_000))
        return ["initial", keys.id, where.id, running.submit(read_request()).id]

    def test_the_list_has_a_line_for_each(self, made: list[str]) -> None:
        head, *lines = dblog("dumps").stdout.splitlines()
        assert head.split() == ["ID", "STATE", "WHAT", "READ", "EMITTED", "DROPPED", "PROGRESS", "LEFT"]
        assert [line.split()[:2] for line in lines] == [
            ["initial", "completed"],
            [made[1], "completed"],
            [made[2], "running"],
            [made[3], "queued"],
        ]
        assert re.search(r"public\.orders, 3 keys +1 +1 +0 +█{20} 100% *$", lines[1])
        assert re.search(r"public\.orders where total > 100 +63,000 +62,988 +12 +█{12}░{8} +63% +5\.9 s$", lines[2])
        assert "all tables" in lines[3]

    def test_one_has_all_its_detail(self, made: list[str]) -> None:
        shown = dblog("dumps", made[1]).stdout
        assert "public.orders, 3 keys" in shown
        assert 'public.orders: no row has the key "2", "3" and 148 more' in shown
        by_number = dblog("dumps", made[1].split("-")[0]).stdout
        assert by_number == shown

    def test_a_reason_is_shown(self, running: Pipeline) -> None:
        dump = running.submit(read_request("public.gone"))
        running.mirror(dump.id, Progress(State.failed, "no captured table matches 'public.gone'"))
        assert "no captured table matches 'public.gone'" in dblog("dumps", dump.id).stdout

    def test_json_is_what_the_store_knows(self, made: list[str], running: Pipeline) -> None:
        assert [d["id"] for d in document("dumps")] == made
        assert document("dumps", made[2])["seconds_left"] == running.dump(made[2]).seconds_left

    def test_only_some_that_have_ended_are_shown_and_all_that_have_not(self, running: Pipeline) -> None:
        waits = running.submit(read_request("public.first"))
        for _ in range(5):
            running.mirror(running.submit(read_request("public.orders")).id, part(State.completed, 1))
        result = dblog("dumps", "--last", 2)
        assert len(result.stdout.splitlines()) == 1 + 3
        assert waits.id in result.stdout
        assert "and 3 older" in result.stderr
        assert len(dblog("dumps", "--last", 0).stdout.splitlines()) == 1 + 6
        assert len(document("dumps", "--last", 2)) == 6

    def test_there_are_none(self, running: Pipeline) -> None:
        assert "pipeline 'shop' has no dumps" in dblog("dumps").stderr
        assert document("dumps") == []

    def test_there_is_no_such_dump(self, made: list[str]) -> None:
        result = dblog("dumps", "77", code=3)
        assert "there is no dump '77' in pipeline 'shop'" in result.stderr


class TestWishes:
    def test_pause_and_resume_and_cancel(self, running: Pipeline) -> None:
        dump = running.submit(read_request("public.orders"))
        running.mirror(dump.id, part(State.running, 1))
        assert dblog("pause", dump.id).stdout == f"dump {dump.id} is paused\n"
        assert running.dump(dump.id).wish is Wish.pause
        assert document("resume", dump.id)["state"] == "running"
        assert running.dump(dump.id).wish is Wish.run
        assert dblog("cancel", "1").stdout == f"dump {dump.id} is cancelling\n"
        assert "cancelling" in dblog("dumps").stdout
        assert "is cancelled already" in dblog("resume", dump.id, code=1).stderr

    def test_a_dump_that_has_ended_cannot_be_paused(self, running: Pipeline) -> None:
        dump = running.submit(read_request("public.orders"))
        running.mirror(dump.id, part(State.completed, 1))
        assert f"dump {dump.id} is completed already" in dblog("pause", dump.id, code=1).stderr

    def test_all_of_them_is_a_setting(self, running: Pipeline) -> None:
        dump = running.submit(read_request("public.orders"))
        dblog("pause", dump.id)
        assert "all dumps of pipeline 'shop' are paused" in dblog("pause", "--all").stdout
        assert running.settings().paused
        result = dblog("resume", "--all")
        assert not running.settings().paused
        assert f"still paused, by their own id: {dump.id}" in result.stderr
        assert document("pause", "--all") == {"paused": True}

    @pytest.mark.parametrize("arguments", [["pause"], ["resume", "3", "--all"], ["cancel"]])
    def test_it_must_be_clear_which(self, running: Pipeline, arguments: list[str]) -> None:
        dblog(*arguments, code=2)
        assert not running.settings().paused

    def test_there_is_no_such_dump(self, running: Pipeline) -> None:
        for verb in ("pause", "resume", "cancel"):
            assert "there is no dump '9'" in dblog(verb, 9, code=3).stderr


def test_a_dump_of_many_keys_is_one_line_of_json_each(running: Pipeline) -> None:
    lines = "\n".join(json.dumps(n) for n in range(10_001))
    assert "10001 keys are too many" in dblog("dump", "t", "--keys-file", "-", stdin=lines, code=2).stderr
