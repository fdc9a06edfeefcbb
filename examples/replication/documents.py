"""Documents of a search index: each order together with its customer, who lives in another database.

Both pipelines write here, each at its own speed. A batch is taken in two steps:

1. The copy of its table takes it: exactly once, and never an older state over a newer one. That is the sink `sql`.
2. The documents that it touches are made anew, from both copies as they are now: an order's own, and all of a customer.

Step 2 is done by one pipeline at a time. So whoever comes last sees what the other has written, and it does not matter
which log is ahead. A batch that comes again is passed over by the copy, and makes the same documents again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg2

from dblog.core.settings import read_settings
from dblog.errors import SinkUnreachable
from dblog.sinks.base import Batch, SinkContext, TableBatch
from dblog.sinks.net_effect import net
from dblog.sinks.sql import SqlSink

RENEW = """
    insert into documents (id, body)
    select o.id, jsonb_build_object('item', o.item, 'amount', o.amount, 'customer', c.name, 'city', c.city)
    from copies.orders o left join copies.customers c on c.id = o.customer_id
    where {}
    on conflict (id) do update set body = excluded.body
"""
REMOVE = "delete from documents o where {} and not exists (select from copies.orders c where c.id = o.id)"
TOUCHED = {"orders": "o.id = any(%s)", "customers": "o.customer_id = any(%s)"}

AT_ONCE = 10_000
"""Keys in a statement."""
LOCK = 2010_12597
"""The number of the lock under which documents are made."""


class Documents:
    """What a pipeline does to the index."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._url = settings["url"]
        given = {"url": self._url, "schema": "copies"}
        self._copies = SqlSink(
            read_settings("copies", given, SqlSink.settings), SinkContext(settings["source"], Path())
        )

    def open(self, spark: Any) -> None:
        self._copies.open(spark)

    def close(self) -> None:
        self._copies.close()

    def write(self, batch: Batch) -> None:
        self._copies.write(batch)
        try:
            with closing(psycopg2.connect(self._url)) as index, index, index.cursor() as cursor:
                cursor.execute("select pg_advisory_xact_lock(%s)", [LOCK])
                for table in batch.tables:
                    renew(cursor, table)
        except psycopg2.OperationalError as error:
            raise SinkUnreachable("the index is away") from error


def renew(cursor: Any, table: TableBatch) -> None:
    """Make the documents anew that a table's changes touch."""
    name = table.schema.table.name
    if table.truncated is not None:
        cursor.execute(REMOVE.format("true"))
        cursor.execute(RENEW.format("true"))
    for keys in keys_of(table):
        if name == "orders":
            cursor.execute(REMOVE.format(TOUCHED[name]), [keys])
        cursor.execute(RENEW.format(TOUCHED[name]), [keys])


def keys_of(table: TableBatch) -> Iterator[list[int]]:
    """The keys that a batch touches, a part of them at a time."""
    rows = net(table)
    keys = iter(()) if rows is None else rows.select("id").toLocalIterator(prefetchPartitions=True)
    while part := [key for (key,) in islice(keys, AT_ONCE)]:
        yield part
