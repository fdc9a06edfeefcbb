"""The key of a table: which of its indexes identifies rows.

It is the primary key. Without one, it is a unique index whose columns are all NOT NULL and which holds for every row at
every moment: valid, not partial, not over expressions, not deferrable, and comparing values as its columns do. The log
identifies rows by such an index only if it is the replica identity, or if the replica identity is FULL.

If there are several such indexes, the replica identity comes first, then the order of their columns in the table
decides: it stays the same when an index is built anew.
"""

from __future__ import annotations

# Of a plain table, not of a partitioned one: each partition would need a replica identity of its own.
_UNIQUE = """
    c.relkind = 'r' AND k.indisunique AND k.indisvalid AND k.indimmediate
    AND k.indpred IS NULL AND k.indexprs IS NULL
    AND NOT EXISTS (
        SELECT FROM unnest(k.indkey::int2[], k.indcollation::oid[], k.indclass::oid[])
                    WITH ORDINALITY AS part(attnum, collation_oid, class, ordinal)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = k.indrelid AND a.attnum = part.attnum
        JOIN pg_catalog.pg_opclass o ON o.oid = part.class JOIN pg_catalog.pg_am m ON m.oid = o.opcmethod
        WHERE part.ordinal <= k.indnkeyatts
          AND NOT (a.attnotnull AND a.attgenerated = '' AND a.attcollation = part.collation_oid
                   AND o.opcdefault AND m.amname = 'btree'))
"""

KEY = f"""
LATERAL (
    SELECT k.* FROM pg_catalog.pg_index k WHERE k.indrelid = c.oid AND (k.indisprimary OR {_UNIQUE})
    ORDER BY k.indisprimary DESC, k.indisreplident DESC, k.indkey::int2[] LIMIT 1)
"""
"""A subquery: the row of `pg_index` of the key of the table `c`, which is a row of `pg_class`; none without a key."""

IDENTIFIED = """
    CASE c.relreplident WHEN 'n' THEN false WHEN 'd' THEN k.indisprimary WHEN 'i' THEN EXISTS (
        SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisreplident
          AND (k.indkey::int2[])[0:k.indnkeyatts - 1] <@ (i.indkey::int2[])[0:i.indnkeyatts - 1])
    ELSE true END
"""
"""Whether the replica identity of the table `c` contains its key `k`."""

KEY_TEXT = """
pg_catalog.string_agg(pg_catalog.concat_ws(' ', a.attname,
    pg_catalog.format_type(a.atttypid, a.atttypmod),
    case when a.attcollation not in (0, 100) then 'collation ' || a.attcollation end), ', ' order by p.ordinal)
"""
"""An aggregate: the text that identifies a key. It has the columns `a`, which are rows of `pg_attribute`, with their
types and collations, in the order of `p.ordinal`."""
