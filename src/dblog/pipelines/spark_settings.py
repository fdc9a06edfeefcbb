"""The settings with which Spark is started for a pipeline: those of its file, and those that its sinks and folders
need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dblog.errors import ConfigError
from dblog.pipelines.running import Stream
from dblog.spark.session import TUNED

JOINED = ("spark.jars.packages", "spark.jars.excludes", "spark.sql.extensions")
"""Settings of Spark that are lists: the values of the file and of several sinks are joined."""
OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
"""Settings of Spark that are options of Java: those of the file follow ours."""


def spark_settings(streams: Sequence[Stream], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Settings of Spark: those that are `given` in the file, and those that the sinks need. Raises ConfigError when two
    of them need different values."""
    merged: dict[str, str] = {"spark.scheduler.mode": "FAIR", **(given or {})}
    merged |= {name: f"{TUNED[name]} {merged[name]}" for name in OPTIONS if name in merged}
    by: dict[str, str] = dict.fromkeys(given or {}, "")
    for stream in streams:
        for name, value in [*stream.sink.spark_settings.items(), *stream.folder.spark_settings().items()]:
            if name in JOINED and name in merged:
                merged[name] = ",".join(dict.fromkeys([*merged[name].split(","), *value.split(",")]))
            elif name in by and merged[name] != value:
                raise _differing(name, value, by[name], stream.sink_name)
            else:
                merged[name] = value
            by.setdefault(name, stream.sink_name)
    return merged


def _differing(name: str, value: str, first: str, sink: str) -> ConfigError:
    if not first:
        return ConfigError(
            f"sink {sink!r} needs {name!r} to be {value!r}, and spark.settings has another value",
            hint="leave it out of spark.settings",
        )
    return ConfigError(
        f"sinks {first!r} and {sink!r} need different values of {name!r}",
        hint="run them as two pipelines, in two files",
    )
