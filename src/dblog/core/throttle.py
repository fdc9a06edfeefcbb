"""The throttle: how much a dump may ask of the source database. All of it can be changed while a stream runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from dblog.errors import ConfigError


@dataclass(frozen=True)
class Throttle:
    """The settings of a pipeline's dumps. None stands for the automatic or unlimited default."""

    paused: bool = False
    chunk_rows: int | None = None
    select_seconds: float | None = None
    chunks: int | None = None
    delay_seconds: float = 0.0
    rows_per_second: float | None = None
    max_select_seconds: float | None = None
    max_lag_seconds: float | None = None
    probe: str | None = None
    probe_max: float | None = None


@dataclass(frozen=True)
class Setting:
    """One setting: what it takes, what it does, its default in words."""

    name: str
    takes: str
    about: str
    default: str
    read: Callable[[Any], Any]


def _flag(value: Any) -> bool:
    known = {"true": True, "false": False, "on": True, "off": False, "yes": True, "no": False, "1": True, "0": False}
    return known[str(value).strip().lower()]


def _number(least: float, most: float, kind: type = float) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError(value)
        number = kind(value)
        if not least <= number <= most or (isinstance(value, float) and number != value):
            raise ValueError(value)
        return number

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 4000:
        raise ValueError(value)
    return value.strip()


SETTINGS = (
    Setting("paused", "true or false", "no new rounds of any dump; the log flows on", "false", _flag),
    Setting("chunk_rows", "auto or 1 to 10000000", "rows per chunk", "auto", _number(1, 10_000_000, int)),
    Setting(
        "select_seconds",
        "auto or 0.001 to 60",
        "how long a chunk's select should take when chunk_rows is auto",
        "auto",
        _number(0.001, 60),
    ),
    Setting("chunks", "auto or 1 to 1000", "chunks per round, selected in parallel", "auto", _number(1, 1000, int)),
    Setting("delay_seconds", "0 to 86400", "pause between two rounds", "0", _number(0, 86_400)),
    Setting("rows_per_second", "none or 1 to 1e9", "rows read per second, on average", "none", _number(1, 1e9)),
    Setting(
        "max_select_seconds",
        "none or 0.001 to 3600",
        "back off while a chunk's select takes longer",
        "none",
        _number(0.001, 3600),
    ),
    Setting(
        "max_lag_seconds",
        "none or 0.001 to 86400",
        "back off while the log arrives later than this after the commit",
        "none",
        _number(0.001, 86_400),
    ),
    Setting("probe", "none or an SQL query of one number", "a measure of the source's load", "none", _text),
    Setting("probe_max", "none or a number", "back off while the probe gives more", "none", _number(-1e300, 1e300)),
)

NONE = ("auto", "none")
"""Either word takes a setting back to its default."""


def read_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings as people write them, in text or JSON. Raises ConfigError that names setting and value."""
    known = {s.name: s for s in SETTINGS}
    result: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"unknown setting {name!r}", hint="the settings are " + ", ".join(known))
        setting = known[name]
        if value is None or (isinstance(value, str) and value.strip().lower() in NONE):
            result[name] = next(f.default for f in fields(Throttle) if f.name == name)
            continue
        try:
            result[name] = setting.read(value)
        except (ValueError, TypeError, KeyError, OverflowError):
            raise ConfigError(f"setting {name!r} has the value {value!r}", hint=f"allowed is {setting.takes}") from None
    return result
