"""The sink `sql`: copies of the source's tables in PostgreSQL, MySQL or MariaDB, exactly once.

sink        writes a batch: has its rows loaded, then applies all of them in one transaction
ledger      the sink's own tables in the target: delivered batches, written tables, deleted keys
tables      creates and alters the target's tables
shape       compares a target's table with the source's schema
rows        the rows of a batch as one row per key
load        the tasks' part: rows into staging tables, or directly into the table
staged      staged rows, and conditions on them
apply       the statements that apply staged rows
text        Arrow columns as the text that a server reads
target      what the sink needs from a database; postgres and mysql implement it
"""

from dblog.sinks.sql.sink import SqlSink

__all__ = ["SqlSink"]
