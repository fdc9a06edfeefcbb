"""Settings: one way to declare, read and check what users set.

The options of the Spark source, the throttle, the settings of sinks and those of a pipeline's file are all declared as
`Setting`s. A setting has a `Kind`, which reads its value as TOML or JSON have it (`read`) or from text (`parse`), as
Spark options and the command line have it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dblog.errors import ConfigError

_MISSING: Any = object()
_SIZE = re.compile(r"(\d+)\s*([kmg]?)b?")
_FLAGS = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}


@dataclass(frozen=True)
class Kind:
    """The allowed values of a setting."""

    takes: str
    """The allowed values in words, to follow "allowed:"."""
    read: Callable[[Any], Any]
    """Returns the checked value; raises ValueError or TypeError."""
    from_text: Callable[[str], Any] | None = None
    """Likewise for a text; None if `read` takes texts."""
    table: bool = False
    """Whether the value is a table of the file. Then { file = "x" } is an entry of it, not a secret."""
    absent: str | None = None
    """The word for having no value, like auto or none."""
    bounds: tuple[float, float] | None = None
    """The least and the greatest number."""

    def parse(self, given: str) -> Any:
        """The value that a text stands for; raises ValueError or TypeError."""
        return self.read(given) if self.from_text is None else self.from_text(given)


@dataclass(frozen=True)
class Setting:
    """One setting: its name, its effect, its allowed values and its default."""

    name: str
    about: str
    kind: Kind
    default: Any = _MISSING
    """The value if it is not given. A setting without a default must be given."""
    secret: bool = False
    """Whether the value is a secret: it is never shown, and may be { env = "NAME" } or { file = "/path" }."""
    computed: str | None = None
    """The default in words, where it is computed from other settings."""

    @property
    def required(self) -> bool:
        return self.default is _MISSING

    @property
    def takes(self) -> str:
        return self.kind.takes

    @property
    def shown_default(self) -> str:
        """The default as the documentation and `dblog set` show it."""
        if self.computed is not None or self.required:
            return self.computed or ""
        return self.shown(self.default)

    def shown(self, value: Any) -> str:
        """A value as a user would write it."""
        if value is None:
            return self.kind.absent or ""
        if isinstance(value, bool):
            return str(value).lower()
        return f"{value:g}" if isinstance(value, float) else str(value)


# -- kinds -------------------------------------------------------------------------------------------------------------


def text(takes: str = "a text") -> Kind:
    return Kind(takes, _text)


def matching(pattern: str, takes: str) -> Kind:
    """A text that a regular expression matches as a whole."""

    def read(value: Any) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError
        return str(value)

    return Kind(takes, read)


def choice(*allowed: str) -> Kind:
    """One of a few words. In a text, upper case does not matter."""

    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError
        return str(value)

    return Kind(" or ".join(allowed), read, lambda given: read(given.lower()))


def number(least: float, most: float, takes: str | None = None) -> Kind:
    """A number between two bounds; a whole number if the bounds are whole."""
    whole = isinstance(least, int) and isinstance(most, int)

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise TypeError
        if not least <= value <= most:
            raise ValueError
        return value if whole else float(value)

    def parse(given: str) -> float:
        if whole and not re.fullmatch(r"\s*[+-]?[0-9]+\s*", given):
            raise ValueError
        return read(int(given) if whole else float(given))

    what = f"a {'whole ' if whole else ''}number from {_plain(least)} to {_plain(most)}"
    return Kind(takes or what, read, parse, bounds=(least, most))


def size() -> Kind:
    """A number of bytes."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise TypeError
        found = _SIZE.fullmatch(str(value).strip().lower())
        if found is None or int(found[1]) == 0:
            raise ValueError
        return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]

    return Kind("a size like 64m, 1g or a number of bytes", read)


def flag() -> Kind:
    def read(value: Any) -> bool:
        if not isinstance(value, bool):
            raise TypeError
        return value

    def parse(given: str) -> bool:
        if (word := given.strip().lower()) not in _FLAGS:
            raise ValueError
        return _FLAGS[word]

    return Kind("true or false", read, parse)


def texts(takes: str = "a list of texts") -> Kind:
    """A list of texts. As a text, they are separated by commas."""

    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise TypeError
        return tuple(_text(item) for item in value)

    return Kind(takes, read, lambda given: read([item.strip() for item in given.split(",")]))


def mapping(takes: str = "a table of texts") -> Kind:
    def read(value: Any) -> dict[str, str]:
        if not isinstance(value, dict):
            raise TypeError
        return {name: _text(item) for name, item in value.items()}

    return Kind(takes, read, table=True)


def optional(kind: Kind, absent: str = "none") -> Kind:
    """A kind that also takes a word for having no value."""

    def read(value: Any) -> Any:
        return None if value == absent else kind.read(value)

    def parse(given: str) -> Any:
        return None if given.strip().lower() == absent else kind.parse(given)

    return Kind(f"{absent} or {kind.takes}", read, parse, kind.table, absent, kind.bounds)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not value:
        raise ValueError
    return value


def _plain(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() else str(bound)


# -- reading -----------------------------------------------------------------------------------------------------------


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
        if setting.name not in given:
            if setting.required:
                what = f"{where} needs the setting {setting.name!r}: {setting.about}"
                problems.append(ConfigError(what, hint=f"allowed: {setting.takes}"))
            else:
                values[setting.name] = setting.default
            continue
        try:
            values[setting.name] = setting.kind.read(given[setting.name])
        except (ValueError, TypeError):
            problems.append(wrong_value(f"setting {f'{where}.{setting.name}'!r}", setting, given[setting.name]))
    return values, problems


def wrong_value(what: str, setting: Setting, value: Any) -> ConfigError:
    """The error for a value that a setting does not take."""
    shown = "a value that is not shown" if setting.secret else f"the value {value!r}"
    return ConfigError(f"{what} has {shown}", hint=f"allowed: {setting.takes}")


def nearest(name: str, known: Sequence[str]) -> str:
    """The start of a hint: the known name that was probably meant."""
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}? " if close else ""
