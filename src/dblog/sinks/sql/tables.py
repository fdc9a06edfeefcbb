"""Creates and alters the target's tables, as far as the settings allow, so that rows of a schema can be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dblog.core.schema import TableName, TableSchema
from dblog.errors import TargetRefused
from dblog.sinks.sql.ledger import Ledger, table_id
from dblog.sinks.sql.shape import Found, compare
from dblog.sinks.sql.target import GONE, ORDER, Session, Statement, Target


@dataclass(frozen=True)
class Fitted:
    """A table of the target that is ready for rows of a schema."""

    id: str
    name: TableName
    types: Mapping[str, str]
    """The types of the written columns, as the server spells them."""
    plain: Mapping[str, str]
    """The same types without lengths."""
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

    def fit(self, session: Session, schemas: Sequence[TableSchema]) -> list[Fitted]:
        """Create or alter tables so that rows of the schemas can be written. Raises SinkError."""
        while new := self._next(schemas):
            with self._target.alone(session), self._target.definitions(session):
                found = self._fitting(session, list(new.values()), list(new))
            self._fitted |= dict(zip((schema.version for schema in new.values()), found, strict=True))
        return [self._fitted[schema.version] for schema in schemas]

    def _next(self, schemas: Sequence[TableSchema]) -> dict[TableName, TableSchema]:
        """Schemas that are not fitted yet, by the target's table: one of those that share a table."""
        new = [schema for schema in schemas if schema.version not in self._fitted]
        return {TableName(self._schema or s.table.schema or self._target.schema, s.table.name): s for s in new}

    def _fitting(self, session: Session, schemas: Sequence[TableSchema], names: Sequence[TableName]) -> list[Fitted]:
        target, ledger = self._target, self._ledger
        ids = [table_id(name) for name in names]
        known, found = ledger.known(session, ids), target.found(session, names)
        target.create_schemas(session, {name.schema for name in names if name not in found})
        statements: list[Statement] = []
        wanted: dict[TableName, list[str]] = {}
        made: dict[TableName, Mapping[str, str]] = {}
        left_out: set[str]
        for name, number, schema in zip(names, ids, schemas, strict=True):
            there, types, entry = found.get(name), target.types(schema), known.get(number)
            if there is None:
                made[name], left_out = types, set()
                statements.append(self._create(session, name, schema, types))
            else:
                statements += self._own(name, there, ours=entry is not None)
                before = dict(entry.made) if entry else {}
                changed, left_out, changes = self._evolve(name, schema, types, before, there)
                made[name] = before | changed
                statements += changes
            wanted[name] = [n for n in types if n not in left_out]
        session.run_all(statements)
        after = target.found(session, names)
        deleted_keys = target.found(session, [ledger.deleted_name(number) for number in ids])
        statements = []
        for name, number, schema in zip(names, ids, schemas, strict=True):
            if set(after[name].key) != set(schema.key):
                raise TargetRefused(
                    f"the target's table {name} has the key {sorted(after[name].key)}, but the source's has "
                    f"{sorted(schema.key)}",
                    hint="drop the target's table, or give it the source's key; then dump the table again",
                )
            if ledger.deleted_name(number) not in deleted_keys:
                statements += ledger.make_deleted(session, number, {n: after[name].types[n] for n in schema.key})
        created = [number for name, number in zip(names, ids, strict=True) if name not in found]
        entries = [(number, name, made[name]) for name, number in zip(names, ids, strict=True)]
        session.run_all([*statements, *ledger.enter(entries, known, created)])
        return [
            self._fit(number, name, schema, wanted[name], after[name])
            for name, number, schema in zip(names, ids, schemas, strict=True)
        ]

    def _fit(self, number: str, name: TableName, schema: TableSchema, columns: Sequence[str], found: Found) -> Fitted:
        columns = [*columns, GONE] if self._soft else columns
        types, plain = ({n: kinds[n] for n in columns} for kinds in (found.types, found.plain))
        return Fitted(number, name, types, plain, schema.key)

    def _create(self, session: Session, name: TableName, schema: TableSchema, types: Mapping[str, str]) -> Statement:
        quoted = self._target.quoted
        columns = [f"{quoted(n)} {kind} {'not null' if n in schema.key else 'null'}" for n, kind in types.items()]
        columns += [f"{n} {kind} not null" for n, kind in self._added.items()]
        columns.append(f"primary key ({', '.join(map(quoted, schema.key))})")
        options = self._target.table_options(session)
        return Statement(f"create table {quoted(*name)} ({', '.join(columns)}){options}", f"creating table {name}")

    def _own(self, name: TableName, found: Found, *, ours: bool) -> list[Statement]:
        """Add missing columns of the sink to a table that it created. Raises SinkError if the table is not the
        sink's."""
        missing = [
            f"add column {n} {k} not null default {_NONE[n]}" for n, k in self._added.items() if n not in found.types
        ]
        if not missing:
            return []
        statement = f"alter table {self._target.quoted(*name)} {', '.join(missing)}"
        if not ours:
            raise TargetRefused(
                f"the target's table {name} exists and was not created by dblog",
                hint=f"set another schema, drop the table, or add the columns that dblog needs: {statement}",
            )
        return [Statement(statement, f"altering table {name}")]

    def _evolve(
        self, name: TableName, schema: TableSchema, wanted: Mapping[str, str], made: Mapping[str, str], found: Found
    ) -> tuple[dict[str, str], set[str], list[Statement]]:
        """The types of the columns to change in a table, the columns that are not written, and the statements."""
        target, doing = self._target, f"altering table {name}"
        changes = compare(schema, wanted, made, list(found.types), self._mode, target.any_text)
        clauses = [f"add column {target.quoted(n)} {kind} null" for n, kind in changes.add.items()]
        clauses += [target.alter(n, kind, key=n in schema.key) for n, kind in changes.alter.items()]
        statements = [Statement(f"alter table {target.quoted(*name)} {', '.join(clauses)}", doing)] if clauses else []
        remembered = target.quoted(*self._ledger.deleted_name(table_id(name)))
        for column in sorted(changes.alter.keys() & set(schema.key)):
            change = target.alter(column, changes.alter[column], key=True)
            statements.append(Statement(f"alter table {remembered} {change}", doing))
        return changes.add | changes.alter, changes.left_out, statements


_NONE = {"_lsn": "0", "_seq": "0", GONE: "false"}
"""The values of the sink's columns in rows that it did not write: older than every state that comes."""
