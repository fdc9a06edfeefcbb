"""The read of a chunk (`sources.base.Selection`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from dblog.core.offset import Extent
from dblog.core.schema import TableSchema
from dblog.databases.mysql.connect import Connection
from dblog.sources.mysql import chunks

if TYPE_CHECKING:
    from dblog.sources.mysql.source import MySQL


@dataclass(frozen=True)
class MySQLSelection:
    """The read of a chunk, in one transaction. The table cannot be altered until it ends."""

    _source: MySQL
    schema: TableSchema
    _extent: Extent

    def read(self, take: Callable[[pa.RecordBatch], None]) -> None:
        def read(connection: Connection) -> None:
            if self.schema.promised:
                chunks.check_promise(connection, self.schema, self._extent)
            chunks.select(connection, self.schema, self._extent, take)
            connection.commit()

        own = self._extent.where is not None or bool(self._extent.keys)
        with self._source._reading(f"reading table {self.schema.table}", everything=own):
            self._source._with(read, "chunks")
