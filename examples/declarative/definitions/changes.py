"""What happens to the tables of a shop: `changes` has it for all of them, `<table>_changes` with the table's columns.

One stream follows the database, whatever the number of tables.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

TABLES = {
    "customers": "id int, name string, city string",
    "orders": "id int, customer_id int, state string, total decimal(10, 2)",
}
"""The tables, and which of their columns are wanted."""


@dp.table
def changes() -> DataFrame:
    options = {
        "url": os.environ["SHOP_URL"],
        "tables": ", ".join(f"public.{table}" for table in TABLES),
        "slot": "declarative",
        "spool": os.environ["SHOP_SPOOL"],
    }
    return spark.readStream.format("dblog").options(**options).load()  # noqa: F821  spark-pipelines gives it


def typed(table: str, columns: str) -> None:
    @dp.table(name=f"{table}_changes")
    def its_changes() -> DataFrame:
        row = f.from_json(f.coalesce("after", "key"), columns)  # a delete has its key only
        place = f.struct("_lsn", "_seq")  # orders all that ever happens to a key, also between dumps and log
        events = spark.readStream.table("changes").where((f.col("table") == table) & (f.col("op") != "truncate"))  # noqa: F821
        when = f.col("_committed_at").alias("_at")
        return events.select(row.alias("row"), f.col("op").alias("_op"), place.alias("_place"), when).select(
            "row.*", "_op", "_place", "_at"
        )


for table, columns in TABLES.items():
    typed(table, columns)
