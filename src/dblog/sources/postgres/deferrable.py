"""Deferrable primary keys: why a table with one is not followed, how it is found, and the SQL that fixes it.

Such a key is checked at the end of a statement or a transaction, so in between two rows may have the same key. The log
shows that moment: `update t set id = 3 - id` comes as delete 1, create 2, delete 2, create 1, and a reader that applies
it by key ends without row 2. `REPLICA IDENTITY FULL` does not help: the order is wrong, not the key.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from dblog.core.schema import TableName
from dblog.databases.postgres.connect import identifier, literal
from dblog.errors import PositionLost
from dblog.sources.postgres.catalog import CatalogCursor

WHY = "two rows may have the same key within a transaction, and the log does not show which of them remains"

# A partition with a deferrable key can be attached to a table whose own key is not deferrable. If the table's own key
# is deferrable, only the table is listed: the statement that fixes it also fixes its partitions. A foreign key cannot
# refer to a deferrable key, but it can refer to the table, and so to rows in such a partition.
_DEFERRABLE = """
select r.oid, n.nspname, c.relname, k.conname, pg_catalog.pg_get_constraintdef(k.oid),
       m.parent::pg_catalog.regclass::text, pg_catalog.pg_get_expr(c.relpartbound, c.oid),
       (select json_agg(json_build_array(f.conrelid::pg_catalog.regclass::text, f.conname,
                                         pg_catalog.pg_get_constraintdef(f.oid)) order by f.oid)
        from pg_catalog.pg_constraint f
        where f.contype = 'f' and f.conparentid = 0
          and f.confrelid in (select relid from pg_catalog.pg_partition_ancestors(c.oid)))
from pg_catalog.pg_class r
cross join lateral (
    select r.oid as relid, null::oid as parent
    union all
    select t.relid, t.parentrelid from pg_catalog.pg_partition_tree(r.oid) t
    where t.isleaf and t.relid <> r.oid and not exists (
        select from pg_catalog.pg_index o where o.indrelid = r.oid and o.indisprimary and not o.indimmediate)) m
join pg_catalog.pg_index i on i.indrelid = m.relid and i.indisprimary and not i.indimmediate
join pg_catalog.pg_constraint k on k.conindid = i.indexrelid and k.conrelid = m.relid and k.contype = 'p'
join pg_catalog.pg_class c on c.oid = m.relid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where r.oid in %s
order by r.oid, n.nspname, c.relname
"""


@dataclass(frozen=True)
class DeferrableKey:
    """The deferrable primary key of a table or of a partition, and the SQL that replaces it."""

    table: TableName
    fix: str


def deferrable_keys(cursor: CatalogCursor, tables: Collection[int]) -> dict[int, list[DeferrableKey]]:
    """The deferrable primary keys of these tables (OIDs) and of their partitions, by the OID of the table."""
    found: dict[int, list[DeferrableKey]] = {}
    if tables:
        cursor.execute(_DEFERRABLE, (tuple(tables),))
        for oid, schema, name, *rest in cursor.fetchall():
            table = TableName(schema, name)
            found.setdefault(oid, []).append(DeferrableKey(table, _fix(table, *rest)))
    return found


def refuse_deferrable_keys(cursor: CatalogCursor, tables: Collection[int], slot: str) -> None:
    """Raise PositionLost if one of these followed tables (OIDs) has a deferrable primary key now."""
    for error in refused_keys(cursor, tables, slot).values():
        raise error


def refused_keys(cursor: CatalogCursor, tables: Collection[int], slot: str) -> dict[int, PositionLost]:
    """The error of each of these followed tables (OIDs) that has a deferrable primary key now."""
    return {
        oid: PositionLost(
            f"the primary key of table {keys[0].table} is deferrable: {WHY}",
            hint=f"fix the key and drop the slot:\n{keys[0].fix}\nSELECT pg_drop_replication_slot({literal(slot)});\n"
            "then start anew, with a new checkpoint, which dumps the tables again",
        )
        for oid, keys in deferrable_keys(cursor, tables).items()
    }


def _fix(
    table: TableName,
    constraint: str,
    definition: str,
    parent: str | None,
    bound: str | None,
    foreign_keys: list[list[str]] | None,
) -> str:
    """Return the SQL that makes the key not deferrable.

    A partition's key can only be replaced while the partition is detached. A partition whose rows a foreign key refers
    to cannot be detached. So foreign keys are dropped first and added again last. All steps are in one line, because
    they are one transaction."""
    q, name = identifier(*table), identifier(constraint)
    definition = re.sub(r" DEFERRABLE( INITIALLY DEFERRED)?$", "", definition)
    replace = f"ALTER TABLE {q} DROP CONSTRAINT {name}, ADD CONSTRAINT {name} {definition};"
    if parent is None:
        return replace
    steps: list[str] = ["BEGIN;"]
    steps += [f"ALTER TABLE {of} DROP CONSTRAINT {identifier(key)};" for of, key, _ in foreign_keys or ()]
    steps += [f"ALTER TABLE {parent} DETACH PARTITION {q};", replace]
    steps += [f"ALTER TABLE {parent} ATTACH PARTITION {q} {bound};"]
    steps += [f"ALTER TABLE {of} ADD CONSTRAINT {identifier(key)} {text};" for of, key, text in foreign_keys or ()]
    return " ".join([*steps, "COMMIT;"])
