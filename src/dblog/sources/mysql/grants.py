"""Accounts and their privileges, from `SHOW GRANTS`."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from dblog.core.schema import TableName
from dblog.databases.mysql.connect import identifier


@dataclass(frozen=True)
class User:
    """An account as in GRANT statements."""

    name: str
    host: str

    @classmethod
    def read(cls, text: str) -> User:
        """Read the server's `current_user()`."""
        name, _, host = text.rpartition("@")
        return cls(name, host)

    def granted(self, rights: str, on: TableName | None = None) -> str:
        target = identifier(*on) if on else "*.*"
        return f"GRANT {rights} ON {target} TO {identifier(self.name)}@{identifier(self.host)};"

    def __str__(self) -> str:
        return repr(f"{self.name}@{self.host}")


class Grants:
    """The privileges of a user and of the active roles."""

    def __init__(self, lines: Collection[str]) -> None:
        self._rights: list[tuple[str, str, set[str]]] = []
        name = r"(\*|`(?:[^`]|``)*`)"
        for line in lines:
            if found := re.match(rf"GRANT (.*?) ON (?:TABLE )?{name}\.{name} TO ", line):
                rights, schema, table = found.groups()
                self._rights.append((_unquoted(schema), _unquoted(table), set(rights.split(", "))))

    def has(self, right: str, on: TableName | None = None) -> bool:
        return any(
            bool({right, "ALL PRIVILEGES"} & rights)
            and (schema == "*" or (on is not None and _like(schema, on.schema)))
            and (table == "*" or (on is not None and table == on.name))
            for schema, table, rights in self._rights
        )


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name[0] == "`" else name


def _like(pattern: str, name: str) -> bool:
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    return bool(re.fullmatch("".join({"%": ".*", "_": "."}.get(p, re.escape(p[-1])) for p in parts), name, re.DOTALL))
