"""The tables as they are now (SCD type 1) and as they have been (SCD type 2), kept by AUTO CDC."""

from pyspark import pipelines as dp

for table in ("customers", "orders"):
    dp.create_streaming_table(table)
    dp.create_auto_cdc_flow(
        target=table,
        source=f"{table}_changes",
        keys=["id"],
        sequence_by="_place",
        apply_as_deletes="_op = 'delete'",
        except_column_list=["_op", "_place", "_at"],
        stored_as_scd_type=1,
    )
    dp.create_streaming_table(f"{table}_history")
    dp.create_auto_cdc_flow(
        target=f"{table}_history",
        source=f"{table}_changes",
        keys=["id"],
        sequence_by="_place",
        apply_as_deletes="_op = 'delete'",
        except_column_list=["_op", "_place"],
        stored_as_scd_type=2,
        track_history_except_column_list=["_at"],  # a dump that finds what is there already opens no version
    )
