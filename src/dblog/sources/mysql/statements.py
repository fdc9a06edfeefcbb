"""What a statement in the log means for the rows of the tables.

The log of a server in row format still has statements: those that define tables and users. Most say nothing about rows,
and rows that follow say how they look. Some take all rows of a table away, or put others in their place, without a row
in the log: a table that gets a name by a rename has other rows than the one that had it, whatever the names are. Any
statement that changes single rows is an error, because which rows it changed is not said.
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
    """A table that a statement creates or changes, and what the statement says against following it."""

    table: TableName
    cascades: bool = False
    """A foreign key changes its rows."""
    versioned: bool = False
    """It becomes system-versioned."""
    engine: str | None = None
    """Its engine, if that has no transactions."""
    arrives: bool = False
    """It is new under its name, and may be anything."""
    mends: bool = False
    """A foreign key of it is dropped, or it gets an engine: it may not have been fit to be followed before."""


@dataclass(frozen=True)
class Statement:
    """What happens to the rows of whole tables."""

    ends: bool = True
    """It is a transaction of its own, unless it stands in one."""
    begins: bool = False
    """A transaction of several statements begins with it."""
    closes: bool = False
    """It ends the transaction that it stands in."""
    undoes: bool = False
    """It takes back what its transaction has done, or some of that."""
    xa: str | None = None
    """The XA transaction, prepared before, that it commits or rolls back."""
    commits: bool = False
    """It commits that transaction."""
    emptied: tuple[TableName, ...] = ()
    """These have no rows after it, or other ones."""
    replaced: tuple[TableName, ...] = ()
    """Those of them that have rows after it, which the log does not show."""
    dropped: str | None = None
    """All tables of this database are emptied."""
    defined: tuple[Definition, ...] = ()
    """The tables that it creates, changes, or gives a name to."""

    def lowered(self) -> Statement:
        """As a server means it whose names have no capital letters: in the text of a statement they may have some."""
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
# What stands in /*!50000 such a comment */ is executed, so only its ends are comments.
_COMMENT = re.compile(rf"({_QUOTED.pattern})|/\*(?!M?!).*?\*/|/\*M?!\d*|\*/|--(?=\s)[^\n]*|#[^\n]*", re.DOTALL)
_NAME = r"(`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|(?:[\w$]|[^\x00-\x7f])+)"
_TABLE = rf"{_NAME}(?:\s*\.\s*{_NAME})?"
_IF = r"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"


def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE | re.DOTALL)


_TRUNCATE = _regex(rf"TRUNCATE (?:TABLE )?{_TABLE}")
# The server writes this one itself, for a table in memory that is empty after a restart.
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
# Rows go or come with a partition or a file; or with the history of a table, whose rows the log shows like others.
_ALTER_ROWS = _regex(
    r"\b(?:(?:TRUNCATE|DROP|EXCHANGE) PARTITION|CONVERT (?:PARTITION|TABLE)"
    r"|(?:DISCARD|IMPORT) (?:PARTITION|TABLESPACE)|DROP SYSTEM VERSIONING)\b"
)
# The other table of EXCHANGE PARTITION and of both forms of CONVERT, of which one takes it away.
_OTHER_TABLE = _regex(r"\b(?:WITH|TO|(CONVERT)) TABLE\b")
_CASCADE = _regex(r"\bON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)\b")
_VERSIONED = _regex(r"\b(?:ADD|WITH) SYSTEM VERSIONING\b")
_ENGINE = _regex(r"\bENGINE\b")
_MENDS = _regex(r"\bDROP (?:FOREIGN KEY|CONSTRAINT)\b|\bENGINE\b")
# By name: a column may be called engine, too.
_WITHOUT_TRANSACTIONS = _regex(
    r"\s*=?\s*['\"`]?(MyISAM|Aria|MEMORY|HEAP|CSV|ARCHIVE|BLACKHOLE|MERGE|MRG_MYISAM|FEDERATED|FEDERATEDX|CONNECT|SPIDER"
    r"|S3|COLUMNSTORE|MROONGA|SPHINX|OQGRAPH|EXAMPLE|NDB|NDBCLUSTER|TokuDB)\b"
)
_SET_STATEMENT = _regex(r"SET STATEMENT\b.*?\bFOR\b")
_XA_END = _regex(r"XA (COMMIT|ROLLBACK) (.*)")
_ROLLBACK_TO = _regex(r"ROLLBACK (?:WORK )?TO\b")


def read_control(text: str) -> Statement | None:
    """What a statement does to the transaction that it stands in; None for one that is about something else."""
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
    """The effect of a statement that was run with `schema` as the default. Raises DecodeError for one that changes
    rows, and for one that is not known."""
    if control := read_control(text):
        return control
    # A name in quotes needs no space around it.
    text = _COMMENT.sub(lambda found: f" {found[1]} " if found[1] else " " * len(found[0]), text)
    text = text[_BLANK.match(text).end() :]  # type: ignore[union-attr]  # it matches always, if only nothing
    # What is quoted is no keyword; the rest stays where it is.
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
            f"the log has a statement ({word}, in database {schema!r}) instead of the rows that it changed",
            hint="set global binlog_format = ROW, let no session set another format, and start with a new dump",
        )
    if not _DEFINITIONS.fullmatch(word):
        raise DecodeError(f"the log has a statement that is not known: {word!r} in database {schema!r}")
    return _definition(text, bare, schema)


def _definition(text: str, bare: str, schema: str) -> Statement:
    if create := _CREATE_NAMED.match(text):
        table = _table(create, schema, 2)
        # If the table was there already, the rest says nothing about it.
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
            raise DecodeError(f"the log has a RENAME TABLE, in database {schema!r}, that is not understood")
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
    """What the rest of a statement says of its table."""
    engines = (_WITHOUT_TRANSACTIONS.match(text, found.end()) for found in _ENGINE.finditer(bare, at))
    engine = next((found[1] for found in engines if found), None)
    cascades, versioned, mends = (bool(found.search(bare, at)) for found in (_CASCADE, _VERSIONED, _MENDS))
    return Definition(table, cascades, versioned, engine, mends=mends)


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
    arrived = {now: was for now, was in original.items() if now != was}
    emptied = {*arrived, *arrived.values()}
    return Statement(
        emptied=tuple(sorted(emptied)),
        replaced=tuple(sorted(arrived)),
        defined=tuple(Definition(table, arrives=True) for table in sorted(arrived)),
    )


def _table(found: re.Match[str], schema: str, at: int = 0) -> TableName:
    """The table that a match has found, in two groups that follow `at` others."""
    first, second = (_unquoted(name) for name in found.groups()[at : at + 2])
    return TableName(first, second) if second else TableName(schema, first)


def _lowered(table: TableName) -> TableName:
    return TableName(table.schema.lower(), table.name.lower())


def _unquoted(name: str | None) -> str:
    if not name or name[0] not in '`"':
        return name or ""
    return name[1:-1].replace(name[0] * 2, name[0])


def statement_text(body: bytes) -> tuple[str, str]:
    """The statement of a QUERY event, and the database it was run in. In front of them: session, duration, length of
    the database's name, error, length of the status."""
    schema = body[8]
    at = 13 + int.from_bytes(body[11:13], "little")
    name, text = body[at : at + schema], body[at + schema + 1 :]
    return text.decode(errors="replace"), name.decode(errors="replace")
