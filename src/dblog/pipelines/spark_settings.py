"""The settings with which Spark is started for the sinks and folders of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from dblog.errors import ConfigError
from dblog.pipelines.running import Stream

JOINED = ("spark.jars.packages", "spark.jars.excludes", "spark.sql.extensions")
"""Settings of Spark that are lists: the values of several sinks are joined."""


def spark_settings(streams: Sequence[Stream]) -> dict[str, str]:
    """Settings of Spark that the sinks need. Raises ConfigError when two sinks need different values."""
    merged: dict[str, str] = {"spark.scheduler.mode": "FAIR"}
    by: dict[str, str] = {}
    for stream in streams:
        for name, value in [*stream.sink.spark_settings.items(), *stream.folder.spark_settings().items()]:
            if name in JOINED and name in merged:
                merged[name] = ",".join(dict.fromkeys([*merged[name].split(","), *value.split(",")]))
            elif name in by and merged[name] != value:
                raise ConfigError(
                    f"sinks {by[name]!r} and {stream.sink_name!r} need different values of {name!r}",
                    hint="run them as two pipelines, in two files",
                )
            else:
                merged[name] = value
            by.setdefault(name, stream.sink_name)
    return merged
