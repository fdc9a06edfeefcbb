"""Promised keys (`core.promised_keys`) of tables in PostgreSQL: what describes them, and which cannot be followed.

Only an ordinary table can have one, not a partitioned table. Its replica identity must be FULL: without an index there
is no other that has the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dblog.core.schema import TableName
from dblog.databases.postgres.connect import identifier
from dblog.sources.postgres.keys import KEY_TEXT
from dblog.sources.problems import Problem
from dblog.sources.promised import promise_problems, unused_promise

# The columns of a promised key as `chunks.key_texts` shows those of an index. None if a column does not exist.
_TEXT = f"""
select {KEY_TEXT}, pg_catalog.count(*)
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
join unnest(%s::text[]) with ordinality p(name, ordinal) on p.name = a.attname
where c.relkind = 'r' and n.nspname = %s and c.relname = %s
"""

# Whether values of a column can be ordered: its type, or the type of its elements or its base, has a B-tree.
_UNORDERED = """
select a.attname::text from pg_catalog.pg_attribute a
join pg_catalog.pg_type t on t.oid = a.atttypid
join pg_catalog.pg_type b on b.oid = case when t.typtype = 'd' then t.typbasetype else t.oid end
join pg_catalog.pg_type e on e.oid = case when b.typcategory = 'A' and b.typelem <> 0 then b.typelem else b.oid end
where a.attrelid = %s::oid and a.attnum > 0 and not a.attisdropped and e.typtype not in ('d', 'e', 'r', 'm', 'c')
  and not exists (
    select from pg_catalog.pg_opclass o join pg_catalog.pg_am m on m.oid = o.opcmethod
    where m.amname = 'btree' and o.opcdefault and (o.opcintype = e.oid or exists (
        select from pg_catalog.pg_cast c where c.castsource = e.oid and c.casttarget = o.opcintype
        and c.castmethod = 'b' and c.castcontext = 'i')))
"""


def promised_text(cursor: Any, table: TableName, key: Sequence[str]) -> str | None:
    """A text that identifies a promised key, like that of an index; None if the table cannot have it."""
    if not key:
        return None
    cursor.execute(_TEXT, (list(key), table.schema, table.name))
    text, count = cursor.fetchone()
    return f"promised {text}" if count == len(key) else None


def promised_problems(cursor: Any, relation: Any, promised: Sequence[str]) -> Iterator[Problem]:
    """The problems of a table that has no key of its own. `relation` is a row of `relations.RELATIONS`."""
    table = TableName(relation.schema, relation.name)
    cursor.execute(_UNORDERED, (relation.oid,))
    unusable = {name: "its type has no order" for (name,) in cursor.fetchall()}
    unusable |= dict.fromkeys(relation.generated or (), "it is generated, so the log lacks it")
    wrong = list(promise_problems(table, promised, relation.columns or (), unusable))
    yield from wrong
    if not wrong and relation.replident != "f":
        q = identifier(relation.schema, relation.name)
        what = f"the replica identity of {str(table)!r} does not contain its promised key"
        reason = "the replica identity does not contain the promised key"
        yield Problem(what, f"ALTER TABLE {q} REPLICA IDENTITY FULL;", table=table, reason=reason)


def unused(relation: Any, promised: Sequence[str]) -> Iterator[Problem]:
    """The notice that a table has a key of its own, if one is promised too."""
    if promised:
        yield unused_promise(TableName(relation.schema, relation.name), promised, relation.key)
