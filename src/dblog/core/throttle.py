"""The throttle: how much load dumps may put on the source database. Every setting can be changed while a stream runs.

`Throttle` holds the settings; `Governor` decides when the next round may open. The time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dblog.core.settings import Kind, Setting, flag, number, optional, wrong_value
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
    max_delay_seconds: float | None = None
    probe: str | None = None
    probe_max: float | None = None


def _query(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 4000:
        raise ValueError
    return value.strip()


SETTINGS = (
    Setting("paused", "no new rounds of any dump; changes are still delivered", flag(), False),
    Setting("chunk_rows", "rows per chunk", optional(number(1, 10_000_000), "auto"), None),
    Setting(
        "select_seconds",
        "how long a chunk's select should take when chunk_rows is auto",
        optional(number(0.001, 60), "auto"),
        None,
    ),
    Setting("chunks", "chunks per round, selected in parallel", optional(number(1, 1000), "auto"), None),
    Setting("delay_seconds", "pause between two rounds", number(0.0, 86_400.0), 0.0),
    Setting("rows_per_second", "rows read per second, on average", optional(number(1.0, 1e9)), None),
    Setting(
        "max_select_seconds", "back off while a chunk's select takes longer", optional(number(0.001, 3600.0)), None
    ),
    Setting(
        "max_lag_seconds",
        "back off while the log arrives later than this after the commit",
        optional(number(0.001, 86_400.0)),
        None,
    ),
    Setting(
        "max_delay_seconds",
        "how long a change may wait for its delivery while a dump runs",
        optional(number(0.01, 3600.0), "auto"),
        None,
    ),
    Setting("probe", "a measure of the source's load", optional(Kind("an SQL query of one number", _query)), None),
    Setting("probe_max", "back off while the probe returns more", optional(number(-1e300, 1e300, "a number")), None),
)
"""The fields of `Throttle` as users set them."""

DEFAULT = ("auto", "none")
"""Either word, or null, restores the default of any setting."""


def read_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings given as text or JSON. Raises ConfigError with the setting and the value."""
    known = {s.name: s for s in SETTINGS}
    result: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"unknown setting {name!r}", hint="the settings are " + ", ".join(known))
        try:
            result[name] = _read(known[name], value)
        except (ValueError, TypeError):
            raise wrong_value(f"setting {name!r}", known[name], value) from None
    return result


def _read(setting: Setting, value: Any) -> Any:
    if value is None or (isinstance(value, str) and value.strip().lower() in DEFAULT):
        return setting.default
    if isinstance(value, str):
        return setting.kind.parse(value)
    if isinstance(setting.default, bool) and value in (0, 1):
        return bool(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # in JSON, 5.0 and 5 are the same number
    return setting.kind.read(value)


PENALTY_SECONDS, MOST_PENALTY_SECONDS = 1.0, 60.0
"""How long no round opens after a select that took too long, in seconds: the first time, and at most. Each further slow
round doubles it."""


@dataclass(frozen=True)
class Load:
    """How busy the source is."""

    lag_seconds: float | None = None
    """Seconds from the commit of the last transaction to its capture."""
    probe: float | None = None
    trouble: str | None = None
    """Why the probe returned no number."""


class Governor:
    """Decides when the next round may open. All times are in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._opened = 0.0
        self._free_at = 0.0
        self._paid_until = 0.0
        self._penalty = 0.0
        self._punished_until = 0.0
        self._why = ""

    def opened(self, now: float) -> None:
        """Note that a round opens now."""
        self._opened = now

    def read(self, throttle: Throttle, now: float, rows: int, slowest: float) -> None:
        """Note that the round was read: its number of rows, and the seconds of its slowest select."""
        self._free_at = now + throttle.delay_seconds
        if throttle.rows_per_second is not None:
            self._paid_until = max(self._paid_until, self._opened) + rows / throttle.rows_per_second
        if throttle.max_select_seconds is not None and slowest > throttle.max_select_seconds:
            self._penalty = min(max(PENALTY_SECONDS, 2 * self._penalty), MOST_PENALTY_SECONDS)
            self._punished_until = now + self._penalty
            self._why = f"a select took {slowest:.3g} s, over {throttle.max_select_seconds:g} s"
        else:
            self._penalty = 0.0

    def waits(self, throttle: Throttle, now: float, load: Load) -> str | None:
        """Why no round may open now; None when one may."""
        if throttle.paused:
            return "paused"
        if now < self._free_at and throttle.delay_seconds:
            return f"delay of {throttle.delay_seconds:g} s"
        if now < self._paid_until and throttle.rows_per_second is not None:
            return f"limit of {throttle.rows_per_second:g} rows per second"
        if now < self._punished_until and throttle.max_select_seconds is not None:
            return self._why
        if throttle.max_lag_seconds is not None and (load.lag_seconds or 0.0) > throttle.max_lag_seconds:
            return f"lag of {load.lag_seconds:.3g} s is over {throttle.max_lag_seconds:g} s"
        if throttle.probe is not None and throttle.probe_max is not None:
            if load.trouble is not None:
                return f"the probe failed: {load.trouble}"
            if load.probe is not None and load.probe > throttle.probe_max:
                return f"probe returns {load.probe:g}, over {throttle.probe_max:g}"
        return None
