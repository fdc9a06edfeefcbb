"""The sink `sql`: tables of PostgreSQL, MySQL or MariaDB that follow those of the source, exactly once.

sink        what is done with a batch: staging tables are loaded, one transaction applies them all
ledger       what the sink keeps in the target for itself: batches taken, tables written, keys deleted
shape       what a target's table must look like, and what is to be changed about it
load        the executors' part: rows into a staging table
text        Arrow columns as the text that a server reads
target      what a family of databases has to offer: postgres, mysql
"""

from dblog.sinks.sql.sink import SqlSink

__all__ = ["SqlSink"]
