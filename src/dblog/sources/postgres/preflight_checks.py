"""The checks of the preflight: query the server's catalog, find the problems, and give the SQL that fixes them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dblog.core.event import RESERVED
from dblog.core.schema import TableName
from dblog.databases.postgres.connect import identifier
from dblog.sources.postgres.deferrable import WHY, deferrable_keys
from dblog.sources.postgres.failover_checks import primary_problems, standby_source_problems, with_failover
from dblog.sources.postgres.promised import promised_problems, unused
from dblog.sources.postgres.relations import ANCESTORS, LEAVES, PARTS, RELATIONS
from dblog.sources.postgres.setup import Setup
from dblog.sources.postgres.slot_copy import copy_names
from dblog.sources.postgres.slot_problems import SLOT, slot_problems, slot_sql
from dblog.sources.problems import NO_KEY, Problem
from dblog.sources.relational import WATERMARK

_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index"}
_PUBLISH = "insert, update, delete, truncate"


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


class Inspection:
    """Reads the server's settings and catalog once, and finds the problems in them."""

    def __init__(self, cur: Any, setup: Setup) -> None:
        self.cur, self.setup = cur, setup
        self.server = self._one(_SERVER)
        if self.server.standby and not setup.writes:  # there nothing can be created but a slot
            self.server = self.server._replace(creates=False)
        self.slot = self._one(SLOT, copy_names(setup.slot), setup.slot)
        self.publication = self._one(
            "SELECT *, pg_has_role(pubowner, 'USAGE') AS owned FROM pg_publication WHERE pubname = %s",
            setup.publication,
        )
        found = self._all(RELATIONS, [t.schema for t in setup.published], [t.name for t in setup.published])
        self.deferrable = deferrable_keys(cur, [table.oid for table in found if table.oid is not None])
        self.left_out: Collection[TableName] = ()
        """Tables of the set-up that must not be published: without a key, their owner's own updates would fail."""
        self.watermark: Any = found.pop() if setup.writes else None
        self.tables = found
        parts = self._all(PARTS, self.publication.oid) if self.publication is not None else ()
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
            create=slot_sql(self.setup.slot, failover=with_failover(self.cur.connection, self.setup)),
            fresh=self.setup.fresh,
            database=self.server.database,
            reader=who or (None, None),
            lost=lost,
        )
        if with_failover(self.cur.connection, self.setup):
            yield from primary_problems(self.cur, self.setup.slot)

    def _one(self, query: str, *parameters: object) -> Any:
        self.cur.execute(query, parameters)
        return self.cur.fetchone()

    def _all(self, query: str, *parameters: object) -> list[Any]:
        self.cur.execute(query, parameters)
        return list(self.cur.fetchall())

    def _of_server(self) -> Iterator[Problem]:
        s = self.server
        if s.standby:
            yield from standby_source_problems(self.cur.connection, writes=self.setup.writes)
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
            what = "the database's encoding is SQL_ASCII: text that is not valid UTF-8 is delivered as null"
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
        name, of = _name(table), TableName(table.schema, table.name)
        if table.oid is None:
            fix, reason = "correct the name: it is case-sensitive and not quoted", "they do not exist"
            yield Problem(f"table {name} does not exist", fix, table=of, reason=reason)
            return
        if table.kind not in "rp":
            kind = _KINDS.get(table.kind, "not a table")
            what, reason = f"{name} is {kind}: the log has no changes of it", f"each is {kind}: the log has no changes"
            yield Problem(what, "capture the tables behind it", table=of, reason=reason)
            return
        if rights:
            yield from self._of_rights(table)
        yield from self._of_logging(table)
        if table.inherited:
            why = "children by inheritance: a select reads their rows, but the log has them apart"
            fix = "capture the children, or make it a partitioned table"
            yield Problem(f"table {name} has {why}", fix, table=of, reason=why)
        if table.generated:
            what = f"generated columns of {name} are not in the log and are not captured: {', '.join(table.generated)}"
            reason = "generated columns, which are not in the log and are not captured"
            yield Problem(what, "compute them downstream", fatal=False, table=of, reason=reason)
        ancestors = self._all(ANCESTORS, self.setup.publication, table.oid, table.oid) if table.partition else ()
        for up in ancestors:
            if (up.schema, up.name) in self.setup.tables:
                why = f"a partition of {_name(up)}: its rows would be captured twice"
                yield Problem(f"{name} is {why}", "capture one of the two", table=of, reason=f"each is {why}")
            elif up.published:
                pub, fix = self.setup.publication, "capture that instead, or use another publication"
                what = f"publication {pub!r} publishes changes of {name} as those of {_name(up)}"
                reason = f"publication {pub!r} publishes their changes as those of {_name(up)}"
                yield Problem(what, fix, table=of, reason=reason)
        for leaf in self._all(LEAVES, table.oid) if table.kind == "p" else ():
            if leaf.kind == "f" or leaf.persistence != "p":
                kind, part = "a foreign table" if leaf.kind == "f" else "unlogged", identifier(leaf.schema, leaf.name)
                detach = f"ALTER TABLE {leaf.parent} DETACH PARTITION {part};"
                fix = detach if leaf.kind == "f" else f"ALTER TABLE {part} SET LOGGED;"
                what = f"partition {_name(leaf)} of {name} is {kind}: the log has no changes of it"
                yield Problem(what, fix, table=of)
            elif not leaf.identified:
                yield _wrong_identity(leaf, of)

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
            what, reason = f"role {role!r} lacks rights on {name}: {missing}", f"role {role!r} lacks {missing}"
            yield Problem(what, fix, table=target, reason=reason)
        if table.secured:
            what = f"row level security hides rows of {name} from role {role!r}, but not from the log"
            reason = f"row level security hides rows from role {role!r}, but not from the log"
            yield Problem(what, f"ALTER ROLE {identifier(role)} BYPASSRLS;", table=target, reason=reason)

    def _of_logging(self, table: Any) -> Iterator[Problem]:
        """Check that the log has the table's changes, and that these have the primary key."""
        name, q, of = _name(table), identifier(table.schema, table.name), TableName(table.schema, table.name)
        if table.persistence != "p":
            kind = "unlogged" if table.persistence == "u" else "temporary"
            what, fix = f"table {name} is {kind}: the log has no changes of it", f"ALTER TABLE {q} SET LOGGED;"
            yield Problem(what, fix, table=of, reason=f"each is {kind}: the log has no changes")
        if not table.key and table.kind == "r" and (promised := self.setup.keys.of(of)):
            yield from promised_problems(self.cur, table, promised)
        elif not table.key:
            why = NO_KEY if table.kind == "r" else "no primary key, which a partitioned table needs"
            fix = f"choose its columns: ALTER TABLE {q} ADD PRIMARY KEY (...);"
            yield Problem(f"table {name} has {why}", fix, table=of, reason=why)
        elif not table.identified:
            yield _wrong_identity(table, of, None if table.has_primary else table.key_index)
        elif set(table.key) & set(table.generated or ()):
            what, reason = f"the primary key of {name} is generated", "the primary key is generated"
            yield Problem(f"{what}, so the log lacks it", "use a plain column", table=of, reason=reason)
        else:
            yield from unused(table, self.setup.keys.of(of))

    def of_deferrable(self, table: Any) -> Iterator[Problem]:
        for key in self.deferrable.get(table.oid, ()):
            what, of = f"the primary key of {str(key.table)!r} is deferrable", TableName(table.schema, table.name)
            reason = f"the primary key is deferrable: {WHY}"
            yield Problem(f"{what}: {WHY}", key.fix, lost=self._is_followed(table), table=of, reason=reason)

    def of_columns(self, table: Any) -> Iterator[Problem]:
        if taken := sorted(RESERVED & set(table.columns or ())):
            why = f"columns named {', '.join(taken)}, which dblog uses for itself"
            fix, of = "rename the columns", TableName(table.schema, table.name)
            yield Problem(f"table {_name(table)} has {why}", fix, table=of, reason=why)

    def unfit(self, table: Any) -> list[Problem]:
        """Why a table cannot be followed, whatever the role may do."""
        if table.oid is None:  # it was dropped after it was listed
            return []
        found = [*self.of_table(table, rights=False), *self.of_deferrable(table), *self.of_columns(table)]
        return [p for p in found if p.fatal]

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
            fix, of = _members_sql(self.setup, self._publishable()), TableName(part.schema, part.name)
            reason = f"publication {pub!r} has {kind} on each: the log would be incomplete"
            yield Problem(what, fix, table=of, reason=reason)

    def members(self) -> set[TableName]:
        """The tables of the publication, listed one by one or by FOR ALL TABLES or by schema."""
        query = "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s"
        return {TableName(*row) for row in self._all(query, self.setup.publication)}

    def not_a_member(self, found: Any, table: Any, *, owned: bool) -> Problem:
        """The problem that the publication lacks a table; `owned`: whether the role owns the table."""
        pub, may = self.setup.publication, found.owned and owned and not self.partial and not self.server.standby
        fix = f"ALTER PUBLICATION {identifier(pub)} ADD TABLE {identifier(table.schema, table.name)};"
        if self.partial:  # the statement that fixes these sets all tables, so ADD would fail
            fix = _members_sql(self.setup, self._publishable())
        what, reason = f"publication {pub!r} does not have {_name(table)}", f"publication {pub!r} does not have them"
        of = TableName(table.schema, table.name)
        return Problem(what, fix, fatal=not may, creatable=may, table=of, reason=reason)

    def _of_members(self, found: Any, *, watermark_owned: bool) -> Iterator[Problem]:
        pub, ours, members = self.setup.publication, self.setup.published, self.members()
        named = {r.prrelid for r in self._all("SELECT prrelid FROM pg_publication_rel WHERE prpubid = %s", found.oid)}
        tables = [t for t in self.tables if not self._is_followed(t)]  # `survey` reports on the followed ones
        for table in (*tables, *([self.watermark] if self.setup.writes else [])):
            missing = (table.schema, table.name) not in members and (table.oid is not None or table is self.watermark)
            if missing and table.kind == "p" and not found.pubviaroot:  # then its partitions are listed
                leaves = {TableName(leaf.schema, leaf.name) for leaf in self._all(LEAVES, table.oid)}
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
        tables = [table for table in tables if table not in self.left_out]
        return [*tables, *([WATERMARK] if self.setup.writes else [])]


def _name(relation: Any) -> str:
    return repr(f"{relation.schema}.{relation.name}")


def _wrong_identity(relation: Any, table: TableName, index: str | None = None) -> Problem:
    """The problem of a table, or of a partition of it. `index` is the unique index that is its key; None if that is the
    primary key."""
    key = "primary key" if index is None else "unique key"
    using = "DEFAULT" if index is None else f"USING INDEX {identifier(index)}"
    fix = f"ALTER TABLE {identifier(relation.schema, relation.name)} REPLICA IDENTITY {using};"
    what = f"the replica identity of {_name(relation)} does not contain its {key}"
    return Problem(what, fix, table=table, reason=f"the replica identity does not contain the {key}")
