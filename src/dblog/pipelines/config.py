"""The configuration of a pipeline and its file. The whole file is checked before anything starts.

    [source]     the database and its tables
    [pipeline]   the name, the folder of checkpoints, the interval of batches
    [storage]    how to reach object storage
    [spark]      Spark's master and settings
    [ha]         standbys, and the length of the lease
    [throttle]   the limits on dumps
    [[table]]    columns, names, masks and filters of tables
    [[sink]]     the outputs

All problems are reported at once, each with its key, its value and what is allowed. Without a file, the flags of
`dblog run` make a `Config` too (`dblog.cli.flags`).
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dblog.core.hints import in_file
from dblog.core.masking import has_password
from dblog.core.names import parse_patterns
from dblog.core.settings import Setting, check_settings, nearest
from dblog.core.throttle import read_settings as read_throttle
from dblog.errors import ConfigError
from dblog.ha.elector import LEASE_SECONDS
from dblog.pipelines.file_settings import (
    ELSEWHERE,
    HA,
    OF_SOURCE,
    OF_SPARK,
    PIPELINE,
    RESTARTS,
    SINK,
    SOURCE,
    SPARK,
    TABLE,
)
from dblog.pipelines.secrets import Secret, filled, with_password
from dblog.pipelines.sink_kinds import sink_class
from dblog.sinks.base import Sink
from dblog.sinks.route import Route
from dblog.spark.options import Options, option_names, read_options
from dblog.state.pipeline import UNREADY_SECONDS
from dblog.storage.object_storage import NO_SETTINGS, ObjectStorage
from dblog.storage.object_storage import SETTINGS as STORAGE


@dataclass(frozen=True)
class SinkConfig:
    """One `[[sink]]`."""

    name: str
    kind: str
    maker: type[Sink]
    settings: Mapping[str, Any]
    routes: tuple[Route, ...]
    values: str | None = None
    """The option `values` of the sink's stream; None if no table has rules of its own."""
    keys: str | None = None
    """The option `keys` of the sink's stream; None if no table has a promised key."""

    def options(self, sink: Sink) -> dict[str, str]:
        """Options of the sink's stream that the streams of other sinks may have otherwise."""
        given = {"values": self.values, "keys": self.keys, "years": sink.years}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Config:
    """A pipeline, from a file or from the flags of `dblog run`. `repr` does not show the secrets in it."""

    base: Path
    """The folder at which relative paths of sinks start: the folder of the file, or the working directory."""
    name: str
    folder: Path | str
    """The folder with one folder for each sink, which has the sink's checkpoint and spool: a path, or the text of a
    URI."""
    spool: str | None
    every: float
    state: str | None
    http: str | None
    token: str | None
    throttle: Mapping[str, Any]
    source: Mapping[str, str]
    """Options of the Spark source that all streams have in common."""
    sinks: tuple[SinkConfig, ...]
    alone: bool
    """Whether the pipeline has only one sink. Sinks that are not enabled count too."""
    secrets: tuple[str, ...]
    read_token: str | None = None
    restarts: int = RESTARTS
    """How often a failed stream is restarted within ten minutes, at most."""
    unready_after: float = UNREADY_SECONDS
    """Seconds of waiting for the sink, or of restarts, after which a stream counts as not ready."""
    private: bool = True
    """Whether only the user of the process may read the files that sinks write."""
    objects: ObjectStorage = NO_SETTINGS
    """How to reach object storage."""
    master: str | None = None
    """Spark's master. None: MASTER in the environment, else local[*]."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark."""
    standby: bool = False
    """Whether several instances may run, one of which leads."""
    lease_seconds: float = LEASE_SECONDS
    """The length of the leader's lease, in seconds."""
    slot: str | None = None
    """The replication slot of the only stream. None: the slot of each stream has the stream's name."""


def read_config(path: Path) -> Config:
    """Read a pipeline's file. Raises one ConfigError with all problems."""
    return _File(path, _document(path)).config()


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}", hint="dblog init writes an example") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{str(path)!r} is not UTF-8", hint="write it as TOML in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{str(path)!r} is not TOML: {error}", hint='put texts into quotes: url = "..."') from None


# -- reading -----------------------------------------------------------------------------------------------------------


class _File:
    """Reads one file and collects its problems."""

    def __init__(self, path: Path, document: Mapping[str, Any]) -> None:
        self._path = path
        self._beside = path.absolute().parent
        self._document = document
        self._problems: list[ConfigError] = []
        self._secrets: list[str] = []

    def config(self) -> Config:
        known = ("source", "pipeline", "storage", "spark", "ha", "throttle", "table", "sink")
        for name in self._document:
            if name not in known:
                sections = "[source], [pipeline], [storage], [spark], [ha], [throttle], [[table]], [[sink]]"
                hint = nearest(name, known) + f"the sections are {sections}"
                self._wrong(f"there is no section {name!r}", hint)
        pipeline = self._section("pipeline", self._document.get("pipeline", {}), PIPELINE)
        objects = self._objects()
        spark = self._spark()
        ha = self._section("ha", self._document.get("ha", {}), HA)
        source, read = self._source()
        sinks = self._sinks()
        routes = self._routes([s["name"] for s in sinks], "public" if read is None else read.source.default_schema)
        throttle = self._throttle(pipeline.get("state") == "off")
        if self._problems:
            raise self._error()
        return Config(
            base=self._beside,
            name=pipeline["name"] or slug(self._path.stem),
            folder=self._folder(pipeline["folder"] or f"{self._path.stem}.dblog"),
            spool=self._absolute(pipeline["spool"]),
            every=pipeline["every"],
            state=self._state(pipeline["state"]),
            http=pipeline["http"],
            token=pipeline["token"],
            read_token=pipeline["read_token"],
            throttle=throttle,
            source=source,
            sinks=tuple(
                _sink(s, tuple(r for r, of in routes if s["name"] in of), source["values"])
                for s in sinks
                if s["enabled"]
            ),
            alone=len(sinks) == 1,
            restarts=pipeline["restarts"],
            unready_after=pipeline["unready_after"],
            private=pipeline["private"],
            objects=objects,
            master=spark.get("master"),
            spark=spark.get("settings", {}),
            standby=ha["standby"],
            lease_seconds=ha["lease_seconds"],
            secrets=(*self._secrets, *(read.address.secrets if read is not None else ())),
        )

    def _source(self) -> tuple[dict[str, str], Options | None]:
        values = self._section("source", self._document.get("source", {}), SOURCE)
        if not {"url", "tables", "options"} <= values.keys():
            return {}, None
        names = {name.lower(): name for name in option_names(values["url"])}
        for name in values["options"]:
            if name.lower() in ELSEWHERE:
                self._wrong(f"source.options.{name} cannot be set", f"instead use {ELSEWHERE[name.lower()]}")
            elif name.lower() not in names:
                mine = [o for o in names.values() if o.lower() not in ELSEWHERE]
                self._wrong(
                    f"source.options has no option {name!r}", nearest(name, mine) + "the options are " + ", ".join(mine)
                )
        given = {name: str(values[name]) for name in ("tables", "values", *OF_SOURCE) if values.get(name) is not None}
        try:
            password = values.get("password")
            url = values["url"] if password is None else with_password(values["url"], password)
            given["onTableError"] = str(values.get("on_table_error", "set-aside"))
            options = {"url": Secret(url), **given, **values["options"]}
            return options, None if self._problems else read_options(options)
        except ConfigError as error:
            self._wrong(f"source: {error.message}", error.hint and in_file(error.hint))
            return {}, None

    def _objects(self) -> ObjectStorage:
        try:
            return ObjectStorage.of(self._section("storage", self._document.get("storage", {}), STORAGE))
        except ConfigError as error:
            self._problems.append(error)
            return NO_SETTINGS

    def _spark(self) -> dict[str, Any]:
        values = self._section("spark", self._document.get("spark", {}), SPARK)
        for name in values.get("settings", {}):
            if name.endswith((".env", ".file")):
                self._wrong(
                    f"spark.settings.{name.rpartition('.')[0]} cannot be a secret: Spark's JVM has its settings in its "
                    "command line, which other users of the machine can see",
                    "credentials of object storage belong into [storage]; others into the environment of the nodes",
                )
            elif not name.startswith("spark."):
                self._wrong(f"spark.settings has {name!r}, which is not Spark's", "the names begin with spark.")
            elif name in OF_SPARK:
                self._wrong(f"spark.settings has {name!r}", OF_SPARK[name])
        return values

    def _sinks(self) -> list[dict[str, Any]]:
        """The sinks that have a type and a name."""
        found: list[dict[str, Any]] = []
        given = self._list("sink")
        for nth, table in enumerate(given, 1):
            where = f"sink.{table.get('name') or table.get('type') or nth}"
            own = {s.name: table[s.name] for s in SINK if s.name in table}
            sink = self._section(where, own, SINK)
            if "type" not in sink or "name" not in sink:
                continue
            sink["name"] = sink["name"] or sink["type"]
            if sink["name"] in [s["name"] for s in found]:
                self._wrong(f"two sinks have the name {sink['name']!r}", f"give one of them another name: {where}.name")
            if sink.get("enabled"):
                try:
                    sink["maker"] = sink_class(sink["type"])
                    rest = {name: value for name, value in table.items() if name not in own}
                    sink["settings"] = self._section(where, rest, sink["maker"].settings)
                except ConfigError as error:
                    self._wrong(f"{where}.type: {error.message}", error.hint)
            found.append(sink)
        if not any(s.get("enabled") for s in found) and not self._problems:
            self._wrong("there is no sink" if not given else "no sink is enabled", 'add [[sink]], type = "..."')
        return found

    def _routes(self, sinks: Sequence[str], schema: str) -> list[tuple[Route, Sequence[str]]]:
        """The routes, each with the names of the sinks that it applies to."""
        found: list[tuple[Route, Sequence[str]]] = []
        for nth, table in enumerate(self._list("table"), 1):
            where = f"table.{table.get('match', nth)}"
            before = len(self._problems)
            route = self._section(where, table, TABLE)
            for name in route.get("sinks") or ():
                if name not in sinks:
                    hint = nearest(name, sinks) + "the sinks are " + ", ".join(sinks)
                    self._wrong(f"setting {where + '.sinks'!r} names the sink {name!r}, which does not exist", hint)
            if len(self._problems) > before:
                continue
            try:
                patterns = parse_patterns(route.pop("match"), f"{where}.match", default_schema=schema)
            except ConfigError as error:
                self._problems.append(error)
                continue
            if any(p.exclude for p in patterns):
                self._wrong(f"{where}.match excludes tables", "exclude tables in source.tables")
            named = route.pop("sinks")
            found += [(Route(pattern, **route), sinks if named is None else named) for pattern in patterns]
        return found

    def _throttle(self, off: bool) -> dict[str, Any]:
        given = self._document.get("throttle", {})
        if not isinstance(given, dict):
            self._wrong("'throttle' is not a table", "write [throttle]")
            return {}
        if given and off:
            self._wrong("[throttle] needs a state store, but pipeline.state is off", "leave out one of the two")
        result: dict[str, Any] = {}
        for name, value in given.items():
            try:
                result |= read_throttle({name: filled(f"throttle.{name}", value, self._beside, secret=False)})
            except ConfigError as error:
                self._wrong(f"throttle: {error.message}", error.hint)
        return result

    def _list(self, name: str) -> list[dict[str, Any]]:
        given = self._document.get(name, [])
        if isinstance(given, list) and all(isinstance(item, dict) for item in given):
            return given
        self._wrong(f"{name!r} is not a list of tables", f"write [[{name}]]")
        return []

    def _section(self, where: str, given: Any, known: Sequence[Setting]) -> dict[str, Any]:
        """The values of the valid settings; problems of the others are collected."""
        if not isinstance(given, dict):
            self._wrong(f"{where!r} is not a table", f"write [{where}]")
            return {}
        secret = {s.name for s in known if s.secret}
        tables = {s.name for s in known if s.kind.table}
        there, lost = {}, set()
        for name, value in given.items():
            try:
                path = f"{where}.{name}"
                there[name] = filled(path, value, self._beside, secret=name in secret, table=name in tables)
                self._secrets += _secrets(there[name])
            except ConfigError as error:
                self._problems.append(error)
                lost.add(name)
        values, problems = check_settings(where, there, [s for s in known if s.name not in lost])
        self._problems += problems
        return values

    def _folder(self, path: str) -> Path | str:
        return str(path) if "://" in path else self._beside / Path(path).expanduser()

    def _absolute(self, path: str | None) -> str | None:
        return path if path is None or "://" in path else str(self._beside / Path(path).expanduser())

    def _state(self, location: str | None) -> str | None:
        """The state store's location; a secret only if it has a password."""
        if location is None or has_password(location):
            return location
        self._secrets = [secret for secret in self._secrets if secret != location]
        return str(location) if location == "off" else self._absolute(str(location))

    def _wrong(self, what: str, hint: str | None) -> None:
        self._problems.append(ConfigError(what, hint=hint))

    def _error(self) -> ConfigError:
        if len(self._problems) == 1:
            return ConfigError(f"{self._path}: {self._problems[0].message}", hint=self._problems[0].hint)
        lines = [f"- {p.message}" + (f"\n  {p.hint}" if p.hint else "") for p in self._problems]
        return ConfigError("\n".join([f"{self._path} has {len(lines)} problems:", *lines]))


def _sink(given: Mapping[str, Any], routes: tuple[Route, ...], rest: str) -> SinkConfig:
    values = _values(routes, rest)
    keys = _keys(routes)
    return SinkConfig(given["name"], given["type"], given["maker"], given["settings"], routes, values, keys)


def _values(routes: Sequence[Route], rest: str) -> str | None:
    """The option `values` of a stream with these routes. The first route that matches a table counts, also without
    rules; `rest` is the rule of all other columns."""
    if not any(route.values for route in routes):
        return None
    rules: dict[str, Any] = {}
    for route in routes:
        given = route.values or rest
        rules.setdefault(route.pattern.text, given if isinstance(given, str) else {"*": rest, **given})
    return json.dumps({**rules, "*.*": rest})


def _keys(routes: Sequence[Route]) -> str | None:
    """The option `keys` of a stream with these routes. The first route that matches a table counts, also without a
    key."""
    if not any(route.key for route in routes):
        return None
    found: dict[str, Any] = {}
    for route in routes:
        found.setdefault(route.pattern.text, route.key)
    return json.dumps(found)


def _secrets(value: Any) -> list[str]:
    if isinstance(value, (dict, list)):
        items = value.values() if isinstance(value, dict) else value
        return [secret for item in items for secret in _secrets(item)]
    return [value] if isinstance(value, Secret) else []


def slug(stem: str) -> str:
    """Make a pipeline's name from the name of a file or a database."""
    return re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")[:40] or "pipeline"
