"""Are the packages there that the HTTP API needs? Asked before the modules are imported that use them."""

from __future__ import annotations

import importlib.util

from dblog.errors import ConfigError


def check_installed() -> None:
    """Raise ConfigError unless the extra `http` is installed."""
    if any(importlib.util.find_spec(package) is None for package in ("fastapi", "uvicorn")):
        raise ConfigError("the HTTP API needs packages that are not installed", hint="pip install 'dblog[http]'")
