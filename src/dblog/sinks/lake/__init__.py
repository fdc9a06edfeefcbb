"""Tables of a lake: Delta Lake and Apache Iceberg.

sink.py       writes a batch: chooses the writer of each table
columns.py    the table's columns in the lake, and their changes
marks.py      which batch a commit has
native/       the writer in Python, without connectors
by_spark/     the writer by Spark's connectors
delta.py, iceberg.py    the two sinks
"""

from dblog.sinks.lake.delta import DeltaSink
from dblog.sinks.lake.iceberg import IcebergSink

__all__ = ["DeltaSink", "IcebergSink"]
