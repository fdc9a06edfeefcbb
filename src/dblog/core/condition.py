"""Checks of SQL that users write: the condition of a dump and the probe.

Such a text runs inside parentheses in a statement of ours, in a read-only transaction. The checks refuse everything
that could end the parentheses, the statement or the transaction.
"""

from __future__ import annotations

import re

from dblog.errors import ConfigError

_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|--|/\*|\*/|.""", re.DOTALL)
_LIMITS = "no ; $ \\ or comments outside of quotes"


def check_condition(text: str) -> None:
    """Raise ConfigError unless the text stays inside parentheses that are put around it. The database decides whether
    it is valid SQL."""
    _check(text, "condition", f"write one expression like customer_id = 7 AND state <> 'done'; {_LIMITS}")


def probe_statement(text: str) -> str:
    """The statement that runs a probe. Raises ConfigError.

    The probe is a subquery: it can neither end its transaction nor change the mode of it, and the server refuses
    subqueries that change rows or write files."""
    query = text.strip().removesuffix(";")
    _check(query, "probe", f"write one query like SELECT count(*) FROM jobs WHERE state = 'new'; {_LIMITS}")
    return f"select * from ({query}) as probe"


def _check(text: str, what: str, hint: str) -> None:
    depth = 0
    if "\\" in text or "\0" in text:  # a backslash may escape a quote, depending on the server
        raise ConfigError(f"the {what} {text!r} contains a backslash", hint=hint)
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in ("--", "/*", "*/", ";", "$", "'", '"', "`"):
            raise ConfigError(f"the {what} {text!r} contains {token} outside of quotes", hint=hint)
        if token == "#" and "\n" in text[found.end() :]:  # an operator of PostgreSQL, a comment of MySQL
            raise ConfigError(f"the {what} {text!r} contains # before the end of a line", hint="write it in one line")
        depth += (token == "(") - (token == ")")
        if depth < 0:
            break
    if depth or not text.strip():
        raise ConfigError(f"the {what} {text!r} is empty, or its parentheses do not match", hint=hint)
