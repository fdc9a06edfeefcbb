"""Applies what foreign keys did in the source without a record in its log (`core.cascades`).

`cascade_plan` says in which steps. A step joins the events of a foreign key with the child's rows that refer to their
old values. The rows that it finds set off other foreign keys: their events are written to the tables of these, and are
the next steps, until there are none. All of it is in the transaction that writes the batch. The tables of events are
made before it: MySQL commits when a table is created.

A cascade does not change the order of a row that it updates. This order says up to where the log's changes are in the
row, and a second cascade of the batch must find the row as old as it was.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa

from dblog.core.cascades import CASCADE, DELETED, ForeignKey, new_name, old_name
from dblog.core.schema import TableName
from dblog.errors import SinkError
from dblog.sinks.base import Batch, TableBatch
from dblog.sinks.sql.apply import Application, Share
from dblog.sinks.sql.cascade_plan import Plan, Step, last_truncate, moves_key, part_of, plan
from dblog.sinks.sql.ledger import Known, Ledger
from dblog.sinks.sql.load import load_windows
from dblog.sinks.sql.rows import change_windows, dump_windows, portions
from dblog.sinks.sql.staged import Inline, Kinds, StagedRows
from dblog.sinks.sql.target import GONE, Session, Statement, Target
from dblog.sinks.sql.text import Refused

DEPTH = 100
"""How many foreign keys may set off each other in a row. The source's limit is 15."""
FEW_STEPS = 10
"""With more steps, the tables of events get an index on the number of the step."""
_META = ("_op", "_lsn", "_seq")


@dataclass
class _Stretch:
    """Shares of tables that are cut, and the steps that follow them."""

    shares: list[Share]
    steps: list[Step]


@dataclass
class Cascading:
    """The cascades of one batch, ready to be applied."""

    target: Target
    ledger: Ledger
    shares: Mapping[TableName, Share]
    """By the source's table."""
    soft: bool
    plan: Plan
    stretches: list[_Stretch] = field(default_factory=list)
    tables: dict[ForeignKey, str] = field(default_factory=dict)
    """The quoted names of the tables of events."""

    # -- before the transaction --------------------------------------------------------------------------------------

    def load(self, session: Session, indexed: set[str]) -> list[Share]:
        """Write the events to tables, and stage the changes of tables that are cut. Returns the shares of these.
        `indexed` remembers for which foreign keys the target has an index."""
        rules = {id(step.rules): step.rules for stretch in self.plan.stretches for step in stretch.steps}.values()
        for table, needed in ((table, needed) for one in rules for table, needed in one.needed().items()):
            if lost := sorted(needed.difference(self.shares[table].into.types)):
                raise SinkError(
                    f"the target's table {self.shares[table].into.name} lacks the columns {lost}, which are needed to "
                    "apply foreign keys of the source",
                    hint="add them, or set cascades to skip, which leaves such tables out",
                )
        for key in {k: None for one in rules for k in one.keys}:
            self._make(session, key)
            self._index(session, key, indexed)
        for key, events in self.plan.events.items():
            types = {"_step": "integer", "_lsn": "bigint", "_seq": "integer", **self._types(key)}
            rows = events.select([n for n in events.schema.names if n in types])
            with session.transaction():
                for portion in portions(rows):
                    self._insert(session, key, portion, types)
        several = len(self.plan.stretches) > 1
        cut = [self.shares[t] for t in sorted(self.plan.cut) if t in self.shares and several]
        ends = [*(s.begin for s in self.plan.stretches[1:]), None]
        for stretch, end in zip(self.plan.stretches, ends, strict=True):
            first = stretch.begin is None
            shares = [_staged_part(share, stretch.begin, end, dumped=first) for share in cut]
            self.stretches.append(_Stretch(shares, stretch.steps))
        return cut

    def _insert(self, session: Session, key: ForeignKey, rows: pa.RecordBatch, types: Mapping[str, str]) -> None:
        try:
            self.target.insert(session, self.tables[key], rows, types)
        except Refused as refused:
            column = key.columns[int(refused.column.rpartition("_")[2])]
            raise SinkError(
                f"table {key.child} cannot store a value of the foreign key {key.name} in column {column!r}: "
                f"{refused.why}",
                hint=refused.hint,
            ) from refused

    def _types(self, key: ForeignKey) -> dict[str, str]:
        kinds = self.shares[key.child].into.types
        names = [(name(n), kinds[column]) for name in (old_name, new_name) for n, column in enumerate(key.columns)]
        return dict(names)

    def _make(self, session: Session, key: ForeignKey) -> None:
        schema, prefix = self.ledger.stage
        name = self.target.quoted(schema, prefix + secrets.token_hex(8))
        columns = [f"{n} {kind} null" for n, kind in self._types(key).items()]
        columns += ["_step int not null", "_lsn bigint not null", "_seq int not null"]
        made = f"{self.target.scratch} {name} ({', '.join(columns)}){self.target.table_options(session)}"
        session.run(made, "creating a table of cascade events")
        if self.plan.steps > FEW_STEPS:
            index = self.target.quoted(f"dblog_{secrets.token_hex(8)}")
            session.run(f"create index {index} on {name} (_step)", "creating a table of cascade events")
        self.tables[key] = name

    def _index(self, session: Session, key: ForeignKey, indexed: set[str]) -> None:
        """Create an index on a foreign key's columns, without which every step reads the whole table."""
        into = self.shares[key.child].into
        columns = ", ".join(map(self.target.quoted, key.columns))
        name = "dblog_" + hashlib.sha256(f"{into.id} {columns}".encode()).hexdigest()[:16]
        if name in indexed or into.key[: len(key.columns)] == key.columns:
            return
        if not self.target.has_index(session, into.name, name):
            with suppress(SinkError):  # it only makes steps faster
                made = f"create index {self.target.quoted(name)} on {self.target.quoted(*into.name)} ({columns})"
                session.run(made, f"creating an index on {into.name}")
        indexed.add(name)

    # -- in the transaction ------------------------------------------------------------------------------------------

    def apply(self, session: Session, application: Application, known: Mapping[str, Known], least: int) -> None:
        """Apply the stretches, one after the other."""
        number = self.plan.steps
        for stretch in self.stretches:
            session.run_all(application.of_shares(stretch.shares, known, least))
            for step in stretch.steps:
                new, depth = [step], 0
                while new:
                    if depth > DEPTH:
                        raise SinkError(f"the foreign key {step.key.name} sets off others without an end")
                    following: list[Step] = []
                    for one in new:
                        found = self._run(session, one, known, least, number)
                        number += len(found)
                        following += found
                    new, depth = following, depth + 1

    def _run(self, session: Session, step: Step, known: Mapping[str, Known], least: int, number: int) -> list[Step]:
        """Apply a step. Returns the steps that it sets off, which have the numbers from `number` on."""
        share, doing = self.shares[step.key.child], f"applying the foreign key {step.key.name}"
        action = step.key.action(deleted=step.deleted)
        following: list[Step] = []
        statements: list[str] = []
        for key in (k for k in step.rules.keys if k.parent == step.key.child):
            removes = step.deleted and action == CASCADE
            hit = removes or bool(set(key.referenced) & set(step.key.columns))
            if hit and key.action(deleted=removes):
                following.append(Step(number + len(following), key, removes, step.rules))
                statements.append(self._events(step, following[-1]))
        statements += self._changes(step, share, known[share.into.id], least)
        session.run_all(Statement(sql, doing) for sql in statements)
        if not following:
            return []
        counts = [
            f"(select count(*) from {self.tables[s.key]} where _step = {s.number})" for s in following
        ]  # one row, in the order of the steps
        [found] = session.run(f"select {', '.join(counts)}", doing)
        return [s for s, count in zip(following, found, strict=True) if count]

    def _joined(self, step: Step) -> tuple[str, str, str]:
        """The child, the events, and the condition under which an event of the step acts on a row."""
        table = self.target.quoted(*self.shares[step.key.child].into.name)
        pairs = [f"{table}.{self.target.quoted(c)} = _dblog_e.{old_name(n)}" for n, c in enumerate(step.key.columns)]
        pairs += [f"_dblog_e._step = {step.number}", f"({table}._lsn, {table}._seq) <= (_dblog_e._lsn, _dblog_e._seq)"]
        pairs += [f"not {table}.{GONE}"] if self.soft else []
        return table, f"{self.tables[step.key]} as _dblog_e", " and ".join(pairs)

    def _new_values(self, step: Step) -> dict[str, str]:
        """The new values of a child's columns, as SQL."""
        cascades = step.key.action(deleted=step.deleted) == CASCADE
        return {c: f"_dblog_e.{new_name(n)}" if cascades else "null" for n, c in enumerate(step.key.columns)}

    def _events(self, step: Step, then: Step) -> str:
        """The statement that writes the events which a step sets off."""
        table, events, matching = self._joined(step)
        old = [f"{table}.{self.target.quoted(c)}" for c in then.key.referenced]
        given = {} if then.deleted else self._new_values(step)
        new = [given.get(c, was) if given else "null" for c, was in zip(then.key.referenced, old, strict=True)]
        names = [name(n) for name in (old_name, new_name) for n in range(len(old))]
        there = " and ".join(f"{value} is not null" for value in old)
        return (
            f"insert into {self.tables[then.key]} ({', '.join(names)}, _step, _lsn, _seq) "
            f"select {', '.join([*old, *new])}, {then.number}, _dblog_e._lsn, _dblog_e._seq "
            f"from {events} join {table} on {matching} where {there}"
        )

    def _changes(self, step: Step, share: Share, known: Known, least: int) -> Iterator[str]:
        """The statements that change the child's rows."""
        table, events, matching = self._joined(step)
        removes = step.deleted and step.key.on_delete == CASCADE
        moves = not removes and moves_key(step.key, share.table.schema)
        if not removes and not moves:
            values = {self.target.quoted(c): value for c, value in self._new_values(step).items()}
            yield self.target.update_joined(table, events, matching, values)
            return
        if self.soft and moves:
            raise SinkError(
                f"the foreign key {step.key.name} has changed keys of {step.key.child}, which the sink cannot follow "
                "with deletes = soft",
                hint="set deletes to hard, or cascades to skip, which leaves such tables out",
            )
        if moves:
            yield self._moved(step, share)
        if self.soft:
            values = {GONE: "true", "_lsn": "_dblog_e._lsn", "_seq": "_dblog_e._seq"}
            yield self.target.update_joined(table, events, matching, values)
            return
        if least <= self._last:  # another pipeline may still bring an older state
            key = ", ".join(f"{table}.{self.target.quoted(n)}" for n in share.into.key)
            gone = f"select {key}, max(_dblog_e._lsn) as _lsn, max(_dblog_e._seq) as _seq, true as _gone"
            source = f"({gone} from {events} join {table} on {matching} group by {key}) as _s"
            staged = StagedRows(
                Application(self.target, self.ledger, soft=False).names(share), source, Kinds(gone=True)
            )
            yield self.target.tombstones(staged, least, known.emptied)
            yield from self.ledger.forget_deleted(share.into.id, least)
        yield self.target.delete_joined(table, events, matching)

    @cached_property
    def _last(self) -> int:
        """A position that no event of the batch is after."""
        return max((int(t["_lsn"].to_numpy().max()) for t in self.plan.events.values() if t.num_rows), default=-1)

    def _moved(self, step: Step, share: Share) -> str:
        """The statement that inserts rows under their new keys, unless the target has them: a dump may have read them
        after the cascade."""
        table, events, matching = self._joined(step)
        given = self._new_values(step)
        names = [*share.into.types, "_lsn", "_seq"]
        values = [given.get(n) or f"{table}.{self.target.quoted(n)}" for n in names]
        there = " and ".join(
            f"_dblog_n.{self.target.quoted(n)} = {given.get(n) or f'{table}.{self.target.quoted(n)}'}"
            for n in share.into.key
        )
        listed = ", ".join(map(self.target.quoted, names))
        return (
            f"insert into {table} ({listed}) select {', '.join(values)} from {events} join {table} on {matching} "
            f"where not exists (select 1 from {table} as _dblog_n where {there})"
        )


def cascading(target: Target, ledger: Ledger, batch: Batch, shares: Sequence[Share], *, soft: bool) -> Cascading | None:
    """The cascades of a batch; None if it has none."""
    if not batch.cascades:
        return None
    of = {share.table.source: share for share in shares}
    found = []
    for one in batch.cascades:
        width = range(len(one.rules.first.columns))
        names = [DELETED, *(name(n) for name in (old_name, new_name) for n in width), "_lsn", "_seq"]
        parts = [rows.select(names) for rows in one.events.changes()]
        if parts:
            found.append((one.rules, pa.Table.from_batches(parts)))
    changes = {table: _orders(share) for table, share in of.items()}
    return Cascading(target, ledger, of, soft, plan(found, changes))


def _orders(share: Share) -> Iterator[pa.Table]:
    for rows in share.table.arrow.changes() if share.table.arrow is not None else ():
        yield pa.Table.from_batches([rows.select(_META)])


def _staged_part(share: Share, begin: tuple[int, int] | None, end: tuple[int, int] | None, *, dumped: bool) -> Share:
    """The share of a stretch: its changes in staging tables; with `dumped`, before them the rows of dumps."""
    rows = share.table.arrow
    assert rows is not None
    truncated = last_truncate(part_of(rows.changes(), begin, end))
    loading = replace(share.loading, shape=replace(share.loading.shape, truncated=truncated))
    table = TableBatch(share.table.source, share.table.schema, None, None, truncated, share.table.incomplete, rows)
    staged: list[tuple[Inline, Kinds]] = []

    def load(windows: Iterable[tuple[pa.Table, Kinds]]) -> None:
        for stage in load_windows(loading, windows).stages:
            staged.append((Inline(f"{stage.name} as _s"), stage.kinds))

    for part in rows.dump_parts() if dumped else ():
        load(dump_windows(part.dump_rows(), loading.shape))
    for window in change_windows(part_of(rows.changes(), begin, end), loading.shape):
        load([window])
    return Share(table, share.into, loading, staged)


def without_rows(share: Share) -> None:
    """Leave a share that is applied stretch by stretch without anything to apply at once."""
    old = share.table
    share.table = TableBatch(old.source, old.schema, None, None, None, old.incomplete, old.arrow)
    share.staged, share.few, share.full = [], False, True
