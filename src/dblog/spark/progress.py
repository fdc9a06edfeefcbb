"""Spark's reports of a query's batches."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery


def batches(query: StreamingQuery, after: int = -1) -> list[Any]:
    """Spark's reports of the batches after number `after`, the newest last.

    Spark also reports triggers without data, under the number of the next batch: these are left out. Spark keeps a
    hundred reports, and reading all of them takes as long as a batch, so only the new ones are read.
    """
    found = []
    reports = query._jsq.recentProgress()
    for number in range(len(reports) - 1, -1, -1):
        progress = json.loads(reports[number].json())
        if progress["batchId"] <= after:
            break
        if "addBatch" in progress["durationMs"]:
            found.append(progress)
    return found[::-1]


def last(query: StreamingQuery) -> Any:
    """Spark's last report of a query; None before the first batch. As the JVM has it: what PySpark makes of it differs
    from version to version."""
    found = query._jsq.lastProgress()
    return None if found is None else json.loads(found.json())


def offset(progress: Any, name: str) -> dict[str, Any]:
    """One of the source's offsets in a report of `batches` or `last`; empty if Spark does not have it."""
    found = progress["sources"][0][name]
    return (json.loads(found) if isinstance(found, str) else found) or {}
