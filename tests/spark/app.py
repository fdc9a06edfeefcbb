"""A Spark application in a process of its own, to be killed, watched, or run on a cluster: `app.py <json>`.

It writes every batch to `<out>/<batch>-<pid>.json` in one step, rows in the order of their partitions. With `remote` it
speaks to Spark by Spark Connect. With `held` it waits for a line on its standard input when Spark is there.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import dblog


def main(given: dict[str, Any]) -> None:
    if given.get("remote"):
        spark = SparkSession.builder.remote(given["remote"]).getOrCreate()
        dblog.register(spark)
    else:
        settings = {name.replace(".", "__"): value for name, value in given.get("conf", {}).items()}
        spark = dblog.session("app", master=given.get("master", "local[2]"), **settings)
        spark.sparkContext.setLogLevel(given.get("log", "ERROR"))
    if given.get("held") and not sys.stdin.readline():
        return
    rows = spark.readStream.format("dblog").options(**given["options"]).load()
    if given.get("explain"):
        rows.explain(extended=True)
    stream = rows.writeStream.option("checkpointLocation", given["checkpoint"])
    if given.get("available_now"):
        stream = stream.trigger(availableNow=True)
    if "parquet" in given:
        query = stream.format("parquet").start(given["parquet"])
    else:
        query = stream.foreachBatch(write_to(Path(given["out"]))).start()
    print("started", flush=True)
    query.awaitTermination()
    if given.get("progress"):
        print("progress", json.dumps([json.loads(p.json) for p in query.recentProgress]), flush=True)


def write_to(folder: Path) -> Any:
    def write(batch: DataFrame, number: int) -> None:
        rows = [row.asDict(recursive=True) for row in batch.collect()]
        draft = folder / f".{number}-{os.getpid()}"
        draft.write_text(json.dumps(rows, default=_text))
        draft.rename(folder / f"{number}-{os.getpid()}.json")

    return write


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime.datetime) else str(value)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
