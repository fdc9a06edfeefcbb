"""What a statement in the log means for the rows of the tables.

The log of a server in row format still has statements: those that define tables and users. Any statement that changes
rows is an error, because which rows it changed is not said.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from dblog.core.schema import TableName
from dblog.errors import DecodeError


class Effect(Enum):
    none = "none"
    """It says something about its transaction that does not matter to us."""
    definition = "definition"
    """It defines something; rows that follow say how they look."""
    truncate = "truncate"
    """Every row of a table is gone."""


@dataclass(frozen=True)
class Statement:
    effect: Effect
    table: TableName | None = None


_DEFINITIONS = re.compile(
    "CREATE|ALTER|DROP|RENAME|GRANT|REVOKE|ANALYZE|OPTIMIZE|REPAIR|CHECK|FLUSH|SET|INSTALL|UNINSTALL"
)
_CHANGES = re.compile("INSERT|UPDATE|DELETE|REPLACE|LOAD|CALL|DO|SELECT|WITH|VALUES|MERGE|EXECUTE")

_BLANK = re.compile(r"(?:\s|/\*M?!\d*|/\*.*?\*/|--(?=\s).*?(?:\n|\Z)|#.*?(?:\n|\Z))*", re.DOTALL)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`(?:[^`]|``)*`|/\*(?!M?!).*?\*/", re.DOTALL)
_NAME = r"(`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[\w$\x80-\U0010ffff]+)"
_TABLE = rf"{_NAME}(?:\s*\.\s*{_NAME})?"
_TRUNCATE = re.compile(rf"TRUNCATE\s+(?:TABLE\s+)?{_TABLE}", re.IGNORECASE)
# The server writes this one itself, for a table in memory that is empty after a restart.
_DELETE_ALL = re.compile(rf"DELETE\s+FROM\s+{_TABLE}\s*(?:/\*.*)?\Z", re.IGNORECASE | re.DOTALL)
_CREATE_TABLE = re.compile(r"CREATE\s+(?:OR\s+REPLACE\s+)?(?:TEMPORARY\s+)?TABLE\b", re.IGNORECASE)
_SET_STATEMENT = re.compile(r"SET\s+STATEMENT\b.*?\bFOR\b", re.IGNORECASE | re.DOTALL)


def read_statement(text: str, schema: str) -> Statement:
    """The effect of a statement that was run with `schema` as the default. Raises DecodeError for one that changes
    rows, and for one that is not known."""
    text = text[_BLANK.match(text).end() :]  # type: ignore[union-attr]  # it matches always, if only nothing
    # What is quoted is no keyword; the rest stays where it is.
    bare = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), text)
    prefixed = _SET_STATEMENT.match(bare)
    if prefixed:
        return read_statement(text[prefixed.end() :], schema)
    word = re.match(r"\w*", bare)[0].upper()  # type: ignore[index]
    emptied = _TRUNCATE.match(text) or _DELETE_ALL.match(text)
    if emptied:
        first, second = (_unquoted(name) for name in emptied.groups())
        return Statement(Effect.truncate, TableName(first, second) if second else TableName(schema, first))
    if word in ("SAVEPOINT", "RELEASE"):
        return Statement(Effect.none)
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
    return Statement(Effect.definition)


def _unquoted(name: str | None) -> str:
    if not name or name[0] not in '`"':
        return name or ""
    return name[1:-1].replace(name[0] * 2, name[0])
