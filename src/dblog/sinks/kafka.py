"""The sink `kafka`: every change is an event in a topic, with the row's key as its key.

One task writes the changes of a topic, in commit order. Its producer neither reorders nor repeats events when it
retries. A batch that comes again is written again: at least once, in order, and every value has its `lsn` and `seq`.

    a delete      its event, then a tombstone (the same key without a value), so that compaction removes the row
    a truncate    one event in every partition, so that it is in order with the other events there; its key has no
                  columns, because compacted topics refuse events without a key
    a cascade     one event in every partition too, with a key of its own
    dump rows     written in parallel: none of their keys is in the changes of the batch
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping, Sequence
from functools import reduce
from string import Formatter as Pattern
from typing import TYPE_CHECKING, Any

from dblog.core.schema import TableName
from dblog.core.settings import Setting, flag, mapping, number, text
from dblog.errors import ConfigError, SinkError, SinkUnreachable
from dblog.sinks.base import DELIVERED, Batch, Sink, SinkContext, TableBatch
from dblog.sinks.formats import FORMAT, OLD_ROWS, events, formatter
from dblog.sinks.kafka_topics import Topics, failure
from dblog.sinks.packages import PACKAGE, check_loaded, package_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CONNECTOR = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
IN_SPARK = "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime"
"""Dependencies of the connector that every Spark has: not downloaded."""
ORDER = {"enable.idempotence": "true", "acks": "all", "max.in.flight.requests.per.connection": "5"}
"""Options of the producer that keep events in order and on disk. They cannot be changed."""
FIXED = (*ORDER, "bootstrap.servers", "key.serializer", "value.serializer", "transactional.id")
PATIENCE = {"request.timeout.ms": "15000", "max.block.ms": "20000", "delivery.timeout.ms": "60000"}
"""How long a broker may take before it counts as unreachable, in milliseconds."""
REACH_SECONDS = 5.0
SPARK = {
    # Options that Spark does not show in plans: URLs, and all options of Kafka.
    "spark.sql.redaction.options.regex": "(?i)url|^kafka[.]",
    # Otherwise a union of one-partition frames has one partition, and a single task writes all topics.
    "spark.sql.unionOutputPartitioning": "false",
}


class KafkaSink(Sink):
    """Writes events to one topic per table, or to one topic for many tables."""

    settings = (
        Setting("servers", "the servers of the cluster", text("host:port, several of them separated by commas")),
        Setting(
            "topic",
            "the topic of a table; without {table} several tables share a topic",
            text("a name; {schema} and {table} are replaced by the table's schema and name"),
            default="{schema}.{table}",
        ),
        FORMAT,
        OLD_ROWS,
        Setting("tombstones", "whether an event without a value follows each delete", flag(), default=True),
        Setting("partitions", "partitions of new topics; 0: the cluster's default", number(0, 10000), default=0),
        Setting("topic_options", "options of new topics, such as cleanup.policy", mapping(), default={}),
        Setting("options", "options of the producer, such as security.protocol", mapping(), default={}, secret=True),
        PACKAGE,
    )

    def __init__(self, given: Mapping[str, Any], context: SinkContext) -> None:
        super().__init__(given, context)
        self._options = {**PATIENCE, **given["options"], **ORDER, "bootstrap.servers": given["servers"]}
        self._owners: dict[str, TableName] = {}
        self._known: set[str] = set()

    @property
    def cascades(self) -> str:
        return DELIVERED

    @property
    def before(self) -> bool:
        return bool(self.given["before"])

    @property
    def spark_settings(self) -> Mapping[str, str]:
        if self._package is None:
            return SPARK
        return {**SPARK, "spark.jars.packages": self._package, "spark.jars.excludes": IN_SPARK}

    @property
    def _package(self) -> str | None:
        return package_of("kafka", self.given["package"])

    @property
    def _shared(self) -> bool:
        """Whether the setting `topic` puts several tables into one topic."""
        return "{table}" not in self.given["topic"]

    @property
    def _own_format(self) -> bool:
        """Whether the formatter is a user's function."""
        return ":" in self.given["format"]

    def check(self) -> None:
        _check_pattern(self.given["topic"])
        if ours := sorted(set(self.given["options"]) & set(FIXED)):
            raise ConfigError(f"the kafka options {ours} cannot be set", hint="the order of events depends on them")
        formatter(self.given["format"], self.context)
        package_of("kafka", self.given["package"])
        self._reach()

    def open(self, spark: SparkSession) -> None:
        check_loaded(spark, "kafka", CONNECTOR, self._package)
        self._topics = Topics(spark, self._options)
        self._form = formatter(self.given["format"], self.context)

    def write(self, batch: Batch) -> None:
        self._reach()  # a producer takes long to notice that the servers are unreachable
        found: dict[str, list[TableBatch]] = {}
        for table in batch.tables:
            found.setdefault(self._topic(table.schema.table), []).append(table)
        try:
            partitions = self._partitions(found)
            frames = [part for name, tables in found.items() for part in self._parts(name, tables, partitions)]
            rows = reduce(lambda a, b: a.union(b), frames)
            rows.write.format("kafka").options(**{f"kafka.{n}": v for n, v in self._options.items()}).save()
        except Exception as error:
            self._known.clear()
            raise failure(error, self.given["options"].values()) from None

    # -- events ------------------------------------------------------------------------------------------------

    def _parts(self, topic: str, tables: Sequence[TableBatch], partitions: Mapping[str, int]) -> list[DataFrame]:
        """The events of a topic: its changes in order, as one partition, and the rows of dumps."""
        from pyspark.sql import functions as f

        name = f.lit(topic).alias("topic")
        changes = [self._events(t, t.changes) for t in tables if t.changes is not None]
        rows = [self._events(t, t.rows) for t in tables if t.rows is not None]
        parts = [part.select(name, f.lit(None).cast("int").alias("partition"), "key", "value") for part in rows]
        if changes:
            whole = _in_order(changes).select("key", f.inline(self._copies(partitions.get(topic, 1))))
            parts.append(whole.select(name, "partition", "key", "value"))
        return parts

    def _events(self, table: TableBatch, frame: DataFrame) -> DataFrame:
        """The events of a table. In a shared topic the key names the table too, unless the formatter is a user's. A
        truncate always gets a key."""
        from pyspark.sql import functions as f

        made = events(table, frame, self._form)
        name = table.schema.table
        place = f.to_json(f.struct(f.col("_lsn").alias("lsn"), f.col("_seq").alias("seq")))
        key, emptied = f.col("key"), f.when(f.col("_op") == "truncate", f.lit("{}"))
        emptied = emptied.when(f.col("_op") == "cascade", place)  # a user's formatter may give it no key
        if not self._shared:
            return made.withColumn("key", f.coalesce(key, emptied))
        beginning = f'{{"schema":{json.dumps(name.schema)},"table":{json.dumps(name.name)},"key":'
        with_table = [f.concat(f.lit(beginning), part, f.lit("}")) for part in (key, emptied)]
        return made.withColumn("key", f.coalesce(key if self._own_format else with_table[0], with_table[1]))

    def _copies(self, partitions: int) -> Column:
        """The records of an event, as an array of partition and value. The partition is null if the key decides it."""
        from pyspark.sql import functions as f

        def written(partition: Column, value: Column) -> Column:
            return f.struct(partition.cast("int").alias("partition"), value.cast("string").alias("value"))

        once = f.array(written(f.lit(None), f.col("value")))
        everywhere = f.transform(f.sequence(f.lit(0), f.lit(partitions - 1)), lambda n: written(n, f.col("value")))
        copies = f.when(f.col("_op").isin("truncate", "cascade"), everywhere)
        if self.given["tombstones"]:
            tombstone = f.array(written(f.lit(None), f.lit(None)))
            buried = (f.col("_op") == "delete") & f.col("value").isNotNull()
            copies = copies.when(buried, f.concat(once, tombstone))
        return copies.otherwise(once)

    # -- topics --------------------------------------------------------------------------------------------------

    def _topic(self, table: TableName) -> str:
        """The topic of a table. Characters that a topic's name cannot have become underscores."""
        name = re.sub(r"[^a-zA-Z0-9._-]", "_", self.given["topic"].format(schema=table.schema, table=table.name))
        name = name.lstrip(".") if not table.schema else name
        owner = self._owners.setdefault(name, table)
        if owner != table and not self._shared:
            raise SinkError(
                f"the tables {str(owner)!r} and {str(table)!r} would have the same topic, {name!r}",
                hint="use both {schema} and {table} in topic, or give one of the tables another target",
            )
        return name

    def _partitions(self, found: Mapping[str, Sequence[TableBatch]]) -> dict[str, int]:
        """The number of partitions of each topic that may get a truncate or a cascade. Creates missing topics."""
        if new := found.keys() - self._known:
            self._topics.create(new, self.given["partitions"], self.given["topic_options"])
            self._known |= new
        emptied = [name for name, tables in found.items() if any(t.truncated or t.cascades for t in tables)]
        return self._topics.partitions(emptied) if emptied else {}

    def _reach(self) -> None:
        """Return if one of the servers accepts a connection. Raises ConfigError or SinkUnreachable."""
        said = []
        for host, port in [_address(server.strip()) for server in self.given["servers"].split(",")]:
            try:
                socket.create_connection((host, port), REACH_SECONDS).close()
                return
            except OSError as error:
                said.append(f"{host}:{port}: {error}")
        raise SinkUnreachable(f"no kafka server can be reached: {'; '.join(said)}", hint="check the setting servers")


def _in_order(changes: Sequence[DataFrame]) -> DataFrame:
    """The events in order, as one partition. The events of a single table are in order already."""
    if len(changes) == 1:
        return changes[0].coalesce(1)
    from pyspark.sql.functions import desc  # a cascade has the order of its parent's change, and comes after it

    return reduce(lambda a, b: a.union(b), changes).repartition(1).sortWithinPartitions("_lsn", "_seq", desc("_op"))


def _check_pattern(topic: str) -> None:
    hint = "use letters, digits, '.', '_', '-' and the names {schema} and {table}"
    try:
        parts = list(Pattern().parse(topic))
    except ValueError as error:
        raise ConfigError(f"setting 'topic' has the value {topic!r}: {error}", hint=hint) from None
    if any(name not in (None, "schema", "table") or form or cast for _, name, form, cast in parts):
        raise ConfigError(f"setting 'topic' has the value {topic!r}", hint=hint)
    if not all(re.fullmatch(r"[a-zA-Z0-9._-]*", text) for text, *_ in parts):
        raise ConfigError(f"setting 'topic' has the value {topic!r}", hint=hint)


def _address(server: str) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\s\[\]]+))(?::(\d{1,5}))", server)
    if not found:
        raise ConfigError(f"setting 'servers' has {server!r}", hint="write host:port, several separated by commas")
    return found[1] or found[2], int(found[3])
