"""The effect of statements in the log on the rows of tables.

In row format the log still has statements: those that define tables and users. Most have no effect on rows. Some remove
all rows of a table, or replace them by others, without row events: after a rename, the table of a name has other rows
than the one that had the name before. A statement that changes single rows is an error, because the log does not say
which rows it changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dblog.core.schema import TableName
from dblog.errors import DecodeError
from dblog.sources.mysql.xa import written


@dataclass(frozen=True)
class Definition:
    """A table that a statement creates or changes, and properties because of which it cannot be followed."""

    table: TableName
    cascades: bool = False
    """Whether a foreign key changes its rows."""
    versioned: bool = False
    """Whether it becomes system-versioned."""
    engine: str | None = None
    """Its engine, if that has no transactions."""
    arrives: bool = False
    """Whether it is new under its name, so that nothing is known about it."""
    mends: bool = False
    """Whether one of its foreign keys is dropped or its engine changes. Before that it may have been unfit to be
    followed."""
    unbinds: bool = False
    """Whether one of its foreign keys or other constraints is dropped."""


@dataclass(frozen=True)
class Statement:
    """The effect of a statement on transactions and on the rows of whole tables."""

    ends: bool = True
    """Whether it is a transaction by itself, if no transaction is open."""
    begins: bool = False
    """Whether it begins a transaction of several statements."""
    closes: bool = False
    """Whether it ends the open transaction."""
    undoes: bool = False
    """Whether it rolls back the open transaction or a part of it."""
    xa: str | None = None
    """The prepared XA transaction that it commits or rolls back."""
    commits: bool = False
    """Whether it commits that XA transaction."""
    emptied: tuple[TableName, ...] = ()
    """Tables that have no rows or other rows after it."""
    replaced: tuple[TableName, ...] = ()
    """The tables of `emptied` that have rows after it. The log does not show these rows."""
    dropped: str | None = None
    """The database whose tables are all emptied."""
    defined: tuple[Definition, ...] = ()
    """The tables that it creates, changes or renames."""

    def lowered(self) -> Statement:
        """The same with names in lower case, for a server that stores them so: the text of a statement may have
        capitals."""
        return replace(
            self,
            emptied=tuple(map(_lowered, self.emptied)),
            replaced=tuple(map(_lowered, self.replaced)),
            dropped=self.dropped and self.dropped.lower(),
            defined=tuple(replace(d, table=_lowered(d.table)) for d in self.defined),
        )


_DEFINITIONS = re.compile(
    "CREATE|ALTER|DROP|RENAME|GRANT|REVOKE|ANALYZE|OPTIMIZE|REPAIR|CHECK|FLUSH|SET|INSTALL|UNINSTALL"
)
_CHANGES = re.compile("INSERT|UPDATE|DELETE|REPLACE|LOAD|CALL|DO|SELECT|WITH|VALUES|MERGE|EXECUTE")

_BLANK = re.compile(r"(?:\s|/\*M?!\d*|/\*.*?\*/|--(?=\s).*?(?:\n|\Z)|#.*?(?:\n|\Z))*", re.DOTALL)
_STRING = r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\""
_QUOTED = re.compile(rf"{_STRING}|`(?:[^`]|``)*`", re.DOTALL)
# The content of /*!50000 such a comment */ is executed, so only its start and end are comments.
_COMMENT = re.compile(rf"({_QUOTED.pattern})|/\*(?!M?!).*?\*/|/\*M?!\d*|\*/|--(?=\s)[^\n]*|#[^\n]*", re.DOTALL)
_NAME = r"(`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|(?:[\w$]|[^\x00-\x7f])+)"
_TABLE = rf"{_NAME}(?:\s*\.\s*{_NAME})?"
_IF = r"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"


def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE | re.DOTALL)


_TRUNCATE = _regex(rf"TRUNCATE (?:TABLE )?{_TABLE}")
# The server writes this statement itself, for a MEMORY table that is empty after a restart.
_DELETE_ALL = _regex(rf"DELETE FROM {_TABLE}\s*\Z")
_CREATE_TABLE = _regex(r"CREATE (?:OR REPLACE )?(?:TEMPORARY )?TABLE\b")
_CREATE_NAMED = _regex(rf"CREATE (?P<again>OR REPLACE )?TABLE (?P<unless>IF NOT EXISTS )?{_TABLE}")
_DROP_TABLES = _regex(rf"DROP TABLES? {_IF}")
_DROP_DATABASE = _regex(rf"DROP (?:DATABASE|SCHEMA) {_IF}{_NAME}")
_RENAME_TABLES = _regex(rf"RENAME TABLES? {_IF}")
_RENAME = _regex(rf"{_TABLE} (?:(?:WAIT \d+|NOWAIT) )?TO {_TABLE}")
_ALTER_TABLE = _regex(rf"ALTER (?:ONLINE )?(?P<ignore>IGNORE )?TABLE {_IF}{_TABLE}")
_ALTER_RENAME = _regex(r"\bRENAME\b(?! (?:COLUMN|INDEX|KEY)\b)")
_NEW_NAME = _regex(rf"\s*(?:(?:TO|AS) |=\s*)?{_TABLE}")
# Clauses that remove or add rows: partitions, files, or the history of a table, whose rows are in the log like others.
_ALTER_ROWS = _regex(
    r"\b(?:(?:TRUNCATE|DROP|EXCHANGE) PARTITION|CONVERT (?:PARTITION|TABLE)"
    r"|(?:DISCARD|IMPORT) (?:PARTITION|TABLESPACE)|DROP SYSTEM VERSIONING)\b"
)
# The other table of EXCHANGE PARTITION and of both forms of CONVERT; one of them removes it.
_OTHER_TABLE = _regex(r"\b(?:WITH|TO|(CONVERT)) TABLE\b")
_CASCADE = _regex(r"\bON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)\b")
_VERSIONED = _regex(r"\b(?:ADD|WITH) SYSTEM VERSIONING\b")
_ENGINE = _regex(r"\bENGINE\b")
_UNBINDS = _regex(r"\bDROP (?:FOREIGN KEY|CONSTRAINT)\b")
_MENDS = _regex(r"\bDROP (?:FOREIGN KEY|CONSTRAINT)\b|\bENGINE\b")
# Only known engines, because a column may also be called engine.
_WITHOUT_TRANSACTIONS = _regex(
    r"\s*=?\s*['\"`]?(MyISAM|Aria|MEMORY|HEAP|CSV|ARCHIVE|BLACKHOLE|MERGE|MRG_MYISAM|FEDERATED|FEDERATEDX|CONNECT|SPIDER"
    r"|S3|COLUMNSTORE|MROONGA|SPHINX|OQGRAPH|EXAMPLE|NDB|NDBCLUSTER|TokuDB)\b"
)
_SET_STATEMENT = _regex(r"SET STATEMENT\b.*?\bFOR\b")
_XA_END = _regex(r"XA (COMMIT|ROLLBACK) (.*)")
_ROLLBACK_TO = _regex(r"ROLLBACK (?:WORK )?TO\b")


def read_control(text: str) -> Statement | None:
    """The effect of a statement that controls a transaction; None for any other statement."""
    text = text[_BLANK.match(text).end() :]  # type: ignore[union-attr]  # it matches always, if only nothing
    word = re.match(r"\w*", text)[0].upper()  # type: ignore[index]
    if word == "XA":
        if ended := _XA_END.match(text):
            return Statement(closes=True, xa=written(ended[2]), commits=ended[1].upper() == "COMMIT")
        return Statement(ends=False, begins=True)
    if word == "ROLLBACK":
        partly = _ROLLBACK_TO.match(text) is not None
        return Statement(ends=not partly, closes=not partly, undoes=True)
    return Statement(ends=False) if word in ("SAVEPOINT", "RELEASE") else None


def read_statement(text: str, schema: str) -> Statement:
    """The effect of a statement that was run with `schema` as the default. Raises DecodeError for a statement that
    changes rows or is not known."""
    if control := read_control(text):
        return control
    # Add spaces around quoted names, which need none.
    text = _COMMENT.sub(lambda found: f" {found[1]} " if found[1] else " " * len(found[0]), text)
    text = text[_BLANK.match(text).end() :]  # type: ignore[union-attr]  # it matches always, if only nothing
    # Blank out quoted text, which is not a keyword; all other characters keep their index.
    bare = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), text)
    prefixed = _SET_STATEMENT.match(bare)
    if prefixed:
        return read_statement(text[prefixed.end() :], schema)
    word = re.match(r"\w*", bare)[0].upper()  # type: ignore[index]
    if emptied := _TRUNCATE.match(text) or _DELETE_ALL.match(text):
        return Statement(emptied=(_table(emptied, schema),))
    selects = _CREATE_TABLE.match(bare) and re.search(r"\bSELECT\b", bare, re.IGNORECASE)
    if _CHANGES.fullmatch(word) or selects:
        raise DecodeError(
            f"the log has a statement ({word}, in database {schema!r}) instead of the changed rows",
            hint="set global binlog_format = ROW, let no session set another format, and start with a new dump",
        )
    if not _DEFINITIONS.fullmatch(word):
        raise DecodeError(f"the log has an unknown statement: {word!r} in database {schema!r}")
    return _definition(text, bare, schema)


def _definition(text: str, bare: str, schema: str) -> Statement:
    if create := _CREATE_NAMED.match(text):
        table = _table(create, schema, 2)
        # If the table existed already, the rest of the statement had no effect.
        said = Definition(table) if create["unless"] else _said(table, text, bare, create.end())
        emptied = (table,) if create["again"] else ()
        return Statement(emptied=emptied, defined=(replace(said, arrives=True, mends=False),))
    if drop := _DROP_TABLES.match(text):
        return Statement(emptied=tuple(_table(found, schema) for found in _listed(text, drop.end(), _regex(_TABLE))))
    if gone := _DROP_DATABASE.match(text):
        return Statement(dropped=_unquoted(gone[1]))
    if rename := _RENAME_TABLES.match(text):
        pairs = list(_listed(text, rename.end(), _RENAME))
        if not pairs or text[pairs[-1].end() :].strip("; \t\r\n"):
            raise DecodeError(f"the log has a RENAME TABLE in database {schema!r} that cannot be parsed")
        return _renamed([(_table(p, schema), _table(p, schema, 2)) for p in pairs])
    if alter := _ALTER_TABLE.match(text):
        return _altered(alter, text, bare, schema)
    return Statement()


def _altered(alter: re.Match[str], text: str, bare: str, schema: str) -> Statement:
    table = _table(alter, schema, 1)
    said = _said(table, text, bare, alter.end())
    named = _ALTER_RENAME.search(bare, alter.end())
    if named and (new := _NEW_NAME.match(text, named.end())):
        said = replace(said, table=_table(new, schema), arrives=True, mends=False)
        return replace(_renamed([(table, said.table)]), defined=(said,))
    # IGNORE removes rows that do not fit a new key.
    if alter["ignore"] or _ALTER_ROWS.search(bare, alter.end()):
        word = _OTHER_TABLE.search(bare, alter.end())
        other = _regex(rf"\s*{_TABLE}").match(text, word.end()) if word else None
        tables = (table, _table(other, schema)) if other else (table,)
        left = tables[:1] if word and word[1] else tables
        return Statement(emptied=tables, replaced=left, defined=(said,))
    return Statement(defined=(said,))


def _said(table: TableName, text: str, bare: str, at: int) -> Definition:
    """The properties of a table in the rest of a statement."""
    engines = (_WITHOUT_TRANSACTIONS.match(text, found.end()) for found in _ENGINE.finditer(bare, at))
    engine = next((found[1] for found in engines if found), None)
    cascades, versioned, mends = (bool(found.search(bare, at)) for found in (_CASCADE, _VERSIONED, _MENDS))
    unbinds = bool(_UNBINDS.search(bare, at))
    return Definition(table, cascades, versioned, engine, mends=mends, unbinds=unbinds)


def _listed(text: str, at: int, item: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """The items of a comma-separated list."""
    while found := item.match(text, at):
        yield found
        comma = re.compile(r"\s*,\s*").match(text, found.end())
        if comma is None:
            return
        at = comma.end()


def _renamed(pairs: list[tuple[TableName, TableName]]) -> Statement:
    """The effect of renames, done one after the other."""
    original: dict[TableName, TableName] = {}
    """By present name: the original name of the table."""
    for old, new in pairs:
        original[new] = original.pop(old, old)
    arrived = {now: was for now, was in original.items() if now != was}
    emptied = {*arrived, *arrived.values()}
    return Statement(
        emptied=tuple(sorted(emptied)),
        replaced=tuple(sorted(arrived)),
        defined=tuple(Definition(table, arrives=True) for table in sorted(arrived)),
    )


def _table(found: re.Match[str], schema: str, at: int = 0) -> TableName:
    """The table of a match, in the two groups after the first `at`."""
    first, second = (_unquoted(name) for name in found.groups()[at : at + 2])
    return TableName(first, second) if second else TableName(schema, first)


def _lowered(table: TableName) -> TableName:
    return TableName(table.schema.lower(), table.name.lower())


def _unquoted(name: str | None) -> str:
    if not name or name[0] not in '`"':
        return name or ""
    return name[1:-1].replace(name[0] * 2, name[0])


def statement_text(body: bytes) -> tuple[str, str]:
    """The statement of a QUERY event, and the database it was run in. Before them the event has session, duration,
    length of the database's name, error, length of the status."""
    schema = body[8]
    at = 13 + int.from_bytes(body[11:13], "little")
    name, text = body[at : at + schema], body[at + schema + 1 :]
    return text.decode(errors="replace"), name.decode(errors="replace")
