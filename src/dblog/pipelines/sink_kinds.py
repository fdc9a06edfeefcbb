"""The types of sinks: the class of each, which is imported when a pipeline names it."""

from __future__ import annotations

from importlib import import_module

from dblog.core.settings import nearest
from dblog.errors import ConfigError
from dblog.sinks.base import Sink

SINKS = {
    "sql": "dblog.sinks.sql:SqlSink",
    "delta": "dblog.sinks.lake:DeltaSink",
    "iceberg": "dblog.sinks.lake:IcebergSink",
    "parquet": "dblog.sinks.parquet:ParquetSink",
    "kafka": "dblog.sinks.kafka:KafkaSink",
    "ndjson": "dblog.sinks.ndjson:NdjsonSink",
    "stdout": "dblog.sinks.ndjson:StdoutSink",
    "http": "dblog.sinks.http:HttpSink",
    "python": "dblog.sinks.python:PythonSink",
    "noop": "dblog.sinks.noop:NoopSink",
}


def sink_class(kind: str) -> type[Sink]:
    """The class of a type of sink. Raises ConfigError."""
    if kind not in SINKS:
        raise ConfigError(
            f"there is no sink of the type {kind!r}",
            hint=nearest(kind, list(SINKS)) + "the types are " + ", ".join(SINKS),
        )
    module, _, name = SINKS[kind].partition(":")
    try:
        found: type[Sink] = getattr(import_module(module), name)
    except ImportError as error:
        raise ConfigError(
            f"the sink type {kind!r} cannot be loaded: {error}", hint="install the missing package, or use another type"
        ) from error
    return found
