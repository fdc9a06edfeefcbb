"""Streams of a pipeline before Spark is there: their names, their options, what they want of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dblog.core.names import parse_patterns
from dblog.errors import ConfigError, DBLogError, SinkError
from dblog.pipelines.config import Config, SinkConfig
from dblog.pipelines.running import Stream, streams_of
from dblog.pipelines.secrets import Secret
from dblog.pipelines.spark_settings import spark_settings
from dblog.sinks.base import Batch, Sink
from dblog.sinks.route import Route

URL = "postgresql://cdc:secret-7@db.example/shop"
SPARK: Any = None
"""No stream of these tests calls Spark."""


class Wanting(Sink):
    """Wants something of Spark, and old rows."""

    @property
    def before(self) -> bool:
        return bool(self.given.get("before"))

    @property
    def spark_settings(self) -> Mapping[str, str]:
        return dict(self.given.get("spark", {}))

    def check(self) -> None:
        if "wrong" in self.given:
            raise self.given["wrong"]

    def write(self, batch: Batch) -> None:
        raise AssertionError


def config(folder: Path, *names: str, alone: bool | None = None, **settings: Any) -> Config:
    route = Route(parse_patterns("public.t")[0])
    return Config(
        base=folder,
        name="shop",
        folder=folder / "kept",
        spool=settings.pop("spool", None),
        every=5.0,
        state="off",
        http=None,
        token=None,
        throttle={},
        source={"url": Secret(URL), "tables": "public.*", **settings.pop("source", {})},
        sinks=tuple(SinkConfig(name, "wanting", Wanting, settings.get(name, {}), (route,)) for name in names),
        alone=len(names) == 1 if alone is None else alone,
        secrets=("secret-7",),
    )


def streams(*given: Any, **more: Any) -> list[Stream]:
    return streams_of(config(*given, **more), lambda sink, text: None)


def test_the_only_stream_is_called_like_the_pipeline_and_others_after_their_sinks(tmp_path: Path) -> None:
    assert [s.name for s in streams(tmp_path, "lake")] == ["shop"]
    assert [s.name for s in streams(tmp_path, "lake", "api")] == ["shop_lake", "shop_api"]
    assert [s.name for s in streams(tmp_path, "lake", alone=False)] == ["shop_lake"], "the other is switched off"


def test_a_stream_that_has_run_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "kept" / "lake").mkdir(parents=True)
    (tmp_path / "kept" / "lake" / "stream").write_text("shop\n")
    assert [s.name for s in streams(tmp_path, "lake", "api")] == ["shop", "shop_api"]


def test_each_stream_has_its_own_slot_and_spool(tmp_path: Path) -> None:
    lake, api = streams(tmp_path, "lake", "api", api={"before": True})
    assert (lake.read.slot, lake.read.pipeline, lake.read.ranges) == ("shop_lake", "shop_lake", True)
    assert (lake.read.spool, api.read.spool) == (f"{tmp_path}/kept/lake/spool", f"{tmp_path}/kept/api/spool")
    assert (lake.read.settings.before, api.read.settings.before) == (False, True)
    assert lake.sink.context.folder == tmp_path
    (far,) = streams(tmp_path, "lake", spool="s3://bucket/x")
    assert far.read.spool == "s3://bucket/x/lake"


def test_what_sinks_want_of_spark_is_put_together(tmp_path: Path) -> None:
    found = spark_settings(
        streams(
            tmp_path,
            "a",
            "b",
            a={"spark": {"spark.jars.packages": "x:1,y:2", "spark.sql.catalog.a": "A"}},
            b={"spark": {"spark.jars.packages": "y:2,z:3", "spark.sql.extensions": "E"}},
        )
    )
    assert found["spark.jars.packages"] == "x:1,y:2,z:3"
    assert (found["spark.sql.extensions"], found["spark.sql.catalog.a"]) == ("E", "A")


def test_two_sinks_cannot_want_different_things(tmp_path: Path) -> None:
    given = {name: {"spark": {"spark.sql.catalog.c": name}} for name in ("a", "b")}
    with pytest.raises(ConfigError, match=r"sinks 'a' and 'b' need different values of 'spark\.sql\.catalog\.c'"):
        spark_settings(streams(tmp_path, "a", "b", **given))


def test_one_server_id_is_not_enough_for_two(tmp_path: Path) -> None:
    assert streams(tmp_path, "a", source={"serverId": "7"})
    with pytest.raises(ConfigError, match="each sink needs its own"):
        streams(tmp_path, "a", "b", source={"serverid": "7"})


@pytest.mark.parametrize("kind", [SinkError, ConfigError, DBLogError])
def test_what_a_sink_finds_wrong_is_told_without_secrets(tmp_path: Path, kind: type[DBLogError]) -> None:
    wrong = kind("secret-7 is refused", hint="try another than secret-7")
    (stream,) = streams(tmp_path, "a", a={"wrong": wrong})
    found = stream.check()
    assert type(found) is kind
    assert (found.message, found.hint) == ("*** is refused", "try another than ***")


def test_a_stream_says_when_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (stream,) = streams(tmp_path, "a")
    seen: list[bool] = []
    monkeypatch.setattr(stream, "_run", lambda spark, once: seen.append(stream.ended))
    stream.start(SPARK, once=True, ended=lambda: seen.append(stream.ended))
    stream.join(60)
    assert seen == [False, True]
