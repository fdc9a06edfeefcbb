"""Makes a `Config` with one sink from the flags of `dblog run`, like the `Config` of a pipeline's file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from dblog.errors import ConfigError

if TYPE_CHECKING:
    from dblog.pipelines.config import Config

SINK_NAME = "output"
"""The name of the only sink. It does not depend on the format, so that another --format continues from the same
checkpoint."""
NOT_OF_THE_SOURCE = ("state", "pipeline", "spool", "slot", "columns", "before")
"""Options of the Spark source that have their own fields in `Config`."""


class Format(StrEnum):
    """The values of `--format`."""

    parquet = "parquet"
    json = "json"
    console = "console"
    noop = "noop"


SINK_TYPES = {Format.parquet: "parquet", Format.json: "ndjson", Format.console: "stdout", Format.noop: "noop"}
"""The type of sink for each format."""


def config_of_flags(
    given: Mapping[str, str],
    output: Format,
    into: Path | str | None,
    checkpoint: Path | str | None,
    every: float | None,
) -> Config:
    """The `Config` of a pipeline without a file. `given` are options of the Spark source, from flags and --option.
    Raises ConfigError."""
    from dblog.core.settings import read_settings
    from dblog.pipelines.config import Config, SinkConfig
    from dblog.pipelines.secrets import Secret
    from dblog.pipelines.sink_kinds import sink_class
    from dblog.sinks.route import Route
    from dblog.spark.options import read_options

    read = read_options(given)
    options = {name.lower(): value for name, value in given.items()}
    if "deliver" in options:
        raise ConfigError("option 'deliver' cannot be set here", hint="the sink decides how rows are delivered")
    folder = _folder(output, into, checkpoint)
    storage = [name.lower() for name in read.objects.options()]
    maker = sink_class(SINK_TYPES[output])
    known = {setting.name for setting in maker.settings}
    wanted = {"path": None if into is None else str(_absolute(into)), "before": read.settings.before}
    settings = {name: value for name, value in wanted.items() if name in known}
    routes = () if read.columns is None else (Route(read.patterns[0], include=read.columns),)
    return Config(
        base=Path.cwd(),
        name=read.pipeline,
        slot=read.slot,
        folder=folder,
        spool=options.get("spool"),
        every=every or 0.0,
        state=read.state,
        http=None,
        token=None,
        throttle={},
        source={
            "ontableerror": "set-aside",
            **{name: value for name, value in options.items() if name not in {*NOT_OF_THE_SOURCE, *storage}},
            "url": Secret(options["url"]),
        },
        sinks=(
            SinkConfig(
                SINK_NAME, SINK_TYPES[output], maker, read_settings("sink.output", settings, maker.settings), routes
            ),
        ),
        alone=True,
        secrets=tuple(map(Secret, (*read.address.secrets, *read.objects.secrets))),
        objects=read.objects,
    )


def _folder(output: Format, into: Path | str | None, checkpoint: Path | str | None) -> Path | str:
    """Where the checkpoint is kept."""
    files = output in (Format.json, Format.parquet)
    if files != (into is not None):
        need = "needs --into" if files else "does not use --into"
        hint = f"dblog run --format {'parquet --into DIR' if files else output}"
        raise ConfigError(f"--format {output} {need}", hint=hint)
    if checkpoint is None and into is None:
        raise ConfigError(f"--format {output} needs --checkpoint", hint="a restart continues from the checkpoint")
    folder = _absolute(checkpoint if checkpoint is not None else f"{into}/_checkpoint")
    if isinstance(folder, Path) and (folder / "offsets").exists():
        raise ConfigError(
            f"{str(folder)!r} is the checkpoint of a Spark query, not of dblog run",
            hint="use another --into or --checkpoint; if that query is not needed, drop its slot: dblog slots drop",
        )
    return folder


def _absolute(path: Path | str) -> Path | str:
    """An absolute path, or an address as it is."""
    return str(path) if "://" in str(path) else Path(path).absolute()
