"""Lake tables written from Python, without Spark's connectors and their jars.

files.py      the contract of a table format: its files, its commits
merge.py      mode `current`: which rows of the table a batch replaces, and which rows it adds
versions.py   mode `history`: the same for versions of rows
write.py      what a task does for a table: finds the rows that are replaced, writes the files that replace theirs
writer.py     what the driver does for a batch: opens tables, runs the job, commits
maintenance.py    what the driver does between batches: chores that keep tables fast
delta.py      Delta Lake, by delta-rs; with its chores in delta_chores.py
iceberg.py    Iceberg, by pyiceberg; with its catalog, chores, commits, files, types and errors in iceberg_*.py

Tasks write files, and only the driver commits them: one commit per table and batch, with the batch's mark in it. A file
that no commit names is not part of the table, so a task can fail, or be run twice, without harm.
"""
