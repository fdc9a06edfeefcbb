"""The survey of PostgreSQL: the followed tables as they are now, and new tables to follow.

A table is identified by its OID, because names change while the log of a publication goes on. The `state` of a table is
a fingerprint of everything that adds or removes rows without an entry in the log: its membership in the publication (a
new number after it was removed and added again, or got another column list or row filter), the columns of its key, and
its partitions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from psycopg2.extras import NamedTupleCursor

from dblog.core.names import Pattern, select_tables
from dblog.core.offset import Followed
from dblog.core.schema import TableName
from dblog.databases.postgres.connect import Connection, translating
from dblog.errors import PositionLost, SourceError
from dblog.sources.base import Survey
from dblog.sources.postgres.deferrable import refused_keys
from dblog.sources.postgres.keys import KEY
from dblog.sources.postgres.preflight_checks import Inspection
from dblog.sources.postgres.setup import Setup
from dblog.sources.problems import Problem, refusal, refuse, why

SetupOf = Callable[[Sequence[TableName]], Setup]

# All tables, and everything else that a pattern can bring.
_NAMES = """
SELECT c.oid::text AS oid, n.nspname AS schema, c.relname AS name, c.relkind IN ('r', 'p') AS is_table,
       NOT c.relispartition AND n.nspname NOT LIKE 'pg\\_%%'
           AND n.nspname NOT IN ('information_schema', 'dblog') AS candidate
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""

_STATES = f"""
SELECT c.oid, m.oid AS member, array_to_string((k.indkey::int2[])[0:k.indnkeyatts - 1], ',') AS key
FROM pg_class c LEFT JOIN {KEY} k ON true
LEFT JOIN pg_publication_rel m ON m.prrelid = c.oid AND m.prpubid = %s::oid
WHERE c.oid = ANY (%s::oid[])
"""

# The partitions of tables, the newest first. A table that was created as a partition was empty then: its column entries
# in the catalog are as old as its type. ATTACH rewrites all column entries; a new default rewrites only that of its
# column.
_PARTITIONS = """
SELECT r.root, t.relid, c.relfilenode,
       i.xmin = y.xmin AND EXISTS (
           SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.xmin = y.xmin
           AND a.cmin::text::int8 - y.cmin::text::int8 <= CASE WHEN a.atthasdef THEN 1 ELSE 0 END) AS made_empty
FROM unnest(%s::oid[]) r (root) CROSS JOIN LATERAL pg_partition_tree(r.root::regclass) t
JOIN pg_class c ON c.oid = t.relid JOIN pg_inherits i ON i.inhrelid = t.relid JOIN pg_type y ON y.oid = c.reltype
WHERE t.level > 0 ORDER BY age(i.xmin), t.relid DESC
"""


def survey(
    connection: Connection, setup_of: SetupOf, patterns: tuple[Pattern, ...], followed: Mapping[TableName, Followed]
) -> Survey:
    """Examine all tables that match the patterns, and the followed tables under their present names.

    A followed table is unfit if its log is incomplete, or if the publication lacks it and we may not alter the
    publication. A new table that cannot be followed is left out, with the reason."""
    with translating("looking at the tables"), connection.cursor(cursor_factory=NamedTupleCursor) as cur:
        cur.execute(_NAMES)
        found = cur.fetchall()
        names = {row.oid: TableName(row.schema, row.name) for row in found if row.is_table}
        there = set(names.values())
        candidates = {TableName(r.schema, r.name) for r in found if r.candidate}
        wanted = select_tables(patterns, candidates - (followed.keys() - there))
        absent = [t for t in followed if t not in there]
        kept = [t for t in followed if t in there and select_tables(patterns, [t])]
        examined = tuple(dict.fromkeys((*wanted, *kept)))
        inspection = Inspection(cur, setup_of(examined))
        known = {t.oid: t for t in inspection.tables if t.oid is not None and (t.schema, t.name) in followed}
        deferrable = refused_keys(cur, tuple(known), inspection.setup.slot)
        unfit_now: dict[TableName, SourceError] = {
            TableName(known[oid].schema, known[oid].name): error for oid, error in deferrable.items()
        }
        states = _states(inspection, [t for t in inspection.tables if t.oid is not None])
        tables: dict[TableName, Followed] = {}
        replaced: dict[TableName, str] = {}
        members = inspection.members()
        new = [t for t in inspection.tables if (t.schema, t.name) not in followed]
        unfit = {TableName(t.schema, t.name): reasons for t in new if (reasons := inspection.unfit(t))}
        left_out = {name: why(reasons) for name, reasons in unfit.items()}
        inspection.left_out = unfit.keys()
        for table in inspection.tables:
            name = TableName(table.schema, table.name)
            if name in unfit:
                continue
            if table.oid is None:  # it was dropped after it was listed: the next survey handles it
                tables |= {name: followed[name]} if name in followed else {}
                continue
            wrong = _problems(inspection, table, name in members, followed=name in followed)
            if name in followed and wrong:
                unfit_now.setdefault(name, refusal(wrong))
            elif wrong:
                left_out[name] = why(wrong)
                continue
            tables[name], is_new = states[table.oid]
            before = followed.get(name)
            if before is None or name in unfit_now:
                continue
            if changed := _replaced(before, tables[name], name in members, is_new):
                replaced[name] = changed
        refuse(list(inspection.of_publication(inspection.publication, list(known.values()))))
    away = {t: names[i] for t in absent if (i := followed[t].identity) in names}
    return Survey(tables, replaced, away, frozenset(t for t in absent if t not in away), left_out, unfit_now)


def states(connection: Connection, setup: Setup) -> dict[TableName, Followed]:
    """Identity and state of the published tables of the set-up."""
    with translating("looking at the tables"), connection.cursor(cursor_factory=NamedTupleCursor) as cur:
        inspection = Inspection(cur, setup)
        members = inspection.members()
        there = [t for t in inspection.tables if (t.schema, t.name) in members]
        found = _states(inspection, there)
        return {TableName(t.schema, t.name): found[t.oid][0] for t in there}


def publish(connection: Connection, setup: Setup) -> None:
    """Add the tables of the set-up to the publication that are not in it."""
    with translating("adding tables to the publication"), connection.cursor(cursor_factory=NamedTupleCursor) as cur:
        inspection = Inspection(cur, setup)
        members = inspection.members()
        for table in inspection.tables:
            if table.oid is not None and (table.schema, table.name) not in members:
                cur.execute(inspection.not_a_member(_publication(inspection), table, owned=table.owned).fix)


def _publication(inspection: Inspection) -> Any:
    if inspection.publication is None:
        raise PositionLost(
            f"publication {inspection.setup.publication!r} does not exist any more: the server sends no changes",
            hint="start with a new slot and a new checkpoint, which dumps the tables again",
        )
    return inspection.publication


def _problems(inspection: Inspection, table: Any, is_member: bool, *, followed: bool) -> list[Problem]:
    """The reasons why a table cannot be followed."""
    publication = _publication(inspection)
    found = [*inspection.of_table(table, rights=not followed), *inspection.of_published_part(table)]
    if not followed:
        found += inspection.of_publication(publication, [table])
    if not is_member:
        found.append(inspection.not_a_member(publication, table, owned=table.owned))
    return [p for p in found if p.fatal]


Newer = Callable[[str], bool]
"""Takes an earlier state. Whether all partitions added since then were empty when they were added."""


def _states(inspection: Inspection, tables: Collection[Any]) -> dict[int, tuple[Followed, Newer]]:
    """Identity and state of each table, by OID."""
    roots = [t.oid for t in tables if t.kind == "p"]
    partitions: dict[int, list[tuple[int, bool]]] = {}
    for part in inspection._all(_PARTITIONS, roots) if roots else ():
        partitions.setdefault(part.root, []).append((_number(part.relid, part.relfilenode), part.made_empty))
    publication, names = _publication(inspection).oid, {t.oid: TableName(t.schema, t.name) for t in tables}
    found: dict[int, tuple[Followed, Newer]] = {}
    for row in inspection._all(_STATES, publication, [t.oid for t in tables]):
        mine = partitions.get(row.oid, [])
        key = row.key or _promise(inspection.setup.keys.of(names[row.oid]))
        state = f"{row.member or f'p{publication}'}/{key}/{_sum(n for n, _ in mine):x}"
        found[row.oid] = Followed(str(row.oid), state), _newer(mine)
    return found


def _newer(partitions: Sequence[tuple[int, bool]]) -> Newer:
    def newer(state: str) -> bool:
        rest = [number for number, _ in partitions]
        for _, made_empty in partitions:
            if f"{_sum(rest):x}" == state:
                return True
            if not made_empty:
                return False
            rest.pop(0)
        return f"{_sum(rest):x}" == state

    return newer


def _promise(key: Sequence[str]) -> str | None:
    """What stands for a promised key in the state of a table."""
    return hashlib.sha256("\0".join(key).encode()).hexdigest()[:12] if key else None


def _number(*parts: int) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8])


def _sum(numbers: Iterable[int]) -> int:
    """A checksum of numbers that does not depend on their order."""
    return sum(numbers) % (1 << 64)


def _replaced(before: Followed, now: Followed, is_member: bool, newer: Newer) -> str | None:
    """Why a followed table must be dumped again; None if the log has shown all changes of its rows."""
    if before.identity != now.identity:
        return "another table has its name"
    if not is_member:
        return "the publication did not have it"
    old, new = before.state.split("/"), now.state.split("/")
    if old[0] != new[0]:
        return "it was removed from the publication and added again, or was published in part"
    if old[1] != new[1]:
        return "its key has changed"
    return None if newer(old[2]) else "its partitions have changed"
