"""The options of `spark.readStream.format("dblog")`: one table of all of them, read and checked here."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dblog.capture.segments import Limit
from dblog.core.names import Pattern, parse_patterns, parse_table
from dblog.core.schema import TableName
from dblog.databases.mysql import connect as mysql
from dblog.databases.postgres.connect import Address, parse
from dblog.errors import ConfigError
from dblog.planning.settings import Settings

if TYPE_CHECKING:
    from dblog.sources.mysql.source import MySQL
    from dblog.sources.postgres.source import Postgres


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

    address: Address | mysql.Address
    table: TableName | None
    patterns: tuple[Pattern, ...]
    columns: tuple[str, ...] | None
    slot: str
    publication: str
    spool: str
    pipeline: str
    state: str | None
    """Where the state store is: None for the default file, `off` for none."""
    server_id: int
    decimals: str
    dates: str
    arrays: str
    writes: bool
    ranges: bool
    """Whether each batch is delivered as the work it consists of, for `dblog.spark.ranges` to read."""
    settings: Settings
    limit: Limit

    @property
    def source(self) -> Postgres | MySQL:
        """Only the family that is asked for is loaded: Spark starts many Python processes."""
        if isinstance(self.address, mysql.Address):
            from dblog.sources.mysql.column_types import TypeOptions as MyTypeOptions
            from dblog.sources.mysql.source import MySQL

            return MySQL(
                address=self.address,
                patterns=self.patterns,
                server_id=self.server_id,
                columns=self.columns,
                types=MyTypeOptions(decimals=self.decimals, dates=self.dates),  # type: ignore[arg-type]
                before=self.settings.before,
                writes=self.writes,
            )
        from dblog.sources.postgres.column_types import TypeOptions
        from dblog.sources.postgres.source import Postgres

        return Postgres(
            address=self.address,
            patterns=self.patterns,
            slot=self.slot,
            publication=self.publication,
            columns=self.columns,
            types=TypeOptions(decimals=self.decimals, arrays=self.arrays),  # type: ignore[arg-type]
            before=self.settings.before,
            writes=self.writes,
        )


def read_options(given: Mapping[str, str]) -> Options:
    """Check what the user gave. Raises ConfigError that names the option, the value and what is allowed."""
    values = {name.lower(): value for name, value in given.items() if not name.startswith("__")}
    known = {o.name.lower() for o in OPTIONS}
    for name in given:
        if name.lower() not in known and not name.startswith("__"):
            raise ConfigError(f"unknown option {name!r}", hint="the options are " + ", ".join(o.name for o in OPTIONS))
    read = _Reader(values)
    address = _address(read.required("url"))
    schema = address.database if isinstance(address, mysql.Address) else "public"
    table, patterns = read.tables(schema)
    slot = read.slot(address)
    return Options(
        address=address,
        table=table,
        patterns=patterns,
        columns=read.columns(table),
        slot=slot,
        publication=values.get("publication", slot),
        spool=values.get("spool") or _default_spool(address, slot),
        pipeline=values.get("pipeline") or slot,
        state=values.get("state"),
        server_id=read.number("serverId", 1, 2**32 - 1, _server_id(address, slot)),
        decimals=read.choice("decimals", ("decimal", "string")),
        dates=read.choice("dates", ("date", "string")),
        arrays=read.choice("arrays", ("array", "string")),
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
    )


class _Reader:
    """Takes single values out of the options."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def required(self, name: str) -> str:
        if name not in self._values:
            raise ConfigError(f"option {name!r} is missing", hint=f'add .option("{name}", "{_option(name).takes}")')
        return self._values[name]

    def choice(self, name: str, allowed: tuple[Any, ...]) -> Any:
        value = self._values.get(name.lower(), allowed[0])
        if value.lower() not in allowed:
            raise _bad(name, value, " or ".join(allowed))
        return value.lower()

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        value = self._values.get(name.lower())
        if value is None and default is not None:
            return default
        if value is None or not re.fullmatch(r"\d+", value.strip()) or not least <= int(value) <= most:
            raise _bad(name, value or "", f"a whole number from {least} to {most}")
        return int(value)

    def size(self, name: str, default: int) -> int:
        value = self._values.get(name.lower())
        if value is None:
            return default
        match = re.fullmatch(r"(\d+)\s*([kmg]?)b?", value.strip().lower())
        if match is None or int(match[1]) == 0:
            raise _bad(name, value, "a size like 64m, 1g or a number of bytes")
        return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]

    def tables(self, default_schema: str) -> tuple[TableName | None, tuple[Pattern, ...]]:
        if ("table" in self._values) == ("tables" in self._values):
            both = "table" in self._values
            raise ConfigError(
                "options 'table' and 'tables' exclude each other" if both else "option 'table' or 'tables' is missing",
                hint='.option("table", "public.orders") gives typed columns, .option("tables", "public.*") envelopes',
            )
        if "table" in self._values:
            table = parse_table(self._values["table"], default_schema=default_schema)
            return table, parse_patterns(self._values["table"], "table", default_schema=default_schema)
        patterns = parse_patterns(self._values["tables"], default_schema=default_schema)
        if all(p.exclude for p in patterns):
            raise _bad("tables", self._values["tables"], "at least one pattern without '!'")
        return None, patterns

    def columns(self, table: TableName | None) -> tuple[str, ...] | None:
        value = self._values.get("columns")
        if value is None:
            return None
        names = tuple(name.strip() for name in value.split(","))
        if table is None:
            raise ConfigError("option 'columns' needs the option 'table'", hint="envelopes hold all columns")
        if not all(names):
            raise _bad("columns", value, "names separated by commas")
        return names

    def slot(self, address: Address | mysql.Address) -> str:
        value = self._values.get("slot")
        if value is not None:
            if not re.fullmatch(r"[a-z0-9_]{1,63}", value):
                raise _bad("slot", value, "1 to 63 lower-case letters, digits and underscores")
            return value
        tables = str(parse_table(self._values["table"])) if "table" in self._values else self._values["tables"]
        slug = re.sub(r"[^a-z0-9]+", "_", tables.lower()).strip("_")[:40]
        return f"dblog_{slug}_{_digest(address.database, tables)}"


def _address(url: str) -> Address | mysql.Address:
    scheme = url.partition("://")[0]
    if scheme in mysql.SCHEMES:
        return mysql.parse(url)
    if scheme in ("postgresql", "postgres"):
        return parse(url)
    raise ConfigError(
        "option 'url' is not the URL of a database that is known here",
        hint="write it as postgresql://user:password@host:5432/database, mysql://... or mariadb://...",
    )


def _endpoint(address: Address | mysql.Address) -> tuple[str, str, str]:
    if isinstance(address, mysql.Address):
        return address.host, str(address.port), address.database
    return address.get("host"), address.get("port"), address.database


def _server_id(address: Address | mysql.Address, slot: str) -> int:
    """One that no replica has been given by hand, always the same for the same stream."""
    return (1 << 31) | int(hashlib.sha256("\0".join((*_endpoint(address), slot)).encode()).hexdigest()[:7], 16)


def _default_spool(address: Address | mysql.Address, slot: str) -> str:
    digest = _digest(*_endpoint(address))
    return os.path.join(tempfile.gettempdir(), f"dblog-spool-{os.getuid()}", f"{slot}-{digest}")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:6]


def _option(name: str) -> Option:
    return next(o for o in OPTIONS if o.name == name)


def _bad(name: str, value: str, allowed: str) -> ConfigError:
    return ConfigError(f"option {name!r} has the value {value!r}", hint=f"allowed is {allowed}")
