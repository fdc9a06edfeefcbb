"""A Spark application in a process of its own, to be killed, watched, or run on a cluster: `app.py <json>`.

It writes every batch to `<out>/<batch>-<pid>.json` in one step, rows in the order of their partitions. With `remote` it
speaks to Spark by Spark Connect. `also` are the options of a second stream in the same query. It never ends the batch
whose number is `stall`: it makes the file `stalled-<batch>` and waits. With `held` it waits for a line on its standard
input when Spark is there. A stream with the option `drain` is stopped when all is delivered.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
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
    if "also" in given:
        rows = rows.unionByName(spark.readStream.format("dblog").options(**given["also"]).load())
    if given.get("explain"):
        rows.explain(extended=True)
    stream = rows.writeStream.option("checkpointLocation", given["checkpoint"])
    if given.get("available_now"):
        stream = stream.trigger(availableNow=True)
    if "parquet" in given:
        query = stream.format("parquet").start(given["parquet"])
    else:
        query = stream.foreachBatch(write_to(Path(given["out"]), given.get("stall"))).start()
    print("started", flush=True)
    if given["options"].get("drain") == "true":
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()
    if given.get("progress"):
        print("progress", json.dumps([json.loads(p.json) for p in query.recentProgress]), flush=True)


def write_to(folder: Path, stall: int | None = None) -> Any:
    def write(batch: DataFrame, number: int) -> None:
        rows = [row.asDict(recursive=True) for row in batch.collect()]
        if number == stall:
            (folder.parent / f"stalled-{number}").touch()
            time.sleep(3600)
        draft = folder / f".{number}-{os.getpid()}"
        draft.write_text(json.dumps(rows, default=_text))
        draft.rename(folder / f"{number}-{os.getpid()}.json")

    return write


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime.datetime) else str(value)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
