"""What a statement in the log means for the rows of the tables.

The log of a server in row format still has statements: those that define tables and users. Most say nothing about rows,
and rows that follow say how they look. Some take all rows of a table away, or put others in their place, without a row
in the log. Any statement that changes single rows is an error, because which rows it changed is not said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dblog.core.schema import TableName
from dblog.errors import DecodeError


@dataclass(frozen=True)
class Statement:
    """What happens to the rows of whole tables."""

    ends: bool = True
    """It is a transaction of its own, unless it stands in one."""
    emptied: tuple[TableName, ...] = ()
    """These have no rows after it, or other ones."""
    replaced: tuple[TableName, ...] = ()
    """Those of them that have rows after it, which the log does not show."""
    dropped: str | None = None
    """All tables of this database are emptied."""


_DEFINITIONS = re.compile(
    "CREATE|ALTER|DROP|RENAME|GRANT|REVOKE|ANALYZE|OPTIMIZE|REPAIR|CHECK|FLUSH|SET|INSTALL|UNINSTALL"
)
_CHANGES = re.compile("INSERT|UPDATE|DELETE|REPLACE|LOAD|CALL|DO|SELECT|WITH|VALUES|MERGE|EXECUTE")

_BLANK = re.compile(r"(?:\s|/\*M?!\d*|/\*.*?\*/|--(?=\s).*?(?:\n|\Z)|#.*?(?:\n|\Z))*", re.DOTALL)
_STRING = r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\""
_QUOTED = re.compile(rf"{_STRING}|`(?:[^`]|``)*`|/\*(?!M?!).*?\*/", re.DOTALL)
_COMMENT = re.compile(rf"({_STRING}|`(?:[^`]|``)*`)|/\*(?!M?!).*?\*/|--(?=\s)[^\n]*|#[^\n]*", re.DOTALL)
_NAME = r"(`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|(?:[\w$]|[^\x00-\x7f])+)"
_TABLE = rf"{_NAME}(?:\s*\.\s*{_NAME})?"
_IF = r"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"


def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE | re.DOTALL)


_TRUNCATE = _regex(rf"TRUNCATE (?:TABLE )?{_TABLE}")
# The server writes this one itself, for a table in memory that is empty after a restart.
_DELETE_ALL = _regex(rf"DELETE FROM {_TABLE}\s*\Z")
_CREATE_TABLE = _regex(r"CREATE (?:OR REPLACE )?(?:TEMPORARY )?TABLE\b")
_CREATE_AGAIN = _regex(rf"CREATE OR REPLACE TABLE {_TABLE}")
_DROP_TABLES = _regex(rf"DROP TABLES? {_IF}")
_DROP_DATABASE = _regex(rf"DROP (?:DATABASE|SCHEMA) {_IF}{_NAME}")
_RENAME_TABLES = _regex(rf"RENAME TABLES? {_IF}")
_RENAME = _regex(rf"{_TABLE} (?:(?:WAIT \d+|NOWAIT) )?TO {_TABLE}")
_ALTER_TABLE = _regex(rf"ALTER (?:ONLINE )?(?:IGNORE )?TABLE {_IF}{_TABLE}")
_ALTER_RENAME = _regex(r"\bRENAME\b(?! (?:COLUMN|INDEX|KEY)\b)")
_NEW_NAME = _regex(rf"\s*(?:(?:TO|AS) |=\s*)?{_TABLE}")
# Rows go or come with a partition or a file.
_ALTER_ROWS = _regex(
    r"\b(?:(?:TRUNCATE|DROP|EXCHANGE) PARTITION|CONVERT (?:PARTITION|TABLE)"
    r"|(?:DISCARD|IMPORT) (?:PARTITION|TABLESPACE))\b"
)
_SET_STATEMENT = _regex(r"SET STATEMENT\b.*?\bFOR\b")

# Tools that alter a table by filling another one from the same rows, and then exchange the two: the rows stay the same.
_COPIES = {
    "gh-ost": (r"_{0}_gho", r"_{0}(_\d+)?_del"),
    "pt-online-schema-change, spirit": (r"_+{0}_new", r"_+{0}_old(_\d+)?"),
    "lhm": (r"lhmn_{0}", r"lhma_[\d_]+_{0}"),
}


def read_statement(text: str, schema: str) -> Statement:
    """The effect of a statement that was run with `schema` as the default. Raises DecodeError for one that changes
    rows, and for one that is not known."""
    text = _COMMENT.sub(lambda found: found[1] or " " * len(found[0]), text)
    text = text[_BLANK.match(text).end() :]  # type: ignore[union-attr]  # it matches always, if only nothing
    # What is quoted is no keyword; the rest stays where it is.
    bare = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), text)
    prefixed = _SET_STATEMENT.match(bare)
    if prefixed:
        return read_statement(text[prefixed.end() :], schema)
    word = re.match(r"\w*", bare)[0].upper()  # type: ignore[index]
    if emptied := _TRUNCATE.match(text) or _DELETE_ALL.match(text):
        return Statement(emptied=(_table(emptied, schema),))
    if word in ("SAVEPOINT", "RELEASE"):
        return Statement(ends=False)
    if word == "XA":
        raise DecodeError("the log has an XA transaction", hint="XA transactions are not supported")
    if word == "ROLLBACK":
        raise DecodeError(
            "the log has changes that were rolled back",
            hint="a transaction changed a table of an engine without transactions, MyISAM say: convert it, dump again",
        )
    selects = _CREATE_TABLE.match(bare) and re.search(r"\bSELECT\b", bare, re.IGNORECASE)
    if _CHANGES.fullmatch(word) or selects:
        raise DecodeError(
            f"the log has a statement ({word}, in database {schema!r}) instead of the rows that it changed",
            hint="set global binlog_format = ROW, let no session set another format, and start with a new dump",
        )
    if not _DEFINITIONS.fullmatch(word):
        raise DecodeError(f"the log has a statement that is not known: {word!r} in database {schema!r}")
    return _definition(text, bare, schema)


def _definition(text: str, bare: str, schema: str) -> Statement:
    if again := _CREATE_AGAIN.match(text):
        return Statement(emptied=(_table(again, schema),))
    if drop := _DROP_TABLES.match(text):
        return Statement(emptied=tuple(_table(found, schema) for found in _listed(text, drop.end(), _regex(_TABLE))))
    if gone := _DROP_DATABASE.match(text):
        return Statement(dropped=_unquoted(gone[1]))
    if rename := _RENAME_TABLES.match(text):
        pairs = _listed(text, rename.end(), _RENAME)
        return _renamed([(_table(p, schema), _table(p, schema, 2)) for p in pairs])
    if alter := _ALTER_TABLE.match(text):
        table = _table(alter, schema)
        if _ALTER_ROWS.search(bare, alter.end()):
            return Statement(emptied=(table,), replaced=(table,))
        named = _ALTER_RENAME.search(bare, alter.end())
        if named and (new := _NEW_NAME.match(text, named.end())):
            return _renamed([(table, _table(new, schema))])
    return Statement()


def _listed(text: str, at: int, item: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """The items of a list that is separated by commas."""
    while found := item.match(text, at):
        yield found
        comma = re.compile(r"\s*,\s*").match(text, found.end())
        if comma is None:
            return
        at = comma.end()


def _renamed(pairs: list[tuple[TableName, TableName]]) -> Statement:
    """Tables get other names, one after the other."""
    original: dict[TableName, TableName] = {}
    """Which table it was at first that has a name now."""
    for old, new in pairs:
        original[new] = original.pop(old, old)
    moved = {was: now for now, was in original.items() if now != was}
    arrived = {now: was for was, now in moved.items()}
    copied = {t for t, was in arrived.items() if t in moved and _is_copy(t, was, moved[t])}
    emptied = (set(moved) | set(arrived)) - copied
    return Statement(emptied=tuple(sorted(emptied)), replaced=tuple(sorted(set(arrived) - copied)))


def _is_copy(table: TableName, was: TableName, now: TableName) -> bool:
    """Whether the table that has taken the place of another is an altered copy of it."""
    name = re.escape(table.name)
    return table.schema == was.schema == now.schema and any(
        re.fullmatch(copy.format(name), was.name) and re.fullmatch(old.format(name), now.name)
        for copy, old in _COPIES.values()
    )


def _table(found: re.Match[str], schema: str, number: int = 1) -> TableName:
    """The first or second table that a match has found."""
    first, second = (_unquoted(name) for name in found.groups()[2 * number - 2 : 2 * number])
    return TableName(first, second) if second else TableName(schema, first)


def _unquoted(name: str | None) -> str:
    if not name or name[0] not in '`"':
        return name or ""
    return name[1:-1].replace(name[0] * 2, name[0])
