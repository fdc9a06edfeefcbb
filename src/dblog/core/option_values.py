"""The options of a stream as users write them: texts, read by the kinds of `core.settings`. An error names the option,
the value and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dblog.core.settings import Kind, Setting, choice, number, size
from dblog.errors import ConfigError


class OptionValues:
    """The values of a stream's options, by their names in lower case. `known` declares the options of dblog's own."""

    def __init__(self, values: Mapping[str, str], known: Sequence[Setting] = ()) -> None:
        self.values = values
        self._known = {setting.name: setting for setting in known}

    def read(self, name: str) -> Any:
        """The value of a declared option, or its default. Raises ConfigError."""
        setting = self._known[name]
        if setting.required and name.lower() not in self.values:
            raise ConfigError(f"option {name!r} is missing", hint=f'add .option("{name}", "{setting.takes}")')
        return self._read(name, setting.kind, setting.default)

    def choice(self, name: str, allowed: Sequence[str]) -> Any:
        """One of the allowed words, in lower case; the first when the option is not given. Raises ConfigError."""
        return self._read(name, choice(*allowed), allowed[0])

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """A whole number from `least` to `most`. Raises ConfigError."""
        found: int | None = self._read(name, number(least, most), default)
        if found is None:
            raise bad_value(name, "", number(least, most).takes)
        return found

    def size(self, name: str, default: int) -> int:
        """A number of bytes. Raises ConfigError."""
        found: int = self._read(name, size(), default)
        return found

    def _read(self, name: str, kind: Kind, default: Any) -> Any:
        given = self.values.get(name.lower())
        if given is None:
            return default
        try:
            return kind.parse(given)
        except (ValueError, TypeError):
            raise bad_value(name, given, kind.takes) from None


def bad_value(name: str, value: str, allowed: str) -> ConfigError:
    return ConfigError(f"option {name!r} has the value {value!r}", hint=f"allowed is {allowed}")
