"""The read of a chunk (`sources.base.Selection`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from dblog.core.offset import Extent
from dblog.core.schema import TableSchema
from dblog.databases.postgres.connect import Connection
from dblog.sources.postgres import chunks

if TYPE_CHECKING:
    from dblog.sources.postgres.source import Postgres


@dataclass(frozen=True)
class PostgresSelection:
    """The read of a chunk, in one transaction. The lock of its first statement, which every select takes, protects the
    schema until the rows are read."""

    _source: Postgres
    schema: TableSchema
    _extent: Extent

    def read(self, take: Callable[[pa.RecordBatch], None]) -> None:
        def read(connection: Connection) -> None:
            own = self._extent.where is not None or bool(self._extent.keys)
            with self._source._reading(f"reading table {self.schema.table}", everything=own):
                if self.schema.promised:
                    chunks.check_promise(connection, self.schema, self._extent)
                chunks.select(connection, self.schema, self._extent, take)
                connection.cursor().execute("rollback")  # undoes settings that a condition may have changed

        self._source._with(read, "chunks")
