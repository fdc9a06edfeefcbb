"""What Spark tells of a query's batches."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery


def batches(query: StreamingQuery) -> list[Any]:
    """The progress of the batches that Spark remembers, the newest last. Spark also tells of looks that found nothing,
    under the number of the batch that is to come: these are left out."""
    return [progress for progress in query.recentProgress if "addBatch" in progress["durationMs"]]


def offset(progress: Any, name: str) -> dict[str, Any]:
    """One of the source's offsets, which Spark has as JSON, or read already, or not at all."""
    found = progress["sources"][0][name]
    return (json.loads(found) if isinstance(found, str) else found) or {}
