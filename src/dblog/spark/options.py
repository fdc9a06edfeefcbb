"""The options of `spark.readStream.format("dblog")`: one table of all of them, read and checked in one place."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dblog.capture.segments import Limit
from dblog.core.names import Pattern, parse_patterns, parse_table
from dblog.core.option_values import OptionValues, bad_value
from dblog.core.schema import TableName
from dblog.databases.families import Address, entry_of
from dblog.errors import ConfigError
from dblog.planning.settings import Settings
from dblog.sources.base import Source
from dblog.sources.family import Family, Request, digest, family_of


@dataclass(frozen=True)
class Option:
    """One option: how it is spelled, what it takes, what it does."""

    name: str
    takes: str
    about: str
    default: str | None = None


OPTIONS = (
    Option("url", "postgresql://user:password@host:port/database", "the source; also mysql:// or mariadb://"),
    Option("table", "schema.table", "follow one table: the stream has its columns"),
    Option("tables", "patterns like public.*, !public.tmp_*", "follow many tables: the stream has JSON envelopes"),
    Option("columns", "names separated by commas", "of one table, only these columns and the key"),
    Option("dump", "initial or never", "whether each table's full state is delivered first", "initial"),
    Option("slot", "lower-case letters, digits, _", "the replication slot; one for each query", "from the tables"),
    Option("publication", "a name", "the publication", "the slot's name"),
    Option("serverId", "a number", "MySQL, MariaDB: the replica id of this stream; one for each", "from the tables"),
    Option("spool", "a folder or file system URI", "where captured log and chunks wait", "a temporary folder"),
    Option("pipeline", "a name", "what people call this stream: dblog status, dblog dump ...", "the slot's name"),
    Option("state", "a file or off", "where requests, settings and progress are kept", "one file for each user"),
    Option(
        "watermark", "table or none", "none: write nothing to the source, for read-only users and replicas", "table"
    ),
    Option("chunkRows", "auto or a number", "rows per chunk of a dump; auto adapts them to the select's time", "auto"),
    Option("parallelism", "a number", "chunks that are selected at the same time", "the driver's cores, at most 8"),
    Option("maxRowsPerTrigger", "a number", "rows of log per batch, cut between transactions", "no limit"),
    Option("maxBytesPerTrigger", "a size like 64m", "bytes of log per batch, cut between transactions", "128m"),
    Option("readAheadBytes", "a size like 256m", "how far capture may run ahead of Spark", "256m"),
    Option("deliver", "rows or ranges", "ranges: what the sinks of dblog run read, table by table", "rows"),
    Option("before", "true or false", "also deliver the old row where the log has it", "false"),
    Option("decimals", "decimal or string", "string: deliver numeric columns as text", "decimal"),
    Option("dates", "date or string", "MySQL, MariaDB: string delivers dates, impossible ones too, as text", "date"),
    Option("arrays", "array or string", "string: deliver array columns as PostgreSQL's literal", "array"),
    Option(
        "heartbeatSeconds", "a number", "how often an idle stream acknowledges the log, and tables are looked at", "30"
    ),
    Option("renamed", "stop or follow", "PostgreSQL: follow delivers a renamed table under the name it had", "stop"),
    Option("newTables", "follow or tell", "tell: name a table that comes later, and leave it out", "follow"),
    Option(
        "patienceSeconds",
        "a number",
        "how long a lost connection is tried again, and a new replication slot waits for open transactions",
        "300",
    ),
)


@dataclass(frozen=True)
class Options:
    """Checked options. Does not show secrets."""

    family: Family = field(repr=False)
    address: Address
    table: TableName | None
    patterns: tuple[Pattern, ...]
    columns: tuple[str, ...] | None
    slot: str
    spool: str
    pipeline: str
    state: str | None
    """Where the state store is: None for the default place, `off` for none."""
    decimals: str
    writes: bool
    ranges: bool
    """Whether each batch is delivered as the work it consists of, for `dblog.spark.ranges` to read."""
    settings: Settings
    limit: Limit
    own: Mapping[str, Any]
    """The checked options that only the source's family has."""

    @property
    def request(self) -> Request:
        """What the family makes a source from."""
        return Request(
            address=self.address,
            patterns=self.patterns,
            slot=self.slot,
            columns=self.columns,
            before=self.settings.before,
            writes=self.writes,
            decimals=self.decimals,
            own=self.own,
        )

    @property
    def source(self) -> Source:
        """A source that has not been used yet. Only now the code of its family is loaded."""
        return self.family.source(self.request)


def read_options(given: Mapping[str, str]) -> Options:
    """Check what the user gave. Raises ConfigError that names the option, the value and what is allowed."""
    values = {name.lower(): value for name, value in given.items() if not name.startswith("__")}
    read = _Reader(values)
    known = option_names(values.get("url", ""))
    for name in given:
        if name.lower() not in {k.lower() for k in known} and not name.startswith("__"):
            raise ConfigError(f"unknown option {name!r}", hint="the options are " + ", ".join(known))
    url = read.required("url")
    family = family_of(url)
    address = family.parse(url)
    table, patterns = read.tables(family.default_schema(address))
    slot = read.slot() or family.slot(address, table, values.get("tables", ""))
    return Options(
        family=family,
        address=address,
        table=table,
        patterns=patterns,
        columns=read.columns(table),
        slot=slot,
        spool=values.get("spool") or _default_spool(address, slot),
        pipeline=values.get("pipeline") or slot,
        state=values.get("state"),
        decimals=read.choice("decimals", ("decimal", "string")),
        writes=read.choice("watermark", ("table", "none")) == "table",
        ranges=read.choice("deliver", ("rows", "ranges")) == "ranges",
        settings=Settings(
            dump=read.choice("dump", ("initial", "never")) == "initial",
            before=read.choice("before", ("false", "true")) == "true",
            chunk_rows=None if values.get("chunkrows", "auto") == "auto" else read.number("chunkRows", 1, 10_000_000),
            parallelism=read.number("parallelism", 1, 1000, min(os.cpu_count() or 2, 8)),
            read_ahead=read.size("readAheadBytes", 256 << 20),
            heartbeat=read.number("heartbeatSeconds", 1, 3600, 30),
            patience=read.number("patienceSeconds", 1, 86400, 300),
            follow_renamed=read.choice("renamed", ("stop", "follow")) == "follow",
            follow_new=read.choice("newTables", ("follow", "tell")) == "follow",
        ),
        limit=Limit(
            rows=read.number("maxRowsPerTrigger", 1, 2**31 - 1) if "maxrowspertrigger" in values else None,
            nbytes=read.size("maxBytesPerTrigger", 128 << 20),
        ),
        own=family.own_options(read, address, slot),
    )


def option_names(url: str) -> list[str]:
    """The names of all options that a stream of this URL may have: those of a family that dblog does not bring too."""
    entry = entry_of(url)
    return list(dict.fromkeys((*(o.name for o in OPTIONS), *(() if entry is None else entry.options))))


class _Reader(OptionValues):
    """Takes the values out of the options that every stream has."""

    def required(self, name: str) -> str:
        if name not in self.values:
            raise ConfigError(f"option {name!r} is missing", hint=f'add .option("{name}", "{_option(name).takes}")')
        return self.values[name]

    def tables(self, default_schema: str) -> tuple[TableName | None, tuple[Pattern, ...]]:
        if ("table" in self.values) == ("tables" in self.values):
            both = "table" in self.values
            raise ConfigError(
                "options 'table' and 'tables' exclude each other" if both else "option 'table' or 'tables' is missing",
                hint='.option("table", "public.orders") gives typed columns, .option("tables", "public.*") envelopes',
            )
        if "table" in self.values:
            table = parse_table(self.values["table"], default_schema=default_schema)
            return table, parse_patterns(self.values["table"], "table", default_schema=default_schema)
        patterns = parse_patterns(self.values["tables"], default_schema=default_schema)
        if all(p.exclude for p in patterns):
            raise bad_value("tables", self.values["tables"], "at least one pattern without '!'")
        return None, patterns

    def columns(self, table: TableName | None) -> tuple[str, ...] | None:
        value = self.values.get("columns")
        if value is None:
            return None
        names = tuple(name.strip() for name in value.split(","))
        if table is None:
            raise ConfigError("option 'columns' needs the option 'table'", hint="envelopes hold all columns")
        if not all(names):
            raise bad_value("columns", value, "names separated by commas")
        return names

    def slot(self) -> str | None:
        value = self.values.get("slot")
        if value is not None and not re.fullmatch(r"[a-z0-9_]{1,63}", value):
            raise bad_value("slot", value, "1 to 63 lower-case letters, digits and underscores")
        return value


def _default_spool(address: Address, slot: str) -> str:
    folder = f"dblog-spool-{os.getuid()}"
    return os.path.join(tempfile.gettempdir(), folder, f"{slot}-{digest(*address.endpoint)}")


def _option(name: str) -> Option:
    return next(o for o in OPTIONS if o.name == name)
