"""What a Spark user does without dblog: `python -m bench.spark_lake`, on a PySpark that has Delta's connector.

It is a process of its own. Each line of standard input is an order in JSON, each line of standard output the answer:

    dump     read a table by JDBC and write it as Delta or Parquet
    refresh  read a table by JDBC and MERGE it into a Delta table: changed rows, new rows, and those that are gone
    follow   MERGE the JSON files of a folder into a Delta table as they come, in a query that runs until `finish`
    finish   merge what is there, end the query, and say when each of its batches was done
    count    the rows of a Delta table

Spark is set up as is good for this work on one machine: a MERGE reads the table's log in as many tasks as there are
cores instead of 50, shuffles have as many partitions, changed rows get deletion vectors, and the driver has 4 GB.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

CORES = os.cpu_count() or 1
PACKAGES = "io.delta:delta-spark_4.1_2.13:4.4.0,org.postgresql:postgresql:42.7.8"
SETTINGS = {
    "spark.jars.packages": PACKAGES,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": str(CORES),
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
    "spark.sql.shuffle.partitions": str(CORES),
    "spark.sql.streaming.pollingDelay": "100ms",
    "spark.driver.memory": "4g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
FETCH_ROWS = 10_000
"""Rows that the JDBC driver asks for at a time. It would read all of them at once by default."""
COLUMNS = {
    "id": "bigint",
    "n": "int",
    "name": "string",
    "amount": "string",
    "at": "string",
    "flag": "boolean",
    "doc": "string",
    "ref": "string",
    "raw": "string",
    "score": "double",
}
"""The columns as Debezium's JSON has them."""
READ = {"amount": "cast({} as decimal(18,4))", "at": "cast({} as timestamp)", "raw": "unbase64({})"}
"""How a column becomes what the database has."""


class SparkLake:
    """The session, and the query that follows a folder."""

    def __init__(self, url: str) -> None:
        builder = SparkSession.builder.master(f"local[{CORES}]").appName("bench-spark-lake")
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
        self._spark = builder.getOrCreate()
        self._spark.sparkContext.setLogLevel("OFF")
        self._place = urlsplit(url)
        self._query: StreamingQuery | None = None
        self._done: list[float] = []
        self._folder = ""

    def dump(self, table: str, path: str, form: str) -> dict[str, Any]:
        begin = time.monotonic()
        self._table(table).write.format(form).save(path)
        return {"seconds": time.monotonic() - begin}

    def refresh(self, table: str, path: str) -> dict[str, Any]:
        begin = time.monotonic()
        rows = self._table(table)
        rows.createOrReplaceTempView("read")
        same = " AND ".join(f"t.{name} <=> s.{name}" for name in rows.columns)
        self._spark.sql(
            f"MERGE INTO delta.`{path}` t USING read s ON t.id = s.id "
            f"WHEN MATCHED AND NOT ({same}) THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE THEN DELETE"
        )
        return {"seconds": time.monotonic() - begin}

    def follow(self, folder: str, path: str, checkpoint: str) -> dict[str, Any]:
        row = ", ".join(f"{name}: {kind}" for name, kind in COLUMNS.items())
        schema = f"op string, before struct<id: bigint>, after struct<{row}>, source struct<lsn: bigint>"
        values = ", ".join(f"{READ.get(name, '{}').format(f'after.{name}')} AS {name}" for name in COLUMNS)
        empty = self._spark.createDataFrame([], f"after struct<{row}>").selectExpr(*values.split(", "))
        empty.write.format("delta").save(path)
        sets = ", ".join(f"t.{name} = s.{name}" for name in COLUMNS)
        names, given = ", ".join(COLUMNS), ", ".join(f"s.{name}" for name in COLUMNS)

        def merge(batch: DataFrame, number: int) -> None:
            # The last state of each key, which is all that a MERGE may see of it.
            last = (
                batch.selectExpr("coalesce(after.id, before.id) AS key", "op", "after", "source.lsn AS lsn")
                .groupBy("key")
                .agg(sql.max_by(sql.struct("op", "after"), "lsn").alias("last"))
                .selectExpr("key", "last.op AS op", "last.after AS after")
            )
            last.selectExpr("key", "op", *values.split(", ")).createOrReplaceTempView("changed")
            batch.sparkSession.sql(
                f"MERGE INTO delta.`{path}` t USING changed s ON t.id = s.key "
                f"WHEN MATCHED AND s.op = 'd' THEN DELETE WHEN MATCHED THEN UPDATE SET {sets} "
                f"WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT ({names}) VALUES ({given})"
            )
            self._done.append(time.time())

        self._done, self._folder = [], checkpoint
        files = self._spark.readStream.schema(schema).json(folder)
        self._query = files.writeStream.foreachBatch(merge).option("checkpointLocation", checkpoint).start()
        return {}

    def finish(self) -> dict[str, Any]:
        """When each batch was done, and how many rows it had: the names of its files say it."""
        assert self._query is not None
        self._query.processAllAvailable()
        self._query.stop()
        batches: dict[str, int] = {}
        for log in Path(self._folder, "sources", "0").glob("[0-9]*"):
            for line in log.read_text().splitlines()[1:]:
                entry = json.loads(line)
                batches[entry["path"]] = entry["batchId"]
        rows = [0] * len(self._done)
        for path, batch in batches.items():
            rows[batch] += int(Path(path).stem.split("-")[1])
        return {"rows": rows, "done": self._done}

    def count(self, path: str) -> dict[str, Any]:
        return {"rows": self._spark.read.format("delta").load(path).count()}

    def _table(self, name: str) -> DataFrame:
        """A table as Spark reads it by JDBC, in as many parts as there are cores."""
        bounds = self._jdbc(query=f"select min(id) low, max(id) high from {name}").load().collect()[0]
        return self._jdbc(
            dbtable=name,
            partitionColumn="id",
            lowerBound=bounds["low"] or 0,
            upperBound=(bounds["high"] or 0) + 1,
            numPartitions=CORES,
        ).load()

    def _jdbc(self, **options: Any) -> DataFrameReader:
        place = self._place
        return self._spark.read.format("jdbc").options(
            url=f"jdbc:postgresql://{place.hostname}:{place.port}{place.path}",
            user=unquote(place.username or ""),
            password=unquote(place.password or ""),
            driver="org.postgresql.Driver",
            fetchsize=FETCH_ROWS,
            **options,
        )


def main() -> None:
    lake: SparkLake | None = None
    for line in sys.stdin:
        order = json.loads(line)
        what = order.pop("do")
        if what == "start":
            lake = SparkLake(**order)
            answer: Mapping[str, Any] = {}
        else:
            do: Callable[..., Mapping[str, Any]] = getattr(lake, what)
            answer = do(**order)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
