"""`dblog set`: show and change the throttle while the pipeline runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from dblog.cli.program import (
    PIPELINE,
    AsJson,
    PipelineName,
    StoreLocation,
    app,
    examples,
    output,
    pipeline_of,
    print_json,
)
from dblog.errors import ConfigError


@app.command(
    "set",
    epilog=examples(
        "dblog set",
        "dblog set rows_per_second=5000 max_lag_seconds=2",
        'dblog set probe="select count(*) from pg_stat_activity" probe_max=80',
        "dblog set rows_per_second=none",
    ),
    rich_help_panel=PIPELINE,
)
def set_settings(
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Change this setting; without any, show all settings."),
    ] = None,
    location: StoreLocation = None,
    name: PipelineName = None,
    as_json: AsJson = False,
) -> None:
    """Show or change the throttle: how much load dumps may put on the source.

    A change takes effect at once and survives a restart. auto or none restores the default of a setting.
    """
    from dblog.core.throttle import read_settings

    given = pairs(changes or (), "a setting")
    read_settings(given)
    with pipeline_of(location, name) as pipeline:
        now = asdict(pipeline.change(given) if given else pipeline.settings())
    if as_json:
        print_json(now)
    else:
        output().print(_table({n: now[n] for n in given} if given else now))


def pairs(texts: list[str] | tuple[str, ...], what: str) -> dict[str, str]:
    """Texts like name=value. Raises ConfigError."""
    result: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise ConfigError(f"{text!r} is not {what}", hint="write it as name=value")
        result[key.strip()] = value
    return result


def _table(values: dict[str, Any]) -> Table:
    from dblog.core.throttle import SETTINGS

    table = Table(box=None, header_style="dim", pad_edge=False)
    for title in ("SETTING", "VALUE", "ALLOWED", "WHAT IT DOES"):
        table.add_column(title, no_wrap=title == "SETTING")
    for setting in SETTINGS:
        if setting.name in values:
            table.add_row(setting.name, setting.shown(values[setting.name]), setting.takes, setting.about)
    return table
