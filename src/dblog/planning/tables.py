"""The schemas and estimated sizes of the followed tables, for planning and for the status."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dblog.capture.spool import LogFile, Spool
from dblog.core.offset import Followed
from dblog.core.schema import TableName, TableSchema
from dblog.planning.state_sync import StateSync, described
from dblog.sources.base import Source

_T = TypeVar("_T")


class FollowedTables:
    """Schemas and sizes of the tables that a stream follows. Without a state store the sizes are not needed."""

    def __init__(self, source: Source, sync: StateSync | None, retrying: Callable[[Callable[[], _T]], _T]) -> None:
        self._source = source
        self._sync = sync
        self._retrying: Callable[[Callable[[], Any]], Any] = retrying
        self._followed: Mapping[TableName, Followed] = {}
        self._schemas: dict[TableName, TableSchema] = {}
        self._versions: set[str] = set()
        self._look = 0
        self.rows: dict[TableName, int | None] = {}

    def learn(self, followed: Mapping[TableName, Followed], look: int) -> None:
        """Read the schemas of tables that are newly followed or have changed. After every survey, also read those of
        tables that did not exist before."""
        again = look != self._look and any(table not in self._schemas for table in followed)
        self._look = look
        if self._followed == followed and not again:
            return
        changed = [
            table
            for table, known in followed.items()
            if self._followed.get(table) != known or (again and table not in self._schemas)
        ]
        found: Mapping[TableName, TableSchema] = self._retrying(lambda: self._source.describe(changed))
        if self._sync is not None:
            self.rows |= {table: self._retrying(lambda: self._source.estimate(table)) for table in found}  # noqa: B023
            self._saw({schema.version: schema for schema in found.values()})
        self._schemas = {**self._schemas, **found}
        self._followed = followed

    def saw(self, files: Sequence[LogFile], spool: Spool) -> None:
        """Report schemas in these log files that are new."""
        if self._sync is not None:
            new = {f.version: f for f in files if f.version not in self._versions}
            self._saw({version: spool.read_log(f.path, ())[0] for version, f in new.items()})

    def _saw(self, schemas: Mapping[str, TableSchema]) -> None:
        assert self._sync is not None
        self._versions |= schemas.keys()
        self._sync.saw(schemas)

    def known(self, table: TableName) -> TableSchema | None:
        """The last schema of a table that is or was followed."""
        return self._schemas.get(table)

    def followed(self) -> dict[TableName, TableSchema]:
        """The schemas of the tables that are followed now. That of a table that is away is not known."""
        schemas = self._schemas
        return {table: schemas[table] for table in self._followed if table in schemas}

    def status(self) -> dict[str, Any]:
        return {
            str(table): {"version": schema.version, "rows": self.rows.get(table), **described(schema)}
            for table, schema in self.followed().items()
        }
