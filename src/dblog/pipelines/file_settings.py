"""The settings of a pipeline's file, section by section."""

from __future__ import annotations

from typing import Any

from dblog.core.promised_keys import COLUMNS as KEY_COLUMNS
from dblog.core.schema import NULL
from dblog.core.settings import Kind, Setting, choice, flag, mapping, matching, number, text, texts
from dblog.core.value_rules import COLUMNS, RULES
from dblog.ha.elector import LEASE_SECONDS
from dblog.sinks.route import MASKS
from dblog.spark.options import OPTIONS
from dblog.state.pipeline import UNREADY_SECONDS
from dblog.storage.object_storage import SETTINGS as STORAGE
from dblog.storage.object_storage import option_name

EVERY_SECONDS = 5.0
RESTARTS = 5

ELSEWHERE = {
    "url": "source.url",
    "table": "source.tables",
    "tables": "source.tables",
    "dump": "source.dump",
    "watermark": "source.watermark",
    "unsuitable": "source.unsuitable",
    "ontableerror": "source.on_table_error",
    "cascades": "source.cascades",
    "values": "source.values, or values in [[table]]",
    "keys": "key in [[table]]",
    "years": "no option: the sink decides which years it can store",
    "columns": "include in [[table]]",
    "slot": "pipeline.name",
    "pipeline": "pipeline.name",
    "state": "pipeline.state",
    "spool": "pipeline.spool",
    "lease": "no option: [ha] has the settings of the lease",
    "deliver": "no option: the sink decides how rows are delivered",
    "before": "no option: the sink decides whether it gets old rows",
    **{option_name(s.name).lower(): f"storage.{s.name}" for s in STORAGE},
}
"""Options of the Spark source that a file cannot set in `source.options`, and what to use instead."""

OF_SPARK = {
    "spark.master": "set spark.master as master in [spark]",
    "spark.remote": "dblog run needs a Spark session of its own, and cannot use Spark Connect",
}
"""Settings of Spark that a file cannot set in `spark.settings`, and what to do instead."""


OF_SOURCE = ("dump", "watermark", "unsuitable", "cascades")
"""Options of the Spark source that are settings of [source] themselves."""


def _tables() -> Kind:
    lists = texts()

    def read(value: Any) -> str:
        return value if isinstance(value, str) and value else ", ".join(lists.read(value or None))

    return Kind('patterns like ["public.*", "!public.tmp_*"]', read)


def _scalars() -> Kind:
    def read(value: Any) -> dict[str, str]:
        if not isinstance(value, dict) or not all(isinstance(item, (str, int, float)) for item in value.values()):
            raise TypeError
        return {n: str(item).lower() if isinstance(item, bool) else str(item) for n, item in value.items()}

    return Kind("a table of texts, numbers and true or false", read)


def _spark_settings() -> Kind:
    def read(value: Any) -> dict[str, str]:
        """The values by Spark's names. Names without quotes are tables within tables in TOML."""
        if not isinstance(value, dict):
            raise TypeError
        found: dict[str, str] = {}
        for name, item in value.items():
            if isinstance(item, dict):
                found |= {f"{name}.{below}": text for below, text in read(item).items()}
            else:
                found |= scalars.read({name: item})
        return found

    scalars = _scalars()
    return Kind('a table like { "spark.executor.memory" = "4g" }', read, table=True)


def _target() -> Kind:
    def read(value: Any) -> str:
        try:
            if not isinstance(value, str) or not value.format(schema="s", table="t"):
                raise TypeError
        except (KeyError, IndexError, AttributeError):
            raise ValueError from None
        return value

    return Kind("a name; {schema} and {table} are replaced by the source's schema and table", read)


def _masks() -> Kind:
    columns = mapping()

    def read(value: Any) -> dict[str, str]:
        found: dict[str, str] = columns.read(value)
        if not set(found.values()) <= set(MASKS):
            raise ValueError
        return found

    return Kind(f"a table of columns, each with {' or '.join(MASKS)}", read)


SOURCE = (
    Setting("url", "the database", text("a URL like postgresql://user@host/database, or mysql://..."), secret=True),
    Setting("password", "the password of the URL's user", text(), default=None, secret=True),
    Setting("tables", "which tables to follow", _tables()),
    *(option for option in OPTIONS if option.name in OF_SOURCE),
    Setting(
        "on_table_error",
        "what happens when one table fails: it is set aside and the others go on, or the stream stops",
        choice("set-aside", "stop"),
        "set-aside",
    ),
    Setting("values", "what is delivered for a value that its column's type cannot hold", choice(*RULES), NULL),
    Setting("options", "other options of the Spark source", _scalars(), default={}),
)
PIPELINE = (
    Setting(
        "name",
        "the name of the pipeline and of its replication slot; default: the file's name",
        matching("[a-z0-9_]{1,40}", "1 to 40 lower-case letters, digits and underscores"),
        default=None,
    ),
    Setting(
        "folder", "the folder of checkpoints; default: <file>.dblog beside the file", text("a folder or URI"), None
    ),
    Setting("spool", "where captured log and chunks wait; default: in `folder`", text("a folder or URI"), None),
    Setting("every", "seconds from batch to batch", number(0.0, 86_400.0), default=EVERY_SECONDS),
    Setting("restarts", "restarts of a failed stream within ten minutes", number(0, 100), default=RESTARTS),
    Setting(
        "unready_after",
        "seconds of waiting for a sink, or of restarts, until /health/ready answers 503",
        number(0.0, 86_400.0),
        default=UNREADY_SECONDS,
    ),
    Setting(
        "state",
        "the state store",
        text("a file, zookeeper://hosts/path, postgresql://..., mysql://... or off"),
        default=None,
        secret=True,
    ),
    Setting("private", "false: other users may read the output, if the umask allows it", flag(), default=True),
    Setting("http", "where to serve the HTTP API", text("an address like 127.0.0.1:8080"), default=None),
    Setting("token", "the HTTP API's token", text(), default=None, secret=True),
    Setting("read_token", "a token with which clients of the HTTP API only read", text(), default=None, secret=True),
)
HA = (
    Setting("standby", "true: several instances may run, and one of them leads", flag(), default=False),
    Setting(
        "lease_seconds", "after how long another instance leads if the leader dies", number(2.0, 600.0), LEASE_SECONDS
    ),
)
SPARK = (
    Setting(
        "master",
        "where Spark runs its tasks; default: MASTER in the environment, else local[*]",
        text("a master like local[4], spark://host:7077, yarn or k8s://https://host:443"),
        default=None,
    ),
    Setting("settings", "settings of Spark, like spark.executor.memory", _spark_settings(), default={}),
)
TABLE = (
    Setting("match", "the tables that this applies to", text('a pattern like "public.orders" or "public.*"')),
    Setting("target", "the name in the target", _target(), default=None),
    Setting("key", "for a table without a key: the columns that you promise to be one", KEY_COLUMNS, default=None),
    Setting("include", "only these columns, and the key", texts(), default=None),
    Setting("exclude", "all columns except these", texts(), default=()),
    Setting("rename", "new names of columns", mapping(), default={}),
    Setting("mask", "columns whose values are hidden", _masks(), default={}),
    Setting("values", "what is delivered for a value that its column's type cannot hold", COLUMNS, default=None),
    Setting("where", "only rows that meet this, in Spark's SQL", text("a condition"), default=None),
    Setting("sinks", "the sinks that this applies to; default: all", texts("a list of sinks' names"), default=None),
)
SINK = (
    Setting("type", "the kind of sink", text("one of the types of sinks")),
    Setting(
        "name",
        "its name; default: its type",
        matching("[a-z0-9_]{1,22}", "1 to 22 lower-case letters, digits and underscores"),
        default=None,
    ),
    Setting("enabled", "false: the sink is ignored", flag(), default=True),
)
