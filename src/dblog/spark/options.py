"""The options of `spark.readStream.format("dblog")`: one table of all of them, read and checked here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dblog.capture.segments import Limit
from dblog.capture.spool import Spool
from dblog.core.names import Pattern, parse_patterns, parse_table
from dblog.core.option_values import OptionValues, bad_value
from dblog.core.promised_keys import OPTION as KEYS
from dblog.core.promised_keys import PromisedKeys, read_keys
from dblog.core.schema import NULL, TableName
from dblog.core.settings import Setting, choice, flag, matching, number, optional, size, text, texts
from dblog.core.value_rules import OPTION as VALUES
from dblog.core.value_rules import ValueRules, read_rules
from dblog.databases.families import Address, entry_of
from dblog.errors import ConfigError
from dblog.ha.lease_file import LeaseFile
from dblog.planning.settings import StreamSettings
from dblog.sources.base import Source
from dblog.sources.family import Family, SourceOptions, digest, family_of
from dblog.storage.object_storage import OPTIONS as STORAGE_OPTIONS
from dblog.storage.object_storage import ObjectStorage

OPTIONS = (
    Setting(
        "url",
        "the source; also mysql:// or mariadb://",
        text("postgresql://user:password@host:port/database"),
        secret=True,
    ),
    Setting("table", "follow one table: the stream has its columns", text("schema.table"), None),
    Setting(
        "tables",
        "follow many tables: the stream has JSON envelopes",
        text("patterns like public.*, !public.tmp_*"),
        None,
    ),
    Setting("columns", "of one table, only these columns and the key", texts("names separated by commas"), None),
    Setting("dump", "whether each table's full state is delivered first", choice("initial", "never"), "initial"),
    Setting(
        "slot",
        "the replication slot; one for each query",
        matching("[a-z0-9_]{1,63}", "1 to 63 lower-case letters, digits and underscores"),
        None,
        computed="from the tables",
    ),
    Setting("publication", "PostgreSQL: the publication", text("a name"), None, computed="the slot's name"),
    Setting(
        "serverId",
        "MySQL, MariaDB: the replica id of this stream; one for each",
        number(1, 2**32 - 1),
        None,
        computed="from the tables",
    ),
    Setting(
        "spool",
        "where captured log and chunks wait",
        text("a folder or file system URI"),
        None,
        computed="a temporary folder",
    ),
    *STORAGE_OPTIONS,
    Setting(
        "pipeline",
        "what people call this stream: dblog status, dblog dump ...",
        text("a name"),
        None,
        computed="the slot's name",
    ),
    Setting(
        "state",
        "where requests, settings and progress are kept",
        text("a file, zookeeper://hosts/path, postgresql://..., mysql://... or off"),
        None,
        secret=True,
        computed="one file for each user",
    ),
    Setting(
        "lease",
        "the file with the deadline of the leader's lease; dblog run --standby sets it",
        text("a path"),
        None,
        computed="no lease",
    ),
    Setting(
        "watermark",
        "none: write nothing to the source, for read-only users and replicas",
        choice("table", "none"),
        "table",
    ),
    Setting(
        "chunkRows",
        "rows per chunk of a dump; auto adapts them to the select's time",
        optional(number(1, 10_000_000), "auto"),
        None,
    ),
    Setting(
        "parallelism",
        "chunks that are selected at the same time",
        number(1, 1000),
        None,
        computed="the driver's cores, at most 8",
    ),
    Setting(
        "maxDelaySeconds",
        "how long a change may wait for its delivery while a dump runs",
        optional(number(0.01, 3600.0), "auto"),
        None,
        computed="about twice as long as without a dump",
    ),
    Setting(
        "batchSeconds",
        "the least seconds from batch to batch while no dump runs; rounds of a dump follow one another without a pause",
        number(0.0, 86_400.0),
        0.0,
    ),
    Setting(
        "maxRowsPerTrigger",
        "rows of log per batch, cut between transactions",
        number(1, 2**31 - 1),
        None,
        computed="no limit",
    ),
    Setting(
        "maxBytesPerTrigger", "bytes of log per batch, cut between transactions", size(), 128 << 20, computed="128m"
    ),
    Setting("readAheadBytes", "how far capture may run ahead of Spark", size(), 256 << 20, computed="256m"),
    Setting("drain", "deliver the log up to now, end the dumps, then deliver nothing more", flag(), False),
    Setting("deliver", "ranges: what the sinks of dblog run read, table by table", choice("rows", "ranges"), "rows"),
    Setting("before", "also deliver the old row where the log has it", flag(), False),
    Setting("decimals", "string: deliver numeric columns as text", choice("decimal", "string"), "decimal"),
    Setting(
        "dates",
        "MySQL, MariaDB: string delivers dates, impossible ones too, as text",
        choice("date", "string"),
        "date",
    ),
    Setting(
        "cascades",
        "MySQL, MariaDB: what to do about foreign keys that change rows without a record in the log; skip leaves their "
        "tables out, follow has the sink apply them or deliver events, stop stops when it happens, ignore goes on "
        "without",
        choice("follow", "skip", "stop", "ignore"),
        None,
        computed="skip; in a pipeline follow, if every sink applies them",
    ),
    Setting("arrays", "string: deliver array columns as PostgreSQL's literal", choice("array", "string"), "array"),
    Setting(
        "values",
        "what is delivered for a value that its column's type cannot hold: null, with its text in _raw_values; "
        "text for all values of the column; or stop",
        VALUES,
        NULL,
    ),
    Setting(
        "years",
        "PostgreSQL: 1-9999 treats dates and timestamps of other years as values that do not fit",
        choice("all", "1-9999"),
        None,
        computed="all; in a pipeline 1-9999 for a sink that cannot store others",
    ),
    Setting(
        "keys",
        "the keys of tables without a primary key and without a usable unique key, as you promise that they hold",
        KEYS,
        None,
        computed="none",
    ),
    Setting(
        "catchUp",
        "PostgreSQL: off reads the log by the replication protocol only, however far behind the stream is",
        choice("auto", "off"),
        "auto",
    ),
    Setting(
        "streamInProgress",
        "PostgreSQL 14 and later: false has the server keep a large transaction on its disk until it commits",
        flag(),
        True,
    ),
    Setting(
        "failover",
        "PostgreSQL 17 and later: off creates the replication slot without FAILOVER, so that standbys do not get it",
        choice("auto", "off"),
        "auto",
    ),
    Setting(
        "heartbeatSeconds",
        "how often an idle stream acknowledges the log, and tables are looked at",
        number(1, 3600),
        30,
    ),
    Setting(
        "renamed",
        "PostgreSQL: follow delivers a renamed table under the name it had",
        choice("stop", "follow"),
        "stop",
    ),
    Setting(
        "unsuitable",
        "refuse: do not start when a pattern brings a table that cannot be followed; skip leaves it out",
        choice("skip", "refuse"),
        "skip",
    ),
    Setting(
        "onTableError",
        "set-aside: a table that fails is set aside, and the others go on; stop: the stream stops",
        choice("stop", "set-aside"),
        "stop",
    ),
    Setting("newTables", "tell: name a table that comes later, and leave it out", choice("follow", "tell"), "follow"),
    Setting(
        "patienceSeconds",
        "how long a lost connection is tried again, and a new replication slot waits for open transactions",
        number(1, 86400),
        300,
    ),
)
"""Every option of dblog's own families; `databases.families.Entry.options` names those of only one family."""


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
    state: str | None = field(repr=False)
    """Where the state store is: None for the default file, `off` for none."""
    lease: LeaseFile | None
    """The deadline of the leader's lease; None if the stream has no standby."""
    decimals: str
    values: ValueRules
    keys: PromisedKeys
    writes: bool
    skips: bool
    """Whether tables that a pattern brings and that cannot be followed are left out."""
    ranges: bool
    """Whether each batch is delivered as the work it consists of, for `dblog.spark.ranges` to read."""
    drain: bool
    """Whether the stream ends with the log as it is when the query starts, and with the dumps."""
    settings: StreamSettings
    limit: Limit
    own: Mapping[str, Any]
    """The checked options that only the source's family has."""
    objects: ObjectStorage

    def open_spool(self) -> Spool:
        return Spool(self.spool, self.objects)

    @property
    def of_source(self) -> SourceOptions:
        """What the family makes a source from."""
        return SourceOptions(
            address=self.address,
            patterns=self.patterns,
            slot=self.slot,
            columns=self.columns,
            before=self.settings.before,
            writes=self.writes,
            decimals=self.decimals,
            values=self.values,
            keys=self.keys,
            skips=self.skips,
            folder=None if "://" in self.spool else self.spool,
            own=self.own,
        )

    @property
    def source(self) -> Source:
        """A source that has not been used yet. Only now the code of its family is loaded."""
        return self.family.source(self.of_source)


def read_options(given: Mapping[str, str]) -> Options:
    """Check what the user gave. Raises ConfigError that names the option, the value and what is allowed."""
    values = {name.lower(): value for name, value in given.items() if not name.startswith("__")}
    options = OptionValues(values, OPTIONS)
    known = option_names(values.get("url", ""))
    spelled = {name.lower() for name in known}
    for name in given:
        if name.lower() not in spelled and not name.startswith("__"):
            raise ConfigError(f"unknown option {name!r}", hint="the options are " + ", ".join(known))
    url = options.read("url")
    family = family_of(url)
    address = family.parse(url)
    table, patterns = _tables(options, family.default_schema(address))
    if options.read("cascades") == "follow" and options.read("deliver") != "ranges":
        raise ConfigError(
            "option 'cascades' is follow, which only the sinks of a pipeline can apply",
            hint="set it to skip, stop or ignore, or use dblog run",
        )
    slot = options.read("slot") or family.slot(address, table, values.get("tables", ""))
    return Options(
        family=family,
        address=address,
        table=table,
        patterns=patterns,
        columns=_columns(options, table),
        slot=slot,
        spool=options.read("spool") or _default_spool(address, slot),
        pipeline=options.read("pipeline") or slot,
        state=options.read("state"),
        lease=None if options.read("lease") is None else LeaseFile(options.read("lease")),
        decimals=options.read("decimals"),
        values=read_rules(options.read("values"), family.default_schema(address)),
        keys=read_keys(options.read("keys"), family.default_schema(address)),
        writes=options.read("watermark") == "table",
        skips=options.read("unsuitable") == "skip",
        ranges=options.read("deliver") == "ranges",
        drain=options.read("drain"),
        settings=StreamSettings(
            dump=options.read("dump") == "initial",
            before=options.read("before"),
            chunk_rows=options.read("chunkRows"),
            parallelism=options.read("parallelism") or min(os.cpu_count() or 2, 8),
            read_ahead=options.read("readAheadBytes"),
            heartbeat=options.read("heartbeatSeconds"),
            patience=options.read("patienceSeconds"),
            max_delay=options.read("maxDelaySeconds"),
            batch_seconds=options.read("batchSeconds"),
            follow_renamed=options.read("renamed") == "follow",
            follow_new=options.read("newTables") == "follow",
            set_aside=_sets_aside(options, table),
        ),
        limit=Limit(rows=options.read("maxRowsPerTrigger"), nbytes=options.read("maxBytesPerTrigger")),
        own=family.own_options(options, address, slot),
        objects=ObjectStorage.of_options(values),
    )


def _sets_aside(options: OptionValues, table: TableName | None) -> bool:
    chosen = options.read("onTableError")
    if chosen == "set-aside" and table is not None and options.read("deliver") != "ranges":
        raise bad_value("onTableError", chosen, "stop: the stream has no other table than its own")
    return bool(chosen == "set-aside")


def option_names(url: str) -> list[str]:
    """The names of all options that a stream of this URL may have: those of a family that dblog does not bring too."""
    entry = entry_of(url)
    return list(dict.fromkeys((*(o.name for o in OPTIONS), *(() if entry is None else entry.options))))


def _tables(options: OptionValues, default_schema: str) -> tuple[TableName | None, tuple[Pattern, ...]]:
    """The one table of a typed stream, if it is one, and the patterns of the tables to follow."""
    one, many = options.read("table"), options.read("tables")
    if (one is None) == (many is None):
        raise ConfigError(
            "option 'table' or 'tables' is missing"
            if one is None
            else "options 'table' and 'tables' exclude each other",
            hint='.option("table", "public.orders") gives typed columns, .option("tables", "public.*") envelopes',
        )
    if one is not None:
        table = parse_table(one, default_schema=default_schema)
        return table, parse_patterns(one, "table", default_schema=default_schema)
    patterns = parse_patterns(many, default_schema=default_schema)
    if all(p.exclude for p in patterns):
        raise bad_value("tables", many, "at least one pattern without '!'")
    return None, patterns


def _columns(options: OptionValues, table: TableName | None) -> tuple[str, ...] | None:
    names: tuple[str, ...] | None = options.read("columns")
    if names is not None and table is None:
        raise ConfigError("option 'columns' needs the option 'table'", hint="envelopes hold all columns")
    return names


def _default_spool(address: Address, slot: str) -> str:
    folder = f"dblog-spool-{os.getuid()}"
    return os.path.join(tempfile.gettempdir(), folder, f"{slot}-{digest(*address.endpoint)}")
