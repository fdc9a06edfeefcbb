"""The ledger: the sink's own tables in the target, in their own schema.

    batches         for each pipeline, its last delivered batch, the log position of it, and the epoch of its leader
    tables          for each written table, the types of its columns, when it was last emptied, whether the ledger has
                    deleted keys of it, and whether its first dump is being inserted
    writers         which pipelines write which tables
    deleted_<id>    for one table, the deleted keys and when, as long as a pipeline may still bring an older state
    staged_...      rows of a batch that is being written
    few_...         for one table, the same for a few rows, if the server needs it: empty outside of a transaction

A batch's rows and its number are written in one transaction. It first locks the pipeline's row and reads the epoch: a
leader that finds a later epoch than its own writes nothing. "When" is an order: `(_lsn, _seq)`.

The column `filling` of `tables` has `OPEN` from the creation of a table on, as long as rows of dumps may be inserted
directly; a token while an attempt at a batch inserts some; and nothing when that is over. The token is removed by the
next transaction that writes the table, and valid only under a lock on the entry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dblog.core.schema import TableName
from dblog.errors import LeaseLost
from dblog.sinks.sql.target import ORDER, Session, Statement, Target

EPOCH = "bigint not null default 0"
OPEN = "open"
"""The value of `filling` when rows may be inserted directly, and no task does."""


@dataclass(frozen=True)
class Known:
    """The ledger's entry of a table."""

    made: Mapping[str, str]
    """The types that the sink gave to its columns."""
    emptied: tuple[int, int]
    filling: str
    """Whether rows of dumps may be inserted directly: empty, `OPEN`, or a token."""
    remembers: bool
    """Whether there may be deleted keys."""


class Ledger:
    """The ledger of one pipeline."""

    def __init__(self, target: Target, schema: str, pipeline: str, epoch: int | None = None) -> None:
        """`epoch` is that of the leader; None for a pipeline without standbys."""
        self._target = target
        self._epoch = epoch
        self.claim = f"dblog sink {_short(pipeline)}"
        """The name that marks the leader's session."""
        self._schema = schema
        self._pipeline = target.literal(pipeline)
        self._mark = f"staged_{_short(pipeline)}_"
        self._few = f"few_{_short(pipeline)}_"

    def name(self, table: str) -> str:
        """The quoted name of one of the ledger's tables."""
        return self._target.quoted(self._schema, table)

    def deleted_name(self, table: str) -> TableName:
        """The name of the table of deleted keys."""
        return TableName(self._schema, deleted(table))

    def make(self, session: Session) -> None:
        """Create the ledger's tables where they are missing."""
        text = self._target.short_text
        self._target.create_schemas(session, [self._schema])
        options = self._target.table_options(session)
        added = {"filling": f"{text} not null default ''", "remembers": "boolean not null default true"}
        tables = {
            "batches": f"pipeline {text} not null primary key, batch bigint not null, position bigint not null, "
            f"taken_at {self._target.moment} not null, epoch {EPOCH}",
            "tables": f"id {text} not null primary key, table_schema {text} not null, table_name {text} not null, "
            f"types {self._target.any_text} not null, lsn bigint not null, seq int not null, "
            + ", ".join(f"{name} {kind}" for name, kind in added.items()),
            "writers": f"id {text} not null, pipeline {text} not null, primary key (id, pipeline)",
        }
        there = self._target.found(session, [TableName(self._schema, name) for name in tables])
        for name, columns in tables.items():
            if TableName(self._schema, name) not in there:
                session.run(f"create table {self.name(name)} ({columns}){options}", f"creating the table {name!r}")
        for table, later in (("tables", added), ("batches", {"epoch": EPOCH})):
            found = there.get(TableName(self._schema, table))
            for name, kind in later.items():
                if found is not None and name not in found.types:  # a ledger of an older version
                    session.run(f"alter table {self.name(table)} add column {name} {kind}", "altering the ledger")

    def enter_pipeline(self, session: Session) -> None:
        """Add the pipeline at position 0: until its first batch it may bring states from any position on."""
        if self._record(session) is None:
            names, values = "pipeline, batch, position, taken_at", f"{self._pipeline}, -1, 0, current_timestamp"
            session.run(f"insert into {self.name('batches')} ({names}) values ({values})", "entering the pipeline")

    def fence(self, session: Session) -> None:
        """Refuse all leaders with an earlier epoch from now on. A transaction of such a leader has ended before, or
        finds the new epoch. Raises LeaseLost if there is a later one."""
        if self._epoch is None:
            return
        where = f"pipeline = {self._pipeline} and epoch < {self._epoch}"
        session.run(f"update {self.name('batches')} set epoch = {self._epoch} where {where}", "writing the epoch")
        self._record(session)

    # -- batches -----------------------------------------------------------------------------------------------------

    def taken(self, session: Session, batch: int, position: int, *, lock: bool = False) -> bool:
        """Whether the target has the batch already. The number alone is not enough: with a new checkpoint the numbers
        start again while the log goes on."""
        found = self._record(session, " for update" if lock else "")
        return found is not None and (found == (batch, position) or (batch <= found[0] and position < found[1]))

    def _record(self, session: Session, lock: str = "") -> tuple[int, int] | None:
        where = f"from {self.name('batches')} where pipeline = {self._pipeline}"
        found = session.run(f"select batch, position, epoch {where}{lock}", "asking for the last batch")
        if not found:
            return None
        batch, position, epoch = map(int, found[0])
        if self._epoch is not None and epoch > self._epoch:
            raise LeaseLost(
                f"the target has the epoch {epoch} of a later leader, and this instance has {self._epoch}",
                hint="start it again, as a supervisor does: it becomes a standby",
            )
        return batch, position

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

    def known(self, session: Session, tables: Sequence[str], *, lock: bool = False) -> dict[str, Known]:
        """The entries of tables, by their ids. They are locked in the order of the ids, so that two pipelines cannot
        deadlock."""
        if not tables:
            return {}
        found = session.run(
            f"select id, types, lsn, seq, filling, remembers from {self.name('tables')} "
            f"where id in ({_listed(tables)}) order by id{' for update' if lock else ''}"
        )
        return {
            table: Known(json.loads(types), (int(lsn), int(seq)), filling, bool(remembers))
            for table, types, lsn, seq, filling, remembers in found
        }

    def enter(
        self, tables: Iterable[tuple[str, TableName, Mapping[str, str]]], known: Iterable[str], created: Iterable[str]
    ) -> Iterator[Statement]:
        """Statements that record the types of tables' columns, and that this pipeline writes them. `known` are the
        tables that have an entry, `created` those that are new in the target."""
        literal, entries, doing = self._target.literal, self.name("tables"), "writing the ledger"
        old, new = set(known), set(created)
        for table, name, made in tables:
            text = literal(json.dumps(dict(made)))
            filling = f"'{OPEN if table in new else ''}'"
            if table not in old:
                values = f"'{table}', {literal(name.schema)}, {literal(name.name)}, {text}, -1, 0, {filling}"
                deleted_keys = f"exists (select 1 from {self.name(deleted(table))})"
                yield Statement(f"insert into {entries} select {values}, {deleted_keys}", doing)
            else:
                change = f"types = {text}" + (f", filling = {filling}" if table in new else "")
                yield Statement(f"update {entries} set {change} where id = '{table}'", doing)
            writers, one = self.name("writers"), "(select 1 as n) as o"
            there = f"select 1 from {writers} as w where w.id = '{table}' and w.pipeline = {self._pipeline}"
            entry = f"select '{table}', {self._pipeline} from {one} where not exists ({there})"
            yield Statement(f"insert into {writers} {entry}", doing)

    def empty(self, table: str, at: tuple[int, int]) -> str:
        """Record when a table was emptied."""
        return f"update {self.name('tables')} set lsn = {at[0]}, seq = {at[1]} where id = '{table}'"

    def forget_deleted(self, table: str, least: int) -> list[str]:
        """Remove deleted keys for which no pipeline can bring an older state, and record whether there are others."""
        keys = self.name(deleted(table))
        left = f"exists (select 1 from {keys})"
        return [
            f"delete from {keys} where _lsn < {least}",
            f"update {self.name('tables')} set remembers = {left} where id = '{table}'",
        ]

    def make_deleted(self, session: Session, table: str, key: Mapping[str, str]) -> Iterator[Statement]:
        """Statements that create the table of deleted keys."""
        name, doing = deleted(table), "creating a table of deleted keys"
        columns = [f"{self._target.quoted(n)} {kind} not null" for n, kind in key.items()]
        columns += [f"{n} {kind} not null" for n, kind in ORDER.items()]
        primary = f"primary key ({', '.join(self._target.quoted(n) for n in key)})"
        options = self._target.table_options(session)
        yield Statement(f"create table {self.name(name)} ({', '.join([*columns, primary])}){options}", doing)
        yield Statement(f"create index {self._target.quoted(f'{name}_lsn')} on {self.name(name)} (_lsn)", doing)

    # -- direct inserts ----------------------------------------------------------------------------------------------

    def start_filling(self, session: Session, tables: Sequence[str], token: str) -> set[str]:
        """Write a token for those of the tables into which rows of dumps may be inserted directly, and return them:
        this pipeline has created them and writes them alone, nothing has emptied them, no deleted key is remembered."""
        if not tables:
            return set()
        entries, writers = self.name("tables"), self.name("writers")
        others = f"select 1 from {writers} as w where w.id = {entries}.id and w.pipeline <> {self._pipeline}"
        fenced = (
            f"select 1 from {self.name('batches')} where pipeline = {self._pipeline} and epoch > {self._epoch or 0}"
        )
        session.run(
            f"update {entries} set filling = '{token}' where id in ({_listed(tables)}) and filling <> '' "
            f"and not remembers and lsn = -1 and not exists ({others})"
            + ("" if self._epoch is None else f" and not exists ({fenced})"),
            "writing the ledger",
        )
        return {table for (table,) in session.run(f"select id from {entries} where filling = '{token}'")}

    def ask_token(self, table: str) -> str:
        """The statement that locks a table's entry and returns its token."""
        return f"select filling from {self.name('tables')} where id = '{table}' {self._target.for_share}"

    def shared(self, session: Session, tables: Sequence[str]) -> set[str]:
        """Those of the tables that other pipelines write too."""
        if not tables:
            return set()
        where = f"id in ({_listed(tables)}) and pipeline <> {self._pipeline}"
        return {table for (table,) in session.run(f"select distinct id from {self.name('writers')} where {where}")}

    def set_filling(self, tables: Sequence[str], filling: str) -> Iterator[str]:
        if tables:
            yield f"update {self.name('tables')} set filling = '{filling}' where id in ({_listed(tables)})"

    # -- staging -----------------------------------------------------------------------------------------------------

    @property
    def stage(self) -> tuple[str, str]:
        """The schema of staging tables, and how their names begin. The rest of a name is random: a late task of an
        earlier attempt at a batch has its own."""
        return self._schema, self._mark

    def few(self, table: str) -> str:
        """The quoted name of the staging table for a few rows of a table."""
        return self.name(self._few + table)

    def sweep(self, session: Session) -> None:
        """Drop all staging tables of the pipeline."""
        names = self._target.tables_like(session, *self.stage)
        if names:
            session.run(f"drop table if exists {', '.join(map(self.name, names))}")


def table_id(table: TableName) -> str:
    """The id of a table in the ledger."""
    return _short("\0".join(table))


def deleted(table: str) -> str:
    return f"deleted_{table}"


def _listed(tables: Iterable[str]) -> str:
    return ", ".join(f"'{table}'" for table in tables)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
