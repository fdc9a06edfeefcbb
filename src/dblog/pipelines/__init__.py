"""Pipelines: what `dblog run` makes of a file. One stream for each sink, which neither stops nor waits for another."""
