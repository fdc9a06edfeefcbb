"""Hints that name a setting, as the user would write it.

A hint of the engine names an option as a Spark program does: `.option("decimals", "string")`. A pipeline's file and the
flags of `dblog` write the same setting in another way. These functions translate; nothing else does.
"""

from __future__ import annotations

import json
import re
import shlex

_OPTION = re.compile(r"""\.option\("(?P<name>\w+)", (?:"(?P<plain>[^"]*)"|'(?P<quoted>[^']*)')\)""")
_OF_SOURCE = {"url", "tables", "dump", "watermark", "unsuitable"}
"""Options that are settings of [source] in a file themselves."""
_FLAGS = {"url", "tables"}
"""Options that are flags of their own."""


def in_file(hint: str) -> str:
    """The hint for a user of a pipeline's file."""
    return _OPTION.sub(lambda found: _setting(found["name"], _value(found)), hint)


def as_flags(hint: str) -> str:
    """The hint for a user of the command line."""
    return _OPTION.sub(lambda found: _flag(found["name"], _value(found)), hint)


def _value(found: re.Match[str]) -> str:
    return found["plain"] if found["quoted"] is None else found["quoted"]


def _setting(name: str, value: str) -> str:
    if name == "values" and value.startswith("{"):
        return ", ".join(_of_table(table, rules) for table, rules in json.loads(value).items())
    if name == "table":
        return f"tables = [{_text(value)}] in [source]"
    if name in _OF_SOURCE or name == "values":
        return f"{name} = {_text(value)} in [source]"
    return f"options = {{ {name} = {_text(value)} }} in [source]"


def _of_table(table: str, rules: str | dict[str, str]) -> str:
    """The rules of a table, in its entry of the file."""
    columns = (f"{_key(column)} = {_text(rule)}" for column, rule in rules.items()) if isinstance(rules, dict) else ()
    shown = _text(rules) if isinstance(rules, str) else f"{{ {', '.join(columns)} }}"
    return f"values = {shown} in a [[table]] with match = {_text(table)}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _flag(name: str, value: str) -> str:
    return f"--{name} {shlex.quote(value)}" if name in _FLAGS else f"--option {shlex.quote(f'{name}={value}')}"
