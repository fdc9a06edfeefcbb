"""Table names as users write them: `orders`, `sales.orders`, `"odd.schema"."odd table"`, and patterns of them.

A pattern may use `*`, `?` and `[...]` in each part. With `!` before it, it excludes the matching tables. Inside double
quotes everything is literal, and a quote is doubled.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dblog.core.schema import TableName
from dblog.errors import ConfigError

MOST_NAMES = 12
"""How many tables a message names."""

_TOKEN = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")*)"|(?P<plain>[^\s".,!]+)|(?P<mark>[.,!]))')


@dataclass(frozen=True)
class Pattern:
    """One entry of a list of tables. The parts are regular expressions."""

    text: str
    schema: str
    name: str
    exclude: bool = False
    literal: TableName | None = None
    """The one table it names, when it has no wildcard."""

    def matches(self, table: TableName) -> bool:
        return bool(re.fullmatch(self.schema, table.schema) and re.fullmatch(self.name, table.name))


def parse_patterns(text: str, option: str = "tables", *, default_schema: str = "public") -> tuple[Pattern, ...]:
    """The entries of a comma-separated list. Raises ConfigError with the name of the option."""
    entries: list[list[tuple[str, bool]]] = [[]]
    excluded = [False]
    expects_part, at = True, 0
    text_left = text.rstrip()
    while at < len(text_left):
        token = _TOKEN.match(text_left, at)
        if token is None:
            raise _bad(option, text, f"cannot be read from {text_left[at:]!r} on")
        at = token.end()
        mark = token["mark"]
        if mark is None:
            if not expects_part:
                raise _bad(option, text, "has two names without a dot or comma between them")
            quoted = token["quoted"] is not None
            entries[-1].append((token["quoted"].replace('""', '"') if quoted else token["plain"], quoted))
            expects_part = False
        elif mark == "!" and not entries[-1] and expects_part:
            excluded[-1] = True
        elif mark == "." and not expects_part:
            expects_part = True
        elif mark == "," and not expects_part:
            entries.append([])
            excluded.append(False)
            expects_part = True
        else:
            raise _bad(option, text, f"has a {mark!r} where a name is expected")
    if expects_part:
        raise _bad(option, text, "is empty or ends in the middle of a name")
    return tuple(_pattern(e, x, option, text, default_schema) for e, x in zip(entries, excluded, strict=True))


def qualified(text: str, schema: str) -> str:
    """A list of patterns with `schema` added to every name without a schema; other names are unchanged. Takes only text
    that `parse_patterns` has accepted."""
    names: list[list[int]] = [[]]
    for token in _TOKEN.finditer(text.rstrip()):
        if token["mark"] == ",":
            names.append([])
        elif token["mark"] is None:
            names[-1].append(token.start("plain") if token["quoted"] is None else token.start("quoted") - 1)
    prefix = schema if re.fullmatch(r"[^\s\".,!*?\[]+", schema) else '"' + schema.replace('"', '""') + '"'
    for alone in reversed([at[0] for at in names if len(at) == 1]):
        text = f"{text[:alone]}{prefix}.{text[alone:]}"
    return text


def parse_table(text: str, option: str = "table", *, default_schema: str = "public") -> TableName:
    """One table's name. Raises ConfigError with the name of the option."""
    patterns = parse_patterns(text, option, default_schema=default_schema)
    if len(patterns) != 1 or patterns[0].exclude or patterns[0].literal is None:
        raise _bad(option, text, "must name exactly one table, without wildcards; for several use the option tables")
    return patterns[0].literal


def select_tables(patterns: Iterable[Pattern], tables: Iterable[TableName]) -> tuple[TableName, ...]:
    """The tables that some pattern includes and none excludes, sorted."""
    patterns = tuple(patterns)
    wanted = [
        t
        for t in tables
        if any(p.matches(t) for p in patterns if not p.exclude) and not any(p.matches(t) for p in patterns if p.exclude)
    ]
    return tuple(sorted(wanted))


def named_tables(patterns: Iterable[Pattern]) -> frozenset[TableName]:
    """The tables that are named without wildcards, whether they exist or not."""
    return frozenset(p.literal for p in patterns if p.literal is not None and not p.exclude)


def shortened(names: Sequence[str], most: int | None = MOST_NAMES) -> str:
    """A list of names for people: the first ones and how many more there are."""
    if most is None or len(names) <= most + 1:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def _pattern(parts: list[tuple[str, bool]], exclude: bool, option: str, text: str, default_schema: str) -> Pattern:
    if len(parts) > 2:
        raise _bad(option, text, "has a name of more than two parts (schema.table); quote a part that contains a dot")
    schema, name = parts if len(parts) == 2 else ((default_schema, True), parts[0])
    wild = any(not quoted and re.search(r"[*?\[]", part) for part, quoted in (schema, name))
    literal = None if wild else TableName(schema[0], name[0])
    return Pattern(text, _regex(*schema), _regex(*name), exclude, literal)


def _regex(part: str, quoted: bool) -> str:
    return re.escape(part) if quoted else fnmatch.translate(part)


def _bad(option: str, text: str, why: str) -> ConfigError:
    return ConfigError(
        f"option {option!r} with the value {text!r} {why}",
        hint='write e.g. public.orders, or for tables: public.*, !public.tmp_*; quote odd names: "My Schema"."a.b"',
    )
