"""What Spark tells of a query's batches."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery


def batches(query: StreamingQuery, after: int = -1) -> list[Any]:
    """The progress of the batches after number `after` that Spark remembers, the newest last.

    Spark also reports triggers that found nothing, under the number of the batch that is to come: these are left out.
    It remembers a hundred reports, and to read all of them takes as long as a batch, so only the new ones are read.
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


def offset(progress: Any, name: str) -> dict[str, Any]:
    """One of the source's offsets, which Spark has as JSON, or read already, or not at all."""
    found = progress["sources"][0][name]
    return (json.loads(found) if isinstance(found, str) else found) or {}
