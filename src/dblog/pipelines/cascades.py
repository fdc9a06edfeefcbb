"""What foreign keys did in a batch without a record in the log (`core.cascades`), for the sinks of a pipeline."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from dblog.capture.spool import Spool
from dblog.core.cascades import Rules, from_text
from dblog.core.schema import TableName, TableSchema
from dblog.errors import ConfigError
from dblog.sinks.base import APPLIED, UNKNOWN, TableBatch, TableCascades
from dblog.sinks.route import Route
from dblog.spark.ranges import TableRange
from dblog.work.rows import Typed
from dblog.work.table_rows import TableRows


def cascade_option(source: Mapping[str, str], sinks: Mapping[str, str]) -> dict[str, str]:
    """The option `cascades`, unless it is set: follow if every sink of the pipeline applies them. `sinks` has, by the
    name of each, what it does with cascades (`Sink.cascades`). Raises ConfigError if the option is follow and a sink
    cannot do it.

    A sink that only passes events on does not follow unless it is told to: a reader that does not know these events
    would keep rows that the source does not have."""
    given = next((value for name, value in source.items() if name.lower() == "cascades"), None)
    unable = [name for name, does in sinks.items() if does == UNKNOWN]
    if given == "follow" and unable:
        raise ConfigError(
            f"source.cascades is follow, but the sink {unable[0]!r} can neither apply nor deliver what foreign keys "
            "change without the log",
            hint="leave it out, which leaves such tables out; or give the sink a pipeline of its own; a lake needs the "
            "native writer, and the mode current or history",
        )
    able = all(does == APPLIED for does in sinks.values())
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


def check_event_routes(ranges: Sequence[TableRange], routes: Sequence[Route]) -> None:
    """Raise ConfigError if cascade events show columns that a route changes or leaves out."""
    for key in (rules.first for found in ranges for rules in found.rules):
        for table, columns in ((key.child, key.columns), (key.parent, key.referenced)):
            route = next((r for r in routes if r.pattern.matches(table)), None)
            if route is not None and (touched := {*route.exclude, *route.mask, *route.rename}.intersection(columns)):
                raise ConfigError(
                    f"the foreign key {key.name} has changed rows of {key.child} without a record in the log, and the "
                    f"event would show the columns {sorted(touched)} of {table}, which the route "
                    f"{route.pattern.text!r} changes or leaves out",
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
