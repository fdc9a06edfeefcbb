"""Single values of options as users write them, checked. An error names the option, the value and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dblog.errors import ConfigError


class OptionValues:
    """The values of a stream's options, by their names in lower case."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values

    def choice(self, name: str, allowed: Sequence[str]) -> Any:
        """One of the allowed words, in lower case; the first when the option is not given. Raises ConfigError."""
        value = self.values.get(name.lower(), allowed[0])
        if value.lower() not in allowed:
            raise bad_value(name, value, " or ".join(allowed))
        return value.lower()

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """A whole number from `least` to `most`. Raises ConfigError."""
        value = self.values.get(name.lower())
        if value is None and default is not None:
            return default
        if value is None or not re.fullmatch(r"\d+", value.strip()) or not least <= int(value) <= most:
            raise bad_value(name, value or "", f"a whole number from {least} to {most}")
        return int(value)

    def size(self, name: str, default: int) -> int:
        """A number of bytes. Raises ConfigError."""
        value = self.values.get(name.lower())
        if value is None:
            return default
        match = re.fullmatch(r"(\d+)\s*([kmg]?)b?", value.strip().lower())
        if match is None or int(match[1]) == 0:
            raise bad_value(name, value, "a size like 64m, 1g or a number of bytes")
        return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


def bad_value(name: str, value: str, allowed: str) -> ConfigError:
    return ConfigError(f"option {name!r} has the value {value!r}", hint=f"allowed is {allowed}")
