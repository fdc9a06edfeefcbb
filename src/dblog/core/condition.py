"""Conditions that people write for a dump: one expression, and nothing that could leave its parentheses."""

from __future__ import annotations

import re

from dblog.errors import ConfigError

_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|--|/\*|\*/|.""", re.DOTALL)
_HINT = "write one expression like customer_id = 7 AND state <> 'done'; no ; $ \\ or comments outside of quotes"


def check_condition(text: str) -> None:
    """Raise ConfigError unless the text stays within parentheses that are put around it. Whether it means anything
    is for the database to say."""
    depth = 0
    if "\\" in text or "\0" in text:  # a backslash may escape a quote, depending on the server
        raise ConfigError(f"the condition {text!r} contains a backslash", hint=_HINT)
    for token in _TOKEN.findall(text):
        if token in ("--", "/*", "*/", ";", "$", "'", '"', "`"):
            raise ConfigError(f"the condition {text!r} contains {token} outside of quotes", hint=_HINT)
        depth += (token == "(") - (token == ")")
        if depth < 0:
            break
    if depth or not text.strip():
        raise ConfigError(f"the condition {text!r} is not one expression", hint=_HINT)
