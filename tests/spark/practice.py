"""A bit of everything that the tests do with Spark, so that its classes are loaded: `practice.py <folder>`."""

import sys

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

folder = sys.argv[1]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(100).select(
    "id", (fn.col("id") % 7).alias("k"), fn.current_timestamp().alias("at"), fn.lit("x").alias("t")
)
rows.write.parquet(f"{folder}/parquet")
rows.write.json(f"{folder}/json")
read = spark.read.parquet(f"{folder}/parquet")
last = read.withColumn("n", fn.row_number().over(Window.partitionBy("k").orderBy(fn.desc("id")))).where("n = 1")
last.join(spark.read.json(f"{folder}/json").select("id", fn.struct("t", "k").alias("s")), "id", "left").collect()
grouped = read.groupBy("k").agg(fn.max(fn.struct("id", "t")).alias("m"))
grouped.mapInArrow(lambda batches: batches, grouped.schema).collect()
wider = rows.withColumn("more", fn.lit(1))
read.unionByName(wider, allowMissingColumns=True).selectExpr("to_json(struct(*))").toPandas()


def take(frame: DataFrame, number: int) -> None:
    frame.persist()
    frame.count()
    frame.write.mode("append").json(f"{folder}/stream")
    frame.unpersist()


stream = spark.readStream.format("rate").option("rowsPerSecond", 50).load().writeStream.foreachBatch(take)
query = stream.option("checkpointLocation", f"{folder}/checkpoint").start()
while not query.recentProgress:
    query.awaitTermination(1)
query.stop()
