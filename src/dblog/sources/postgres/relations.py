"""What the catalog says of tables: the queries of the preflight (`preflight_checks`)."""

from __future__ import annotations

from dblog.sources.postgres.keys import IDENTIFIED, KEY

# Does the replica identity of a partition contain its primary key? NOTHING does not, and an index may not.
_OF_PARTITION = """
    CASE c.relreplident WHEN 'n' THEN false WHEN 'i' THEN EXISTS (
        SELECT FROM pg_index p JOIN pg_index i USING (indrelid)
        WHERE indrelid = c.oid AND p.indisprimary AND i.indisreplident
          AND (p.indkey::int2[])[0:p.indnkeyatts - 1] <@ (i.indkey::int2[])[0:i.indnkeyatts - 1])
    ELSE true END
"""
RELATIONS = f"""
    SELECT w.schema, w.name, n.oid AS schema_oid, c.oid, c.relkind AS kind, c.relpersistence AS persistence,
           c.relreplident AS replident, {IDENTIFIED} AS identified, k.indisprimary AS has_primary,
           (SELECT relname::text FROM pg_class WHERE oid = k.indexrelid) AS key_index,
           pg_has_role(c.relowner, 'USAGE') AS owned,
           has_schema_privilege(n.oid, 'USAGE') AS usage, has_schema_privilege(n.oid, 'CREATE') AS creates,
           has_any_column_privilege(c.oid, 'UPDATE') AS updates, has_table_privilege(c.oid, 'INSERT') AS inserts,
           row_security_active(c.oid) AS secured,
           c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid) AS inherited,
           c.relispartition AS partition, a.*
    FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS w(schema, name, ordinal)
    LEFT JOIN pg_namespace n ON n.nspname = w.schema
    LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
    LEFT JOIN {KEY} k ON true
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
LEAVES = f"""
    SELECT n.nspname AS schema, c.relname AS name, c.relkind AS kind, c.relpersistence AS persistence,
           {_OF_PARTITION} AS identified, t.parentrelid::text AS parent
    FROM pg_partition_tree(%s::oid::regclass) t
    JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE t.isleaf AND c.relkind <> 'p'
"""
# The ancestors of a partition, the nearest first.
ANCESTORS = """
    SELECT n.nspname AS schema, c.relname AS name,
           EXISTS (SELECT FROM pg_publication_tables JOIN pg_publication USING (pubname)
                   WHERE pubname = %s AND pubviaroot AND (schemaname, tablename) = (n.nspname, c.relname)) AS published
    FROM pg_partition_ancestors(%s::oid::regclass) a
    JOIN pg_class c ON c.oid = a.relid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid <> %s::oid
"""
# The tables that are published with a row filter or a column list (PostgreSQL 15 and later).
PARTS = """
    SELECT n.nspname AS schema, c.relname AS name, f.filter
    FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (SELECT to_jsonb(r) ->> 'prqual' AS filter, to_jsonb(r) ->> 'prattrs' AS columns) f
    WHERE r.prpubid = %s::oid AND (f.filter IS NOT NULL OR f.columns IS NOT NULL)
"""

# What a pattern can bring: ordinary and partitioned tables, but not their partitions; and views and foreign tables,
# which cannot be captured.
CANDIDATES = """
select n.nspname, c.relname, c.relkind in ('r', 'p') and c.relpersistence = 'p'
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f') and not c.relispartition
  and n.nspname not in ('pg_catalog', 'information_schema', 'dblog') and n.nspname not like 'pg\\_%'
"""
