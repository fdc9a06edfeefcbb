"""The ledger: the sink's own tables in the target, in their own schema.

    batches         for each pipeline, its last delivered batch and the log position of it
    tables          for each written table, the types of its columns, and when it was last emptied
    writers         which pipelines write which tables
    deleted_<id>    for one table, the deleted keys and when, as long as a pipeline may still bring an older state
    staged_...      rows of a batch that is being written

A batch's rows and its number are written in one transaction. "When" is an order: `(_lsn, _seq)`.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from dblog.core.schema import TableName
from dblog.sinks.sql.target import ORDER, Session, Target


@dataclass(frozen=True)
class Known:
    """The ledger's entry of a table."""

    made: Mapping[str, str]
    """The types that the sink gave to its columns."""
    emptied: tuple[int, int]


class Ledger:
    """The ledger of one pipeline."""

    def __init__(self, target: Target, schema: str, pipeline: str) -> None:
        self._target = target
        self._schema = schema
        self._pipeline = target.literal(pipeline)
        self._mark = f"staged_{_short(pipeline)}_"

    def name(self, table: str) -> str:
        """The quoted name of one of the ledger's tables."""
        return self._target.quoted(self._schema, table)

    def make(self, session: Session) -> None:
        """Create the ledger's tables where they are missing."""
        text = self._target.short_text
        self._target.create_schema(session, self._schema)
        options = self._target.table_options(session)
        tables = {
            "batches": f"pipeline {text} not null primary key, batch bigint not null, position bigint not null, "
            f"taken_at {self._target.moment} not null",
            "tables": f"id {text} not null primary key, table_schema {text} not null, table_name {text} not null, "
            f"types {self._target.any_text} not null, lsn bigint not null, seq int not null",
            "writers": f"id {text} not null, pipeline {text} not null, primary key (id, pipeline)",
        }
        for name, columns in tables.items():
            if self._target.found(session, TableName(self._schema, name)) is None:
                session.run(f"create table {self.name(name)} ({columns}){options}", f"creating the table {name!r}")

    def enter_pipeline(self, session: Session) -> None:
        """Add the pipeline at position 0: until its first batch it may bring states from any position on."""
        if self._record(session) is None:
            values = f"{self._pipeline}, -1, 0, current_timestamp"
            session.run(f"insert into {self.name('batches')} values ({values})", "entering the pipeline")

    # -- batches -----------------------------------------------------------------------------------------------------

    def taken(self, session: Session, batch: int, position: int, *, lock: bool = False) -> bool:
        """Whether the target has the batch already. The number alone is not enough: with a new checkpoint the numbers
        start again while the log goes on."""
        found = self._record(session, " for update" if lock else "")
        return found is not None and (found == (batch, position) or (batch <= found[0] and position < found[1]))

    def _record(self, session: Session, lock: str = "") -> tuple[int, int] | None:
        where = f"from {self.name('batches')} where pipeline = {self._pipeline}"
        found = session.run(f"select batch, position {where}{lock}", "asking for the last batch")
        return (int(found[0][0]), int(found[0][1])) if found else None

    def record(self, session: Session, batch: int, position: int) -> None:
        self.enter_pipeline(session)  # an operator may have removed it
        session.run(
            f"update {self.name('batches')} set batch = {batch}, position = {position}, taken_at = current_timestamp "
            f"where pipeline = {self._pipeline}"
        )

    def least(self, session: Session, position: int) -> int:
        """The smallest position from which a pipeline may still bring a state of a row, with this pipeline at
        `position`.

        Pipelines that write none of its tables are of another source and do not count, unless they write no table
        yet."""
        writers = self.name("writers")
        common = f"{writers} as w join {writers} as m on m.id = w.id and m.pipeline = {self._pipeline}"
        [(found,)] = session.run(
            f"select min(position) from {self.name('batches')} as b where b.pipeline <> {self._pipeline} and "
            f"(exists (select 1 from {common} where w.pipeline = b.pipeline) "
            f"or not exists (select 1 from {writers} as w where w.pipeline = b.pipeline))"
        )
        return position if found is None else min(int(found), position)

    # -- tables ------------------------------------------------------------------------------------------------------

    def known(self, session: Session, table: str, *, lock: bool = False) -> Known | None:
        where = f"from {self.name('tables')} where id = '{table}'" + (" for update" if lock else "")
        found = session.run(f"select types, lsn, seq {where}")
        return Known(json.loads(found[0][0]), (int(found[0][1]), int(found[0][2]))) if found else None

    def enter(self, session: Session, table: str, name: TableName, made: Mapping[str, str]) -> None:
        """Record the types of a table's columns, and that this pipeline writes it."""
        literal = self._target.literal
        text = literal(json.dumps(dict(made)))
        if self.known(session, table) is None:
            values = f"'{table}', {literal(name.schema)}, {literal(name.name)}, {text}, -1, 0"
            session.run(f"insert into {self.name('tables')} values ({values})")
        else:
            session.run(f"update {self.name('tables')} set types = {text} where id = '{table}'")
        mine = f"id = '{table}' and pipeline = {self._pipeline}"
        if not session.run(f"select 1 from {self.name('writers')} where {mine}"):
            session.run(f"insert into {self.name('writers')} values ('{table}', {self._pipeline})")

    def empty(self, session: Session, table: str, at: tuple[int, int]) -> None:
        """Record when a table was emptied."""
        session.run(f"update {self.name('tables')} set lsn = {at[0]}, seq = {at[1]} where id = '{table}'")

    def make_deleted(self, session: Session, table: str, key: Mapping[str, str]) -> None:
        """Create the table of deleted keys."""
        name = deleted(table)
        if self._target.found(session, TableName(self._schema, name)) is None:
            columns = [f"{self._target.quoted(n)} {kind} not null" for n, kind in key.items()]
            columns += [f"{n} {kind} not null" for n, kind in ORDER.items()]
            primary = f"primary key ({', '.join(self._target.quoted(n) for n in key)})"
            options = self._target.table_options(session)
            session.run(f"create table {self.name(name)} ({', '.join([*columns, primary])}){options}")
            session.run(f"create index {self._target.quoted(f'{name}_lsn')} on {self.name(name)} (_lsn)")

    # -- staging -----------------------------------------------------------------------------------------------------

    def new_stage(self, batch: int, number: int) -> str:
        """A unique name for a staging table: a late task of an earlier attempt at the batch may still write to its
        own."""
        return f"{self._mark}{batch}_{number}_{secrets.token_hex(4)}"

    def sweep(self, session: Session) -> None:
        """Drop the staging tables of earlier runs of the pipeline."""
        for name in self._target.tables_like(session, self._schema, self._mark):
            session.run(f"drop table if exists {self.name(name)}")


def table_id(table: TableName) -> str:
    """The id of a table in the ledger."""
    return _short("\0".join(table))


def deleted(table: str) -> str:
    return f"deleted_{table}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
