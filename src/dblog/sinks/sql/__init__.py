"""The sink `sql`: copies of the source's tables in PostgreSQL, MySQL or MariaDB, exactly once.

sink        writes a batch: loads staging tables, then applies all of them in one transaction
ledger      the sink's own tables in the target: delivered batches, written tables, deleted keys
tables      creates and alters the target's tables
shape       compares a target's table with the source's schema
load        the executors' part: rows into a staging table
text        Arrow columns as the text that a server reads
target      what the sink needs from a database; postgres and mysql implement it
"""

from dblog.sinks.sql.sink import SqlSink

__all__ = ["SqlSink"]
