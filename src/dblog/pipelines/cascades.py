"""What foreign keys did in a batch without a record in the log, for a sink that applies it (`core.cascades`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from dblog.capture.spool import Spool
from dblog.core.cascades import Rules, from_text
from dblog.core.schema import TableName, TableSchema
from dblog.errors import ConfigError
from dblog.sinks.base import Sink, TableBatch, TableCascades
from dblog.sinks.route import Route
from dblog.spark.ranges import TableRange
from dblog.work.rows import Typed
from dblog.work.table_rows import TableRows


def cascade_option(source: Mapping[str, str], sinks: Sequence[type[Sink]]) -> dict[str, str]:
    """The option `cascades`, unless it is set: follow if every sink of the pipeline can apply them. Raises ConfigError
    if it is set to follow and a sink cannot."""
    able = all(sink.applies_cascades for sink in sinks)
    given = next((value for name, value in source.items() if name.lower() == "cascades"), None)
    if given == "follow" and not able:
        raise ConfigError(
            "source.cascades is follow, but not every sink can apply what foreign keys change without the log",
            hint="leave it out, which leaves such tables out; or give the other sinks a pipeline of their own",
        )
    return {} if given is not None else {"cascades": "follow" if able else "skip"}


def cascades_of(ranges: Sequence[TableRange], routes: Sequence[Route]) -> tuple[TableCascades, ...]:
    """The cascades among the tables of a batch. Raises ConfigError if a route keeps the sink from applying them."""
    found = [TableCascades(from_text(r.schema.cascade), r.arrow) for r in ranges if r.schema.cascade]
    for one in found:
        check_cascade_routes(one.rules, routes)
    return tuple(found)


def check_cascade_routes(rules: Rules, routes: Sequence[Route]) -> None:
    """Raise ConfigError unless the target has the rows and columns that the rules need, as they are."""
    for table, columns in rules.needed().items():
        route = next((r for r in routes if r.pattern.matches(table)), None)
        if route is None:
            continue
        kept = route.include is None or columns <= {*route.include, *_keys(rules)[table].key}
        touched = sorted(columns & {*route.exclude, *route.mask, *route.rename})
        if route.where is None and kept and not touched:
            continue
        what = (
            "it has a where" if route.where is not None else f"it must keep the columns {sorted(columns)} as they are"
        )
        raise ConfigError(
            f"foreign keys change rows of {table} without a record in the log, and the sink cannot follow this with "
            f"the route {route.pattern.text!r}: {what}",
            hint="change the route, or set cascades to skip, which leaves such tables out",
        )


def _keys(rules: Rules) -> Mapping[TableName, TableSchema]:
    return {schema.table: schema for schema in rules.schemas}


def unchanged_tables(
    spool: Spool, cascades: Sequence[TableCascades], there: Collection[TableName], *, before: bool
) -> Iterator[TableBatch]:
    """The tables that cascades may change, if the batch has neither changes nor rows of them."""
    schemas = {schema.table: schema for found in cascades for schema in found.rules.schemas}
    for table, schema in schemas.items():
        if table not in there:
            rows = TableRows(spool, Typed(schema, before), (), ())
            yield TableBatch(table, schema, None, None, None, False, rows)
