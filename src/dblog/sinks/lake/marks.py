"""Marks: which batch of a pipeline a commit of the lake has.

A commit has the mark of its batch: the pipeline, the batch's id and the position at which it ends. A batch whose mark
exists is skipped when it comes again. A new stream numbers its batches from the beginning, while its positions go on.
So a batch was already written if neither its id nor its position is greater than the mark's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from dblog.sinks.base import Batch


class BatchMark(NamedTuple):
    """The last batch of this pipeline in a table."""

    batch: int
    position: int

    def has(self, batch: Batch) -> bool:
        return batch.id <= self.batch and batch.position <= self.position


def delta_mark(mark: BatchMark, pipeline: str) -> str:
    """A mark as the `userMetadata` of a commit of Delta."""
    return json.dumps({"dblog": pipeline, "batch": mark.batch, "position": mark.position})


def read_delta_mark(metadata: str | None, pipeline: str) -> BatchMark | None:
    """The mark in a commit's `userMetadata`, if it is one of this pipeline."""
    try:
        found = json.loads(metadata or "null")
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("dblog") != pipeline:
        return None
    return BatchMark(int(found["batch"]), int(found["position"]))


def iceberg_mark(mark: BatchMark, pipeline: str) -> dict[str, str]:
    """A mark as properties of a snapshot of Iceberg."""
    return {"dblog-pipeline": pipeline, "dblog-batch": str(mark.batch), "dblog-position": str(mark.position)}


def mark_property(pipeline: str) -> str:
    """The property of an Iceberg table in which the native writer keeps its last mark too."""
    return f"dblog.mark.{pipeline}"


def read_iceberg_mark(summary: Mapping[str, str], pipeline: str) -> BatchMark | None:
    """The mark in a snapshot's summary, if it is one of this pipeline."""
    if summary.get("dblog-pipeline") != pipeline:
        return None
    return BatchMark(int(summary["dblog-batch"]), int(summary["dblog-position"]))
