"""The checks that `dblog check` and `dblog run` make before a pipeline starts.

    surroundings   Java, the state store, the address of the HTTP API
    routes         each [[table]] of the file fits the tables that it matches
    source         for each stream: the preflight, the names of columns, whether the log from the checkpoint on exists
    sink           for each stream: the checks of the sink itself

The checks change nothing and do not start Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dblog.control.installed import check_installed
from dblog.core.names import select_tables
from dblog.core.schema import TableName
from dblog.errors import ConfigError, DBLogError, PositionLost, SinkUnreachable
from dblog.pipelines.config import Config
from dblog.pipelines.running import Stream
from dblog.sources.problems import Problem, refuse
from dblog.spark.java import check_java
from dblog.state import check_store
from dblog.work.rows import check_names


@dataclass(frozen=True)
class StreamFindings:
    """What the checks have found for the stream of one sink."""

    tables: tuple[TableName, ...] = ()
    """The tables that the stream follows: without those that are left out."""
    problems: tuple[Problem, ...] = ()
    """Problems of the source."""
    sink: DBLogError | None = None
    """The error of the sink's own check."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the sink says about itself; empty after an error."""

    def error(self) -> DBLogError | None:
        """Why the stream cannot run. None if it can, or if waiting may help: the problem is `passing`, or the sink
        cannot be reached."""
        try:
            refuse([p for p in self.problems if not p.passing])
        except DBLogError as error:
            return error
        return None if isinstance(self.sink, SinkUnreachable) else self.sink


@dataclass(frozen=True)
class Findings:
    """What the checks have found."""

    surroundings: Mapping[str, DBLogError | None] = field(default_factory=dict)
    """Errors by what was checked: `java`, `state`, `http`."""
    streams: Mapping[str, StreamFindings] = field(default_factory=dict)
    """By the name of the sink."""

    @property
    def problems(self) -> list[Problem]:
        """The problems of the source, of all streams, each once."""
        return list(dict.fromkeys(p for found in self.streams.values() for p in found.problems))

    @property
    def left_out(self) -> tuple[TableName, ...]:
        """The tables that the patterns bring and that cannot be followed."""
        return tuple(sorted({p.table for p in self.problems if p.left_out and p.table is not None}))

    @property
    def fatal(self) -> int:
        """How many problems there are because of which the pipeline cannot start."""
        errors = [*self.surroundings.values(), *(found.sink for found in self.streams.values())]
        return sum(p.fatal for p in self.problems) + sum(error is not None for error in errors)


def check_surroundings(config: Config, token: str | None) -> dict[str, DBLogError | None]:
    """Check what the pipeline needs beside its source and its sinks."""
    found = {"java": _found(check_java)}
    if config.state != "off":
        found["state"] = _found(lambda: check_store(config.state))
    if (http := config.http) is not None:
        found["http"] = _found(lambda: _check_http(http, token))
    return found


def check_streams(streams: Sequence[Stream]) -> dict[str, StreamFindings]:
    """Check source and sink of each stream. Raises ConfigError when a route does not fit its tables, and ConnectionLost
    when the source does not answer."""
    check_routes(streams)
    return {stream.sink_name: _check_stream(stream) for stream in streams}


def check_routes(streams: Sequence[Stream]) -> None:
    """Check that each route fits the tables that it matches; asks the database. Raises ConfigError."""
    if not any(s.routes for s in streams):
        return
    tables = streams[0].read.source.tables()
    for stream in streams:
        for table, schema in tables.items():
            route = next((r for r in stream.routes if r.pattern.matches(table)), None)
            if route is not None:
                route.check(schema)
        for route in stream.routes:
            named = route.pattern.literal
            if named is not None and named not in tables and not _is_left_out(stream, named):
                raise ConfigError(
                    f"table.{route.pattern.text} matches no followed table",
                    hint="the followed tables are " + ", ".join(map(str, tables)),
                )


def _is_left_out(stream: Stream, table: TableName) -> bool:
    """Whether a table that exists and that the patterns bring is not followed."""
    return bool(select_tables(stream.read.patterns, [table])) and table in stream.read.source.describe([table])


def _check_stream(stream: Stream) -> StreamFindings:
    resumes, followed = stream.resumes, None if stream.resumes is None else stream.resumes.tables
    with stream.read.family.preflight(stream.read.of_source, followed=followed) as there:
        problems = [*there.problems(), *_unfit_names(stream)]
    if resumes is not None and stream.read.settings.set_aside:
        # these tables are set aside, or will be
        mine = {*resumes.tables, *resumes.aside}
        problems = [
            replace(p, fatal=False, left_out=True) if p.fatal and not p.lost and p.table in mine else p
            for p in problems
        ]
    if resumes is not None and resumes.position is not None and not any(p.lost for p in problems):
        try:
            stream.read.source.check_position(resumes.position, resumes.coordinate)
        except PositionLost as error:
            problems.append(Problem(error.message, error.hint or "", lost=True))
    wrong = stream.check()
    return StreamFindings(tuple(there.tables), tuple(problems), wrong, {} if wrong is not None else stream.facts())


def _unfit_names(stream: Stream) -> Iterator[Problem]:
    for schema in stream.read.source.tables().values():
        try:
            check_names(schema)
        except ConfigError as error:
            fix, reason = f"add !{schema.table} to the tables", "columns that Spark cannot distinguish"
            yield Problem(error.message, error.hint or fix, table=schema.table, reason=reason)


def _check_http(address: str, token: str | None) -> None:
    check_installed()
    from dblog.control.serve import check_address

    check_address(address, token)


def _found(check: Callable[[], None]) -> DBLogError | None:
    try:
        check()
        return None
    except DBLogError as error:
        return error
