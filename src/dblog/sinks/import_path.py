"""Users' own functions and classes, by their import path `package.module:name`."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dblog.errors import ConfigError

FORM = "package.module:name"


@dataclass(frozen=True)
class Imported:
    """A function or class that is imported when it is called, so that it can be sent to a Spark task. Modules are
    searched on Python's path and in `folder`."""

    path: str
    folder: Path

    def find(self) -> Any:
        """Import and return it. Raises ConfigError if it does not exist or cannot be called."""
        return _find(self.path, self.folder)

    def __call__(self, *arguments: Any) -> Any:
        return self.find()(*arguments)


@cache
def _find(path: str, folder: Path) -> Any:
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ConfigError(f"{path!r} is not an import path", hint=f"write it as {FORM}")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ConfigError(
            f"{path!r} cannot be imported: {type(error).__name__}: {error}",
            hint=f"install it for {sys.executable}, put it on the PYTHONPATH, or into {str(folder)!r}",
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{path!r} cannot be imported: {module!r} has no {name!r}", hint=f"write it as {FORM}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{path!r} is {type(found).__name__!r}", hint="a function or a class is needed")
    return found
