"""Creates and alters the target's tables, as far as the settings allow, so that rows of a schema can be written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dblog.core.schema import TableName, TableSchema
from dblog.errors import SinkError
from dblog.sinks.sql.ledger import Ledger, deleted, table_id
from dblog.sinks.sql.shape import Found, compare
from dblog.sinks.sql.target import GONE, ORDER, Session, Target


@dataclass(frozen=True)
class Fitted:
    """A table of the target that is ready for rows of a schema."""

    id: str
    name: TableName
    types: Mapping[str, str]
    """The types of the written columns, as the server spells them."""
    key: tuple[str, ...]


class TargetTables:
    """Fits tables to schemas, and remembers which fit."""

    def __init__(self, target: Target, ledger: Ledger, *, schema: str | None, mode: str, soft: bool) -> None:
        self._target = target
        self._ledger = ledger
        self._schema = schema
        self._mode = mode
        self._added = {**ORDER, GONE: "boolean"} if soft else ORDER
        self._soft = soft
        self._fitted: dict[str, Fitted] = {}

    def forget(self) -> None:
        self._fitted.clear()

    def fit(self, session: Session, schema: TableSchema) -> Fitted:
        """Create or alter the table so that rows of the schema can be written. Raises SinkError."""
        if schema.version not in self._fitted:
            with self._target.alone(session):
                self._fitted[schema.version] = self._fitting(session, schema)
        return self._fitted[schema.version]

    def _fitting(self, session: Session, schema: TableSchema) -> Fitted:
        table = schema.table
        name = TableName(self._schema or table.schema or self._target.schema, table.name)
        number = table_id(name)
        known = self._ledger.known(session, number)
        wanted = self._target.types(schema)
        found = self._target.found(session, name)
        if found is None:
            made = wanted
            self._create(session, name, schema, wanted)
        else:
            self._own(session, name, found, ours=known is not None)
            made = dict(known.made) if known else {}
            changed, left_out = self._evolve(session, name, schema, wanted, made, found)
            made |= changed
            wanted = {n: kind for n, kind in wanted.items() if n not in left_out}
        found = self._target.found(session, name)
        assert found is not None
        if set(found.key) != set(schema.key):
            raise SinkError(
                f"the target's table {name} has the key {sorted(found.key)}, but the source's has {sorted(schema.key)}",
                hint="drop the target's table, or give it the source's key; then dump the table again",
            )
        self._ledger.make_deleted(session, number, {n: found.types[n] for n in schema.key})
        self._ledger.enter(session, number, name, made)
        columns = [*wanted, GONE] if self._soft else list(wanted)
        return Fitted(number, name, {n: found.types[n] for n in columns}, schema.key)

    def _create(self, session: Session, name: TableName, schema: TableSchema, types: Mapping[str, str]) -> None:
        quoted = self._target.quoted
        self._target.create_schema(session, name.schema)
        columns = [f"{quoted(n)} {kind} {'not null' if n in schema.key else 'null'}" for n, kind in types.items()]
        columns += [f"{n} {kind} not null" for n, kind in self._added.items()]
        columns.append(f"primary key ({', '.join(map(quoted, schema.key))})")
        options = self._target.table_options(session)
        session.run(f"create table {quoted(*name)} ({', '.join(columns)}){options}", f"creating table {name}")

    def _own(self, session: Session, name: TableName, found: Found, *, ours: bool) -> None:
        """Add missing columns of the sink to a table that it created. Raises SinkError if the table is not the
        sink's."""
        missing = [
            f"add column {n} {k} not null default {_NONE[n]}" for n, k in self._added.items() if n not in found.types
        ]
        if not missing:
            return
        statement = f"alter table {self._target.quoted(*name)} {', '.join(missing)}"
        if not ours:
            raise SinkError(
                f"the target's table {name} exists and was not created by dblog",
                hint=f"set another schema, drop the table, or add the columns that dblog needs: {statement}",
            )
        session.run(statement, f"altering table {name}")

    def _evolve(
        self,
        session: Session,
        name: TableName,
        schema: TableSchema,
        wanted: Mapping[str, str],
        made: Mapping[str, str],
        found: Found,
    ) -> tuple[dict[str, str], set[str]]:
        """Alter a table; return the types of the changed columns, and the columns that are not written."""
        target = self._target
        changes = compare(schema, wanted, made, list(found.types), self._mode, target.any_text)
        statements = [f"add column {target.quoted(n)} {kind} null" for n, kind in changes.add.items()]
        statements += [target.alter(n, kind, key=n in schema.key) for n, kind in changes.alter.items()]
        if statements:
            session.run(f"alter table {target.quoted(*name)} {', '.join(statements)}", f"altering table {name}")
        for column in changes.alter.keys() & set(schema.key):
            remembered = self._ledger.name(deleted(table_id(name)))
            change = target.alter(column, changes.alter[column], key=True)
            session.run(f"alter table {remembered} {change}", f"altering table {name}")
        return changes.add | changes.alter, changes.left_out


_NONE = {"_lsn": "0", "_seq": "0", GONE: "false"}
"""The values of the sink's columns in rows that it did not write: older than every state that comes."""
