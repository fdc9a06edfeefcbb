"""Checks that the packages of the HTTP API are installed, before modules that need them are imported."""

from __future__ import annotations

import importlib.util

from dblog.errors import ConfigError


def check_installed() -> None:
    """Raise ConfigError unless the extra `http` is installed."""
    if any(importlib.util.find_spec(package) is None for package in ("fastapi", "uvicorn")):
        raise ConfigError("the HTTP API needs packages that are not installed", hint="pip install 'dblog[http]'")
