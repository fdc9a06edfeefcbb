"""Values of a pipeline's file that come from the environment or from another file.

"${HOME}/lake"              the variable's value; an error shows the text as it is in the file
{ env = "SHOP_PASSWORD" }   a secret; shown as ***
{ file = "/run/secrets/x" } a secret; the text of the file without the line's end
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dblog.core.masking import HIDDEN, without_secrets
from dblog.errors import ConfigError

_VARIABLE = re.compile(r"\$(\$?)\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Secret(str):
    """A text whose `repr` is ***."""

    def __repr__(self) -> str:
        return repr(HIDDEN)


class Filled(str):
    """A text in which environment variables were replaced; its `repr` is the text in the file."""

    written: str

    def __repr__(self) -> str:
        return repr(self.written)


def filled(key: str, value: Any, folder: Path, *, secret: bool, table: bool = False) -> Any:
    """Return a value of the file with environment variables and secrets filled in. Raises ConfigError with the key and
    the missing variable or file.

    A `secret` is never shown, and can be written as { env = ... } or { file = ... }. If the setting is a `table`, each
    of its entries can be."""
    if isinstance(value, str):
        return _text(key, value, secret=secret)
    if isinstance(value, list):
        return [filled(key, item, folder, secret=secret) for item in value]
    if isinstance(value, dict):
        if secret and not table and set(value) in ({"env"}, {"file"}):
            return _secret(key, value, folder)
        return {name: filled(f"{key}.{name}", item, folder, secret=secret) for name, item in value.items()}
    return value


def _text(key: str, text: str, *, secret: bool) -> str:
    """Replace each `${NAME}`; `$${NAME}` stands for the text `${NAME}` itself."""

    def variable(match: re.Match[str]) -> str:
        escaped, name = match.groups()
        if escaped:
            return match[0][1:]
        if name not in os.environ:
            raise ConfigError(
                f"{key} names the environment variable {name!r}, which is not set",
                hint=f"set it, or write $${{{name}}} for the text itself",
            )
        return os.environ[name]

    result = _VARIABLE.sub(variable, text)
    if secret:
        return Secret(result)
    if result == text:
        return text
    found = Filled(result)
    found.written = text
    return found


def _secret(key: str, given: dict[str, Any], folder: Path) -> Secret:
    ((kind, name),) = given.items()
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{key}.{kind} has the value {name!r}", hint="write a name as a text")
    if kind == "env":
        value = os.environ.get(name)
        if not value:
            raise ConfigError(f"{key} is in the environment variable {name!r}, which is not set", hint="set it")
        return Secret(value)
    path = folder / Path(name).expanduser()
    try:
        value = path.read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"{key} is in the file {str(path)!r}, which cannot be read: {why}", hint="check it") from None
    if not value:
        raise ConfigError(f"{key} is in the file {str(path)!r}, which is empty", hint="write the secret into it")
    return Secret(value)


def with_password(url: str, password: str) -> Secret:
    """Put the password into the URL. Raises ConfigError if the URL has no user, or has a password already."""
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if not at or not user:
        raise ConfigError(
            "source.password is set, but source.url has no user", hint="write postgresql://user@host/database"
        )
    if ":" in user:
        raise ConfigError("both source.url and source.password have a password", hint="leave out one of the two")
    return Secret(f"{scheme}://{user}:{quote(password, safe='')}@{host}{slash}{path}")


def hiding(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that masks these secrets in a text."""
    known = tuple(secrets)
    return lambda text: without_secrets(text, known)
