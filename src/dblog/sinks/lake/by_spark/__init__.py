"""Lake tables written by Spark's connectors.

writer.py     writes a batch: prepares the table, writes in one statement, marks the commit with the batch
current.py    mode `current`: MERGE by key, never to an older state
history.py    mode `history`: every version of a row, with the time from and to which it was valid (SCD type 2)
delta.py, iceberg.py    the differences: names, settings of Spark, where the mark is stored
"""
