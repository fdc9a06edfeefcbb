"""Settings of sinks in a pipeline's file: how they are declared and checked."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dblog.errors import ConfigError

_MISSING: Any = object()


@dataclass(frozen=True)
class Setting:
    """One setting: its name, its effect, and its allowed values."""

    name: str
    about: str
    kind: Kind
    default: Any = _MISSING
    """The value if it is not given. A setting without a default must be given."""
    secret: bool = False
    """Whether the value is a secret: it is never shown, and may be { env = "NAME" } or { file = "/path" }."""

    @property
    def required(self) -> bool:
        return self.default is _MISSING


@dataclass(frozen=True)
class Kind:
    """The allowed values of a setting."""

    takes: str
    """The allowed values in words, to follow "allowed is"."""
    read: Callable[[Any], Any]
    """Returns the checked value; raises ValueError or TypeError."""
    table: bool = False
    """Whether the value is a table of the file. Then { file = "x" } is an entry of it, not a secret."""


def text(takes: str = "a text") -> Kind:
    return Kind(takes, _text)


def choice(*allowed: str) -> Kind:
    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError
        return str(value)

    return Kind(" or ".join(allowed), read)


def number(least: float, most: float) -> Kind:
    """A number between two bounds; a whole number if the bounds are whole."""
    whole = isinstance(least, int) and isinstance(most, int)

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise TypeError
        if not least <= value <= most:
            raise ValueError
        return value

    return Kind(f"a {'whole ' if whole else ''}number from {least} to {most}", read)


def flag() -> Kind:
    def read(value: Any) -> bool:
        if not isinstance(value, bool):
            raise TypeError
        return value

    return Kind("true or false", read)


def texts(takes: str = "a list of texts") -> Kind:
    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise TypeError
        return tuple(_text(item) for item in value)

    return Kind(takes, read)


def mapping(takes: str = "a table of texts") -> Kind:
    def read(value: Any) -> dict[str, str]:
        if not isinstance(value, dict):
            raise TypeError
        return {name: _text(item) for name, item in value.items()}

    return Kind(takes, read, table=True)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not value:
        raise ValueError
    return value


def read_settings(where: str, given: Mapping[str, Any], known: Sequence[Setting]) -> dict[str, Any]:
    """The value of each known setting. Raises ConfigError with the key, the value and the allowed values."""
    values, problems = check_settings(where, given, known)
    if problems:
        raise problems[0]
    return values


def check_settings(
    where: str, given: Mapping[str, Any], known: Sequence[Setting]
) -> tuple[dict[str, Any], list[ConfigError]]:
    """The value of each correct setting, and all problems."""
    names = [s.name for s in known]
    values = {}
    problems = [
        ConfigError(
            f"{where} has no setting {name!r}", hint=nearest(name, names) + "the settings are " + ", ".join(names)
        )
        for name in given
        if name not in names
    ]
    for setting in known:
        key, allowed = f"{where}.{setting.name}", f"allowed is {setting.kind.takes}"
        if setting.name not in given:
            if setting.required:
                problems.append(
                    ConfigError(f"{where} needs the setting {setting.name!r}: {setting.about}", hint=allowed)
                )
            else:
                values[setting.name] = setting.default
            continue
        value = given[setting.name]
        try:
            values[setting.name] = setting.kind.read(value)
        except (ValueError, TypeError):
            shown = "a value that is not shown" if setting.secret else f"the value {value!r}"
            problems.append(ConfigError(f"setting {key!r} has {shown}", hint=allowed))
    return values, problems


def nearest(name: str, known: Sequence[str]) -> str:
    """The start of a hint: the known name that was probably meant."""
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}? " if close else ""


SCHEMA_CHANGES = Setting(
    "schema_changes",
    "what to do when the source has a column, or a type, that the target does not have: evolve changes the target, "
    "ignore leaves the column out, fail stops",
    choice("evolve", "ignore", "fail"),
    default="evolve",
)
"""The setting of every sink whose target has columns."""
