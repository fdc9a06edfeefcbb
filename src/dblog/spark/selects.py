"""The chunk selects of a batch, in the tasks of one Spark job.

A select runs on an executor and never on the driver: it reads as many rows as a chunk has. The job is a plain one of
Python tasks, because Spark would need another Python process to plan a DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from pyspark.sql import SparkSession

from dblog.capture.spool import Spool
from dblog.sources.base import Source
from dblog.spark.options import read_options
from dblog.work.handover import NO_ROWS
from dblog.work.lanes import Work, delivered
from dblog.work.tasks import Select


def run_selects(
    spark: SparkSession, spool: Spool, options: Mapping[str, str], work: Sequence[Work], *, tasks: int
) -> None:
    """Stage the chunks that the batch is to select. `options` are the stream's."""
    selects = [w for w in work if isinstance(w, Select)]
    if not selects:
        return
    lanes = [tuple(selects[n::tasks]) for n in range(min(tasks, len(selects)))]
    given = spark.sparkContext.parallelize(lanes, len(lanes))
    given.foreachPartition(partial(_stage, spool, {**options, **spool.options}))


def _stage(spool: Spool, options: Mapping[str, str], lanes: Iterable[tuple[Select, ...]]) -> None:
    """The work of a task. A select that cannot be done now is left to the planner: see `dblog.work.lanes`."""

    def source() -> Source:
        return read_options(options).source

    for lane in lanes:
        for _ in delivered(lane, NO_ROWS, spool, source, before=False):
            raise AssertionError("a select has no rows to deliver")
