"""`dblog status`, `watch`, `set`, `tables` on a store in which the test plays the pipeline."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from dblog.cli.watch import LINES, told
from dblog.core.throttle import SETTINGS, Throttle
from dblog.state.pipeline import Pipeline, pipelines
from dblog.state.requests import State, read_request
from tests.cli.conftest import STATUS, part
from tests.cli.program import Process, dblog, document


class TestForget:
    def test_a_pipeline_that_is_gone_is_forgotten_with_all_that_is_known_of_it(self, running: Pipeline) -> None:
        dump = running.submit(read_request("public.orders"))
        Pipeline(running.store, "other").open()
        running.say({**STATUS, "state": "stopped"})
        assert dblog("forget", "shop").stdout == "forgot pipeline shop\n"
        assert (running.status()["state"], running.dumps()) == ("never started", [])
        assert pipelines(running.store) == ["other"]
        assert "there is no pipeline 'shop'" in dblog("forget", "shop", code=3).stderr
        assert running.submit(read_request("public.orders")).id.split("-")[0] > dump.id.split("-")[0]

    def test_a_pipeline_that_runs_is_not_forgotten(self, running: Pipeline) -> None:
        assert "stop it first" in dblog("forget", "shop", code=1).stderr
        assert running.status()["state"] == "running"


class TestRetry:
    def test_a_table_that_is_set_aside_is_taken_up_again(self, running: Pipeline) -> None:
        failed = {"reason": "value", "message": "it is NaN", "position": 23_803_720, "at": 1.5}
        running.say({**STATUS, "failed_tables": {"public.orders": failed}})
        shown = dblog("status").stdout
        assert re.search(r"pipeline +shop  degraded", shown)
        assert re.search(r"set aside +public\.orders, value, delivered up to 0/16B3748: it is NaN", shown)
        assert "dblog retry public.orders takes it up again" in shown
        said = dblog("retry", "orders").stdout
        assert said == "table public.orders is taken up again; it was set aside because of: it is NaN\n"
        assert running.retries() == {"public.orders": (23_803_720, 1.5)}
        assert document("retry", "public.orders") == {"table": "public.orders", **failed}

    def test_another_table_is_refused(self, running: Pipeline) -> None:
        assert "is not set aside" in dblog("retry", "public.orders", code=3).stderr
        assert not running.retries()


class TestStatus:
    def test_all_is_told(self, running: Pipeline) -> None:
        dump = running.submit(read_request("public.orders"))
        running.mirror(dump.id, part(State.running, 50, 0, 100))
        ended = running.submit(read_request("public.orders"))
        running.mirror(ended.id, part(State.completed, 1))
        shown = dblog("status").stdout
        for line in (
            r"pipeline +shop  running",
            r"source +postgresql://db\.example:5432/shop, 1 table, slot dblog_public_1a2b3c",
            r"process +4242 on etl1, started 3 min 2\d s ago",
            r"lag +210 ms, 280 B; the log arrives 4 ms after the commit",
            r"position +0/16B3748 delivered, 0/16B3848 captured, 0/16B3860 is the end of the log",
            r"slot +active, reserved, 16\.0 MiB of log kept",
            r"delivered +18,211 log events, 63,000 dump rows; 12 dropped as stale",
            r"dump work +31 windows, 60 selects, 20 ms each, the last 14 ms",
            r"spool +3\.0 MiB",
            rf"{dump.id} +running +public\.orders +50 +50 +0 +█{{10}}░{{10}} +50% +10\.0 s",
        ):
            assert re.search(rf"^{line} *$", shown, re.MULTILINE), line
        assert "waiting" not in shown
        assert ended.id not in shown

    def test_positions_of_mysql_are_a_file_of_its_log_and_a_place_in_it(self, pipeline: Pipeline) -> None:
        pipeline.say(
            {
                **{name: value for name, value in STATUS.items() if name != "slot"},
                "source": "mysql://app@db.example/shop",
                "server_id": "2222222222",
                "position": (3 << 40) + 1234,
                "captured": (3 << 40) + 5678,
                "latest": (4 << 40) + 4,
                "slot_health": {"active": True},
            }
        )
        shown = dblog("status").stdout
        log = "000003:1234 delivered, 000003:5678 captured, 000004:4 is the end of the log"
        assert re.search(rf"position +{log} *$", shown, re.MULTILINE)
        assert re.search(r"source +mysql://app@db\.example/shop, 1 table, server id 2222222222 *$", shown, re.MULTILINE)
        assert "slot" not in shown, "MySQL has none"
        pipeline.tell([{"at": 1.0, "kind": "offset_committed", "position": (3 << 40) + 1234, "events": 1}])
        assert "up to 000003:1234, 1 log events" in dblog("watch", "--no-follow").stdout

    def test_positions_of_a_source_that_is_not_known_here_are_numbers(self, pipeline: Pipeline) -> None:
        pipeline.say({**STATUS, "source": "oracle://db.example/shop"})
        assert re.search(r"position +23803720 delivered, 23803976 captured", dblog("status").stdout)

    def test_json_has_the_same(self, running: Pipeline) -> None:
        dump = running.submit(read_request("public.orders"))
        shown = document("status")
        assert shown["pipeline"] == "shop"
        assert {name: shown[name] for name in STATUS} == STATUS
        assert [d["id"] for d in shown["dumps"]] == [dump.id]

    def test_what_it_waits_for_and_a_slot_in_danger_are_told(self, pipeline: Pipeline) -> None:
        health = {"active": False, "wal_status": "unreserved", "retained_bytes": 5 << 30, "safe_bytes": 1 << 20}
        pipeline.say({**STATUS, "waiting": "lag 3.2 s is over 1 s", "slot_health": health})
        shown = dblog("status").stdout
        assert re.search(r"waiting +lag 3\.2 s is over 1 s", shown)
        assert "not active, unreserved, 5.0 GiB of log kept, 1.0 MiB until the server removes log" in shown

    def test_a_sink_that_is_away_and_restarts_are_told(self, running: Pipeline) -> None:
        said = {"state": "waiting for sink", "since": time.time() - 70, "reason": "no route to host", "restarts": 2}
        running.deliver({**said, "unready_after": 60})
        shown = dblog("status").stdout
        assert re.search(r"shop  waiting for sink", shown)
        assert re.search(r"waiting for sink +since \d{4}-.*, 1 min 1\d s ago: no route to host", shown)
        assert re.search(r"restarts +2 since it was started", shown)
        assert "last seen" not in shown
        assert {**document("status"), **said} == document("status")

    def test_a_pipeline_that_failed_says_why(self, pipeline: Pipeline) -> None:
        pipeline.say({**STATUS, "state": "failed", "error": "replication slot 'x' is gone"})
        shown = dblog("status").stdout
        assert re.search(r"shop +failed", shown)
        assert "replication slot 'x' is gone" in shown

    def test_a_pipeline_that_went_without_a_word_is_lost(self, pipeline: Pipeline) -> None:
        pipeline.store.put("pipelines/shop/status", {**STATUS, "updated_at": time.time() - 35})
        shown = dblog("status").stdout
        assert re.search(r"shop +lost", shown)
        assert re.search(r"last seen +3[5-9]\.\d s ago", shown)

    def test_a_pipeline_that_has_said_nothing_or_little(self, pipeline: Pipeline) -> None:
        assert re.search(r"shop +never started", dblog("status").stdout)
        pipeline.say({"state": "running"})
        assert re.search(r"shop +running", dblog("status").stdout)
        pipeline.say({"state": "running", "position": 1, "lag_bytes": 3, "selects": 1, "slot_health": {}})
        assert re.search(r"position +1 delivered", dblog("status").stdout)

    def test_there_is_no_pipeline(self, place: str) -> None:
        result = dblog("status", "--json", code=3)
        assert "no pipeline has used this state store yet" in result.stderr
        assert result.stdout == ""

    def test_watching_goes_on_until_it_is_interrupted(self, running: Pipeline, place: str, tmp_path: Path) -> None:
        with Process(tmp_path, "status", "--watch", "--json", DBLOG_STATE=place) as watching:
            watching.until(lambda: watching.stdout.count("\n") == 1)
            running.say({**STATUS, "events": 18_212})
            watching.until(lambda: '"events": 18212' in watching.stdout)
            watching.send(signal.SIGINT)
            assert watching.wait() == 130
        assert all(json.loads(line)["pipeline"] == "shop" for line in watching.stdout.splitlines())
        assert watching.stderr == ""


EVENTS: list[dict[str, Any]] = [
    {"kind": "watermark_written", "token": "0b6c1f7e-1c5c-4e9e"},
    {"kind": "watermark_seen", "token": "0b6c1f7e-1c5c-4e9e", "position": 23_803_720},
    {"kind": "round_opened", "chunks": 2, "selects": [["7", "initial", "public.t"]]},
    {"kind": "chunk_selected", "chunk": 7, "dump": "initial", "table": "public.t", "rows": 2000, "seconds": 0.015},
    {
        "kind": "row_dropped",
        "chunk": 7,
        "dump": "initial",
        "table": "public.t",
        "key": ["a\x1b", "1"],
        "by": {"op": "update", "lsn": 23_803_720, "seq": 1},
    },
    {"kind": "chunk_emitted", "chunk": 7, "dump": "initial", "table": "public.t", "rows": 1999, "dropped": 1},
    {"kind": "batch_planned", "position": 23_803_720, "events": 3, "chunks": 2},
    {"kind": "offset_committed", "position": 23_803_720, "events": 12},
    {"kind": "dump_started", "dump": "3-9f2c", "state": "running", "reason": None},
    {"kind": "dump_ended", "dump": "3-9f2c", "state": "failed", "reason": "the table is gone"},
    {"kind": "table_joins", "table": "public.u", "reason": "it is new"},
    {"kind": "table_renamed", "table": "public.t", "name": "public.t_old"},
    {"kind": "table_left_out", "table": "public.v", "reason": "it has no primary key"},
    {"kind": "table_set_aside", "table": "public.w", "reason": "value", "message": "it is NaN", "position": 7},
    {"kind": "commits_lost", "after": 5, "upto": 9, "servers": "timeline 1", "tables": {"public.t": 2}},
    {"kind": "raw_value", "table": "public.w", "column": "price", "rows": 2},
    {"kind": "events_lost", "events": 17},
]
TOLD = [
    "watermark 0b6c1f7e",
    "watermark 0b6c1f7e at 0/16B3748",
    "2 chunks are selected",
    "chunk 7 of public.t for dump initial: 2,000 rows in 15 ms",
    'key ["a\\u001b", "1"] of public.t in chunk 7: the log has a newer update at 0/16B3748',
    "chunk 7 of public.t for dump initial: 1,999 rows, 1 dropped",
    "up to 0/16B3748, 3 log events, 2 chunks",
    "up to 0/16B3748, 12 log events",
    "dump 3-9f2c",
    "dump 3-9f2c failed: the table is gone",
    "table public.u is followed and dumped: it is new",
    "table public.t is called public.t_old now",
    "table public.v is left out: it has no primary key",
    "table public.w is set aside: it is NaN",
    "delivered commits from 5 to 9 are lost with timeline 1: their rows are read again",
    "column price of table public.w has values that its type cannot hold",
    "17 events are not in the log: there were too many",
]


class TestWatch:
    def test_every_kind_is_told_in_words(self, running: Pipeline) -> None:
        assert [e["kind"] for e in EVENTS] == list(LINES)
        running.tell([{"at": 1_700_000_000.25, **e} for e in EVENTS])
        lines = dblog("watch", "--no-follow", "--last", "20").stdout.splitlines()
        assert [re.split(r" {2,}", line)[1:] for line in lines] == [
            [e["kind"], words] for e, words in zip(EVENTS, TOLD, strict=True)
        ]
        assert re.match(r"\d\d:\d\d:20\.250 ", lines[0])

    def test_an_event_that_lacks_fields_or_is_of_another_kind_is_told_too(self) -> None:
        assert told({"kind": "chunk_emitted", "rows": 3}) == "chunk ? of ? for dump ?: 3 rows, ? dropped"
        assert told({"at": 1, "kind": "new", "n": [1]}) == '{"n": [1]}'

    def test_json_lines_of_the_last_of_a_kind(self, running: Pipeline) -> None:
        running.tell([{"at": float(n), "kind": kind, "n": n} for n in range(20) for kind in ("round_opened", "x")])
        shown = dblog("watch", "--no-follow", "--json", "--kind", "round_opened", "--last", 3).stdout
        assert [json.loads(line)["n"] for line in shown.splitlines()] == [17, 18, 19]
        assert dblog("watch", "--no-follow", "--last", 0).stdout == ""

    def test_an_unknown_kind_is_wrong_usage(self, running: Pipeline) -> None:
        result = dblog("watch", "--kind", "chunk", code=2)
        assert "there are no events of kind 'chunk'" in result.stderr
        assert "row_dropped" in result.stderr

    def test_it_follows_what_happens_and_misses_nothing(self, running: Pipeline, place: str, tmp_path: Path) -> None:
        running.tell([{"at": 0.0, "kind": "round_opened", "n": -1}])
        with Process(tmp_path, "watch", "--json", "--last", 1, DBLOG_STATE=place) as watching:
            watching.until(lambda: watching.stdout.count("\n") == 1)
            for n in range(30):
                running.tell([{"at": 0.0, "kind": "round_opened", "n": 100 * n + m} for m in range(100)])
            watching.until(lambda: watching.stdout.count("\n") == 3001)
            watching.send(signal.SIGINT)
            assert watching.wait() == 130
        assert [json.loads(line)["n"] for line in watching.stdout.splitlines()] == list(range(-1, 3000))
        assert watching.stderr == ""

    def test_it_says_that_nothing_runs(self, pipeline: Pipeline, place: str, tmp_path: Path) -> None:
        with Process(tmp_path, "watch", DBLOG_STATE=place) as watching:
            watching.until(lambda: "'shop' does not run (never started)" in watching.stderr)
            pipeline.tell([{"at": 0.0, "kind": "round_opened", "chunks": 1}])
            watching.until(lambda: "1 chunks are selected" in watching.stdout)


class TestSet:
    def test_all_settings_are_shown_with_their_meaning(self, running: Pipeline) -> None:
        running.change({"rows_per_second": 500, "paused": True})
        _, *lines = dblog("set").stdout.splitlines()
        values = {"rows_per_second": "500", "paused": "true"}
        assert len(lines) == len(SETTINGS)
        for setting, line in zip(SETTINGS, lines, strict=True):
            value = values.get(setting.name, setting.shown_default)
            assert re.split(r" {2,}", line.rstrip()) == [setting.name, value, setting.takes, setting.about]

    def test_some_are_changed(self, running: Pipeline) -> None:
        shown = dblog("set", "rows_per_second=500", "probe=select 1 = 1").stdout
        assert running.settings() == Throttle(rows_per_second=500.0, probe="select 1 = 1")
        assert len(shown.splitlines()) == 3
        assert document("set", "rows_per_second=none")["rows_per_second"] is None
        assert running.settings() == Throttle(probe="select 1 = 1")

    @pytest.mark.parametrize(
        ("argument", "said"),
        [
            ("speed=1", "unknown setting 'speed'"),
            ("chunks=0", "setting 'chunks' has the value '0'"),
            ("chunks", "'chunks' is not a setting"),
            ("=1", "'=1' is not a setting"),
        ],
    )
    def test_a_wrong_one_changes_nothing(self, running: Pipeline, argument: str, said: str) -> None:
        assert said in dblog("set", "delay_seconds=1", argument, code=2).stderr
        assert running.settings() == Throttle()


class TestTables:
    def test_the_pipelines_tables(self, running: Pipeline) -> None:
        _, line = dblog("tables").stdout.splitlines()
        assert re.split(r" {2,}", line) == [
            "public.orders",
            "~120,000",
            "id",
            "id bigint, total numeric(10,2)",
            "ab12cd34",
        ]
        assert document("tables") == STATUS["tables"]

    def test_a_pipeline_that_has_not_said_yet(self, pipeline: Pipeline) -> None:
        assert "'shop' has not written its tables yet (never started)" in dblog("tables").stderr
        assert document("tables") == {}

    def test_a_database_needs_both_options(self, running: Pipeline) -> None:
        assert "--url and --tables need each other" in dblog("tables", "--tables", "public.*", code=2).stderr
