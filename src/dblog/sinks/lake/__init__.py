"""Tables of a lake, by Spark's connectors for Delta Lake and Apache Iceberg.

sink.py       what both do with a batch: prepare the table, one statement that writes, a mark that says it is written
target.py     the target's columns, and how they follow the source's
current.py    the table as it is now: MERGE by key, never to an older state
history.py    every state a row has had, with the time from and to which it was valid (SCD type 2)
delta.py, iceberg.py    what is different: names, settings of Spark, where the mark is kept
"""

from dblog.sinks.lake.delta import DeltaSink
from dblog.sinks.lake.iceberg import IcebergSink

__all__ = ["DeltaSink", "IcebergSink"]
