"""The checks of the preflight: query the server's catalog, find the problems, and give the SQL that fixes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dblog.core.schema import TableName
from dblog.databases.postgres.connect import identifier
from dblog.sources.postgres.deferrable import WHY, deferrable_keys
from dblog.sources.postgres.slot_copy import copy_names
from dblog.sources.postgres.slot_problems import SLOT, slot_problems
from dblog.sources.problems import Problem
from dblog.sources.relational import WATERMARK

_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index"}
_PUBLISH = "insert, update, delete, truncate"


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

    @property
    def published(self) -> tuple[TableName, ...]:
        """The tables that the publication must have: each captured table once, then the watermark table."""
        watermark = (WATERMARK,) if self.writes else ()
        return (*dict.fromkeys(table for table in self.tables if table != WATERMARK), *watermark)


WATERMARK_SQL = (
    "CREATE SCHEMA IF NOT EXISTS dblog;",
    "CREATE TABLE IF NOT EXISTS dblog.watermark (id smallint PRIMARY KEY CHECK (id = 1), token text NOT NULL);",
    "INSERT INTO dblog.watermark VALUES (1, '') ON CONFLICT DO NOTHING;",
)


def grant(right: str, on: str | TableName, role: str) -> str:
    target = f"SCHEMA {identifier(on)}" if isinstance(on, str) else identifier(*on)
    return f"GRANT {right} ON {target} TO {identifier(role)};"


def replication_sql(role: str) -> str:
    q = identifier(role)
    return f"ALTER ROLE {q} REPLICATION;  -- on Amazon RDS and Aurora: GRANT rds_replication TO {q};"


def publication_sql(setup: Setup, published: Sequence[TableName] | None = None) -> str:
    tables = ", ".join(identifier(*table) for table in published or setup.published)
    options = f"publish = '{_PUBLISH}', publish_via_partition_root = true"
    return f"CREATE PUBLICATION {identifier(setup.publication)} FOR TABLE {tables} WITH ({options});"


def _members_sql(setup: Setup, published: Sequence[TableName]) -> str:
    tables = ", ".join(identifier(*table) for table in published)
    return f"ALTER PUBLICATION {identifier(setup.publication)} SET TABLE {tables};"


_SERVER = """
    SELECT current_user AS role, current_database() AS database, current_setting('wal_level') AS wal_level,
           pg_is_in_recovery() AS standby, current_setting('default_transaction_read_only') AS read_only,
           (SELECT pg_encoding_to_char(encoding) FROM pg_database WHERE datname = current_database()) AS encoding,
           current_setting('max_replication_slots')::int AS max_slots,
           current_setting('max_wal_senders')::int AS max_senders,
           (SELECT count(*) FROM pg_replication_slots) AS slots, (SELECT count(*) FROM pg_stat_replication) AS senders,
           has_database_privilege(current_database(), 'CREATE') AS creates,
           EXISTS (SELECT FROM pg_roles WHERE rolname = current_user AND (rolreplication OR rolsuper)
                   OR rolname = 'rds_replication' AND pg_has_role(oid, 'MEMBER')) AS streams
"""
# Does the replica identity contain the primary key? NOTHING does not, and an index may not.
_IDENTITY = """
    CASE c.relreplident WHEN 'n' THEN false WHEN 'i' THEN EXISTS (
        SELECT FROM pg_index p JOIN pg_index i USING (indrelid)
        WHERE indrelid = c.oid AND p.indisprimary AND i.indisreplident
          AND (p.indkey::int2[])[0:p.indnkeyatts - 1] <@ (i.indkey::int2[])[0:i.indnkeyatts - 1])
    ELSE true END
"""
_RELATIONS = f"""
    SELECT w.schema, w.name, n.oid AS schema_oid, c.oid, c.relkind AS kind, c.relpersistence AS persistence,
           c.relreplident AS replident, {_IDENTITY} AS identified, pg_has_role(c.relowner, 'USAGE') AS owned,
           has_schema_privilege(n.oid, 'USAGE') AS usage, has_schema_privilege(n.oid, 'CREATE') AS creates,
           has_any_column_privilege(c.oid, 'UPDATE') AS updates, has_table_privilege(c.oid, 'INSERT') AS inserts,
           row_security_active(c.oid) AS secured,
           c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid) AS inherited,
           c.relispartition AS partition, a.*
    FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS w(schema, name, ordinal)
    LEFT JOIN pg_namespace n ON n.nspname = w.schema
    LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
    LEFT JOIN pg_index k ON k.indrelid = c.oid AND k.indisprimary
    CROSS JOIN LATERAL (
        SELECT array_agg(f.name) AS columns, array_agg(f.name) FILTER (WHERE generated) AS generated,
               array_agg(f.name) FILTER (WHERE NOT generated AND NOT readable) AS unreadable,
               array_agg(f.name) FILTER (WHERE keyed) AS key
        FROM (SELECT attname::text AS name, attgenerated <> '' AS generated,
                     has_column_privilege(c.oid, attnum, 'SELECT') AS readable,
                     attnum = ANY ((k.indkey::int2[])[0:k.indnkeyatts - 1]) AS keyed
              FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum) f) a
    ORDER BY w.ordinal
"""
_LEAVES = f"""
    SELECT n.nspname AS schema, c.relname AS name, c.relkind AS kind, c.relpersistence AS persistence,
           {_IDENTITY} AS identified, t.parentrelid::text AS parent
    FROM pg_partition_tree(%s::oid::regclass) t
    JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE t.isleaf AND c.relkind <> 'p'
"""
# The ancestors of a partition, the nearest first.
_ANCESTORS = """
    SELECT n.nspname AS schema, c.relname AS name,
           EXISTS (SELECT FROM pg_publication_tables JOIN pg_publication USING (pubname)
                   WHERE pubname = %s AND pubviaroot AND (schemaname, tablename) = (n.nspname, c.relname)) AS published
    FROM pg_partition_ancestors(%s::oid::regclass) a
    JOIN pg_class c ON c.oid = a.relid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid <> %s::oid
"""


# The tables that are published with a row filter or a column list (PostgreSQL 15 and later).
_PARTS = """
    SELECT n.nspname AS schema, c.relname AS name, f.filter
    FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (SELECT to_jsonb(r) ->> 'prqual' AS filter, to_jsonb(r) ->> 'prattrs' AS columns) f
    WHERE r.prpubid = %s::oid AND (f.filter IS NOT NULL OR f.columns IS NOT NULL)
"""


class Inspection:
    """Reads the server's settings and catalog once, and finds the problems in them."""

    def __init__(self, cur: Any, setup: Setup) -> None:
        self.cur, self.setup = cur, setup
        self.server = self._one(_SERVER)
        self.slot = self._one(SLOT, copy_names(setup.slot), setup.slot)
        self.publication = self._one(
            "SELECT *, pg_has_role(pubowner, 'USAGE') AS owned FROM pg_publication WHERE pubname = %s",
            setup.publication,
        )
        found = self._all(_RELATIONS, [t.schema for t in setup.published], [t.name for t in setup.published])
        self.deferrable = deferrable_keys(cur, [table.oid for table in found if table.oid is not None])
        self.watermark: Any = found.pop() if setup.writes else None
        self.tables = found
        parts = self._all(_PARTS, self.publication.oid) if self.publication is not None else ()
        self.partial = [part for part in parts if (part.schema, part.name) in setup.published]

    def problems(self) -> Iterator[Problem]:
        yield from self._of_server()
        if WATERMARK in self.setup.tables:
            yield Problem(f"the watermark table '{WATERMARK}' cannot be captured", "leave it out of the tables")
        for table in self.tables:
            yield from self.of_table(table)
            yield from self.of_deferrable(table)
        owned = True
        if self.watermark is not None:
            watermark = list(self._of_watermark(self.watermark))
            yield from watermark
            owned = self.watermark.owned if self.watermark.oid is not None else not any(p.fatal for p in watermark)
        if self.publication is None:
            yield self._no_publication(watermark_owned=owned)
        else:
            yield from self.of_publication(self.publication, self.tables)
            for table in (*self.tables, *([self.watermark] if self.setup.writes else [])):
                yield from self.of_published_part(table)
            yield from self._of_members(self.publication, watermark_owned=owned)
        pid = self.slot.reader if self.slot is not None else None
        who = self._one("SELECT application_name, client_addr FROM pg_stat_activity WHERE pid = %s", pid)
        deferrable = [_name(t) for t in self.tables if t.oid in self.deferrable and self._is_followed(t)]
        lost = [f"the log may have changes of {name} that were made under its deferrable key" for name in deferrable]
        if self.publication is None:
            pub = self.setup.publication
            lost.append(f"slot {self.setup.slot!r} exists, but its publication {pub!r} does not: changes were lost")
        yield from slot_problems(
            self.setup.slot,
            self.slot,
            fresh=self.setup.fresh,
            database=self.server.database,
            reader=who or (None, None),
            lost=lost,
        )

    def _one(self, query: str, *parameters: object) -> Any:
        self.cur.execute(query, parameters)
        return self.cur.fetchone()

    def _all(self, query: str, *parameters: object) -> list[Any]:
        self.cur.execute(query, parameters)
        return list(self.cur.fetchall())

    def _of_server(self) -> Iterator[Problem]:
        s = self.server
        if s.standby:
            yield Problem("the server is a standby", "connect to the primary")
        if s.wal_level != "logical":
            rds = "on Amazon RDS and Aurora: rds.logical_replication = 1 in the parameter group, then reboot"
            fix = f"ALTER SYSTEM SET wal_level = 'logical';  -- then restart the server; {rds}"
            yield Problem(f"wal_level is {s.wal_level!r}, so the log cannot be decoded", fix)
        if self.slot is None and s.slots >= s.max_slots:
            fix = f"ALTER SYSTEM SET max_replication_slots = {s.slots + 5};  -- then restart; or drop an unused slot"
            yield Problem(f"all {s.max_slots} replication slots are in use (max_replication_slots)", fix)
        if s.senders >= s.max_senders and not (self.slot and self.slot.active):
            fix = f"ALTER SYSTEM SET max_wal_senders = {s.senders + 5};  -- then restart; or stop a replication client"
            yield Problem(f"all {s.max_senders} wal senders are in use (max_wal_senders)", fix)
        if s.encoding == "SQL_ASCII":
            what = "the database's encoding is SQL_ASCII: text that is not valid UTF-8 will stop the capture"
            yield Problem(what, "move to a database with encoding UTF8", fatal=False)
        if not s.streams:
            yield Problem(f"role {s.role!r} may not read the log (no REPLICATION)", replication_sql(s.role))
        if s.read_only == "on" and self.setup.writes:
            # the setting of a role in a database overrides those of the role and of the database
            where = f"{identifier(s.role)} IN DATABASE {identifier(s.database)}"
            fix = f"ALTER ROLE {where} SET default_transaction_read_only = off;"
            yield Problem(f"role {s.role!r} is read-only by default, so watermarks cannot be written", fix)

    def of_table(self, table: Any, *, rights: bool = True) -> Iterator[Problem]:
        """The problems of a table; with `rights`, also the privileges that the role lacks to read it."""
        name = _name(table)
        if table.oid is None:
            yield Problem(f"table {name} does not exist", "correct the name: it is case-sensitive and not quoted")
            return
        if table.kind not in "rp":
            kind = _KINDS.get(table.kind, "not a table")
            yield Problem(f"{name} is {kind}: the log has no changes of it", "capture the tables behind it")
            return
        if rights:
            yield from self._of_rights(table)
        yield from self._of_logging(table)
        if table.inherited:
            what = f"table {name} has children by inheritance: a select reads their rows, but the log has them apart"
            yield Problem(what, "capture the children, or make it a partitioned table")
        if table.generated:
            what = f"generated columns of {name} are not in the log and are not captured: {', '.join(table.generated)}"
            yield Problem(what, "compute them downstream", fatal=False)
        ancestors = self._all(_ANCESTORS, self.setup.publication, table.oid, table.oid) if table.partition else ()
        for up in ancestors:
            if (up.schema, up.name) in self.setup.tables:
                yield Problem(
                    f"{name} is a partition of {_name(up)}: its rows would be captured twice", "capture one of the two"
                )
            elif up.published:
                pub, fix = self.setup.publication, "capture that instead, or use another publication"
                yield Problem(f"publication {pub!r} publishes changes of {name} as those of {_name(up)}", fix)
        for leaf in self._all(_LEAVES, table.oid) if table.kind == "p" else ():
            if leaf.kind == "f" or leaf.persistence != "p":
                kind, part = "a foreign table" if leaf.kind == "f" else "unlogged", identifier(leaf.schema, leaf.name)
                detach = f"ALTER TABLE {leaf.parent} DETACH PARTITION {part};"
                fix = detach if leaf.kind == "f" else f"ALTER TABLE {part} SET LOGGED;"
                yield Problem(f"partition {_name(leaf)} of {name} is {kind}: the log has no changes of it", fix)
            elif not leaf.identified:
                yield _wrong_identity(leaf)

    def _of_rights(self, table: Any, *, update: bool = False) -> Iterator[Problem]:
        name, role, lacks = _name(table), self.server.role, []
        target = TableName(table.schema, table.name)
        if not table.usage:
            lacks.append(("USAGE", table.schema))
        if table.unreadable:
            some = {*table.unreadable, *(table.generated or ())} != set(table.columns)
            columns = f" ({', '.join(map(identifier, table.unreadable))})" if some else ""
            lacks.append((f"SELECT{columns}", target))
        if update and not table.updates:
            lacks.append(("UPDATE", target))
        if lacks:
            missing = ", ".join(f"{right} on schema {on!r}" if on is table.schema else right for right, on in lacks)
            fix = "\n".join(grant(right, on, role) for right, on in lacks)
            yield Problem(f"role {role!r} lacks rights on {name}: {missing}", fix)
        if table.secured:
            what = f"row level security hides rows of {name} from role {role!r}, but not from the log"
            yield Problem(what, f"ALTER ROLE {identifier(role)} BYPASSRLS;")

    def _of_logging(self, table: Any) -> Iterator[Problem]:
        """Check that the log has the table's changes, and that these have the primary key."""
        name, q = _name(table), identifier(table.schema, table.name)
        if table.persistence != "p":
            kind = "unlogged" if table.persistence == "u" else "temporary"
            yield Problem(f"table {name} is {kind}: the log has no changes of it", f"ALTER TABLE {q} SET LOGGED;")
        if not table.key:
            what = f"table {name} has no primary key, which is needed to match dumped rows with changes"
            yield Problem(what, f"choose its columns: ALTER TABLE {q} ADD PRIMARY KEY (...);")
        elif not table.identified:
            yield _wrong_identity(table)
        elif set(table.key) & set(table.generated or ()):
            yield Problem(f"the primary key of {name} is generated, so the log lacks it", "use a plain column")

    def of_deferrable(self, table: Any) -> Iterator[Problem]:
        for key in self.deferrable.get(table.oid, ()):
            what = f"the primary key of {str(key.table)!r} is deferrable: {WHY}"
            yield Problem(what, key.fix, lost=self._is_followed(table))

    def _is_followed(self, table: Any) -> bool:
        return (table.schema, table.name) in self.setup.followed

    def _of_watermark(self, table: Any) -> Iterator[Problem]:
        *create, fill = WATERMARK_SQL
        if table.oid is None:
            may = self.server.creates if table.schema_oid is None else table.creates and table.usage
            may = may and self._publishes()  # an administrator who publishes the table must own it
            if table.schema_oid is not None:
                create = create[1:]  # IF NOT EXISTS needs the privilege even if the schema exists
            role = self.server.role
            usage = [] if table.usage else [grant("USAGE", WATERMARK.schema, role)]
            # if an administrator runs this, the role is not the owner
            steps = [*create, fill, *usage, grant("SELECT, UPDATE", WATERMARK, role)]
            what, fix = f"the watermark table '{WATERMARK}' does not exist", "\n".join(steps)
            yield Problem(what, fix, fatal=not may, creatable=may)
            return
        if table.kind != "r" or table.key != ["id"] or set(table.columns) != {"id", "token"}:
            yield Problem(f"'{WATERMARK}' does not have the form of a watermark table", "drop or rename it")
            return
        yield from self._of_logging(table)
        problems = list(self._of_rights(table, update=True))
        for problem in problems:  # then we cannot check that the row exists
            yield replace(problem, fix=f"{problem.fix}\n{fill}")
        if not problems and not self._all(f"SELECT 1 FROM {WATERMARK} WHERE id = 1"):
            may = table.inserts
            yield Problem(f"the watermark table '{WATERMARK}' has no row", fill, fatal=not may, creatable=may)

    def _publishes(self) -> bool:
        """Whether the role itself may publish the watermark table, if it is the owner."""
        if self.publication is None:
            return bool(self.server.creates and all(t.owned for t in self.tables if t.oid is not None))
        return bool(self.publication.puballtables or (self.publication.owned and not self.partial))

    def _no_publication(self, *, watermark_owned: bool) -> Problem:
        may, fix = watermark_owned and self._publishes(), publication_sql(self.setup, self._publishable())
        return Problem(f"publication {self.setup.publication!r} does not exist", fix, fatal=not may, creatable=may)

    def of_publication(self, found: Any, tables: Sequence[Any]) -> Iterator[Problem]:
        """The problems of the publication as a whole, for these tables."""
        pub, q = self.setup.publication, identifier(self.setup.publication)
        if silent := [verb for verb in _PUBLISH.split(", ") if not getattr(found, f"pub{verb}")]:
            fix = f"ALTER PUBLICATION {q} SET (publish = '{_PUBLISH}');"
            yield Problem(f"publication {pub!r} does not publish {', '.join(silent)}", fix)
        roots = [_name(t) for t in tables if t.kind == "p"]
        if roots and not found.pubviaroot:
            fix = f"ALTER PUBLICATION {q} SET (publish_via_partition_root = true);"
            yield Problem(f"publication {pub!r} publishes the partitions of {', '.join(roots)}, not the table", fix)

    def of_published_part(self, table: Any) -> Iterator[Problem]:
        """Whether the publication leaves out rows or columns of a table."""
        pub = self.setup.publication
        for part in (p for p in self.partial if (p.schema, p.name) == (table.schema, table.name)):
            kind = "a row filter" if part.filter else "a column list"
            what = f"publication {pub!r} has {kind} on {_name(part)}: the log would be incomplete"
            yield Problem(what, _members_sql(self.setup, self._publishable()))

    def members(self) -> set[TableName]:
        """The tables of the publication, listed one by one or by FOR ALL TABLES or by schema."""
        query = "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s"
        return {TableName(*row) for row in self._all(query, self.setup.publication)}

    def not_a_member(self, found: Any, table: Any, *, owned: bool) -> Problem:
        """The problem that the publication lacks a table; `owned`: whether the role owns the table."""
        pub, may = self.setup.publication, found.owned and owned and not self.partial
        fix = f"ALTER PUBLICATION {identifier(pub)} ADD TABLE {identifier(table.schema, table.name)};"
        if self.partial:  # the statement that fixes these sets all tables, so ADD would fail
            fix = _members_sql(self.setup, self._publishable())
        return Problem(f"publication {pub!r} does not have {_name(table)}", fix, fatal=not may, creatable=may)

    def _of_members(self, found: Any, *, watermark_owned: bool) -> Iterator[Problem]:
        pub, ours, members = self.setup.publication, self.setup.published, self.members()
        named = {r.prrelid for r in self._all("SELECT prrelid FROM pg_publication_rel WHERE prpubid = %s", found.oid)}
        tables = [t for t in self.tables if not self._is_followed(t)]  # `survey` reports on the followed ones
        for table in (*tables, *([self.watermark] if self.setup.writes else [])):
            missing = (table.schema, table.name) not in members and (table.oid is not None or table is self.watermark)
            if missing and table.kind == "p" and not found.pubviaroot:  # then its partitions are listed
                leaves = {TableName(leaf.schema, leaf.name) for leaf in self._all(_LEAVES, table.oid)}
                missing = table.oid not in named and not (leaves and leaves <= members)
            if missing and not found.puballtables:
                yield self.not_a_member(found, table, owned=watermark_owned if table is self.watermark else table.owned)
        if others := len(members - set(ours)):
            what = f"publication {pub!r} has {others} more tables: the server sends their changes for nothing"
            fix = "use a publication of the captured tables only (option publication)"
            fix = fix if found.puballtables else _members_sql(self.setup, self._publishable())
            yield Problem(what, fix, fatal=False)

    def _publishable(self) -> list[TableName]:
        """The wanted tables that a publication can have: a statement with any other relation fails."""
        tables = [TableName(t.schema, t.name) for t in self.tables if t.oid is not None and t.kind in "rp"]
        return [*tables, *([WATERMARK] if self.setup.writes else [])]


def _name(relation: Any) -> str:
    return repr(f"{relation.schema}.{relation.name}")


def _wrong_identity(table: Any) -> Problem:
    fix = f"ALTER TABLE {identifier(table.schema, table.name)} REPLICA IDENTITY DEFAULT;"
    return Problem(f"the replica identity of {_name(table)} does not contain its primary key", fix)
