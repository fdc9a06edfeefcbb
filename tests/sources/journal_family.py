"""Journals in the registry of families: how a URL like journal:///var/shop.journal becomes a source."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dblog.core.names import qualified
from dblog.core.option_values import OptionValues
from dblog.core.schema import TableName
from dblog.databases.families import Address, Entry
from dblog.errors import ConfigError
from dblog.sources.family import Family, Preflight, Slots, SourceOptions, slot_name
from tests.sources.journal import SCHEMA, JournalSource, JournalStream

ENTRY = Entry("Journal", ("journal",), "journal:///path", source="tests.sources.journal_family:FAMILY")
"""What `register` takes, and what the entry point `journal` of the group `dblog.families` names."""


@dataclass(frozen=True)
class JournalAddress:
    """The path of a journal (`databases.families.Address`). It holds no secrets."""

    path: str

    @property
    def database(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def secrets(self) -> tuple[str, ...]:
        return ()

    @property
    def endpoint(self) -> tuple[str, str, str]:
        return "", "", self.path

    def __str__(self) -> str:
        return f"journal://{self.path}"


class JournalFamily:
    """Journals in the registry of families (`sources.family.Family`)."""

    def parse(self, url: str) -> JournalAddress:
        parts = urlsplit(url)
        if parts.netloc or not parts.path:
            raise ConfigError("option 'url' is not the path of a journal", hint=f"write it as {ENTRY.example}")
        return JournalAddress(parts.path)

    def default_schema(self, address: Address) -> str:
        return SCHEMA

    def slot(self, address: Address, table: TableName | None, tables: str) -> str:
        return slot_name(address.database, qualified(tables, SCHEMA) if table is None else str(table))

    def own_options(self, values: OptionValues, address: Address, slot: str) -> Mapping[str, Any]:
        return {}

    def source(self, options: SourceOptions) -> JournalSource:
        if options.columns is not None:
            raise ConfigError("a journal delivers all columns", hint="leave out the option columns")
        return JournalSource(options.address.endpoint[2], options.patterns, options.before, options.writes)

    @contextmanager
    def preflight(
        self, options: SourceOptions, *, followed: Collection[TableName] | None = None
    ) -> Iterator[Preflight]:
        source = self.source(options)
        yield Preflight({}, tuple(source.tables()), source.problems, lambda: "")

    @contextmanager
    def temporary_stream(self, options: SourceOptions, publication: str | None) -> Iterator[JournalStream]:
        if publication is not None:
            raise ConfigError("a journal has no publications", hint="leave out --publication")
        source = self.source(options)
        origin = source.origin()
        yield source.stream(origin.position, origin.coordinate)

    def all_tables(self, options: SourceOptions) -> str:
        return "*"

    def shown(self, position: int) -> str:
        return f"byte {position}"

    def slots(self, address: Address) -> AbstractContextManager[Slots]:
        raise ConfigError("a journal has no replication slots", hint="it keeps all of its log")


FAMILY: Family = JournalFamily()
