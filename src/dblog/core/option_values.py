"""The options of a stream as users write them: texts, read by the kinds of `core.settings`. An error names the option,
the value and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dblog.core.settings import Kind, Setting
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
        return self.value(name, setting.kind, setting.default)

    def value(self, name: str, kind: Kind, default: Any = None) -> Any:
        """The value of an option that a family declares itself, or the default. Raises ConfigError."""
        given = self.values.get(name.lower())
        if given is None:
            return default
        try:
            return kind.parse(given)
        except (ValueError, TypeError):
            raise bad_value(name, given, kind.takes) from None


def bad_value(name: str, value: str, allowed: str) -> ConfigError:
    return ConfigError(f"option {name!r} has the value {value!r}", hint=f"allowed: {allowed}")
