"""What a pipeline needs from its PostgreSQL server. The preflight checks it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dblog.core.promised_keys import PromisedKeys
from dblog.core.schema import TableName
from dblog.sources.problems import Problem
from dblog.sources.relational import WATERMARK


@dataclass(frozen=True)
class Setup:
    """What a pipeline needs from its server."""

    slot: str
    publication: str
    tables: tuple[TableName, ...]
    fresh: bool
    """Whether there is no checkpoint yet, so that the slot may be created."""
    followed: frozenset[TableName] = frozenset()
    """The tables that the pipeline has followed so far. `survey` finds those that the publication lacks now."""
    writes: bool = True
    """Whether the stream writes watermarks."""
    keys: PromisedKeys = field(default_factory=PromisedKeys)
    """The keys that users promise for tables without one."""
    left_out: tuple[Problem, ...] = ()
    """Why other tables that the patterns bring are left out."""
    failover: bool = True
    """Whether standbys get the slot, where the server can do that."""

    @property
    def published(self) -> tuple[TableName, ...]:
        """The tables that the publication must have: each captured table once, then the watermark table."""
        watermark = (WATERMARK,) if self.writes else ()
        return (*dict.fromkeys(table for table in self.tables if table != WATERMARK), *watermark)
