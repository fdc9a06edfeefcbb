"""Journals in the registry of families: how a URL like journal:///var/shop.journal becomes a source."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from dblog.databases.families import Address, Entry
from dblog.errors import ConfigError
from dblog.sources.family import SourceOptions
from dblog.sources.simple import SimpleFamily
from tests.sources.journal import SCHEMA, JournalSource

ENTRY = Entry("Journal", ("journal",), "journal:///path", source="tests.sources.journal_family:FAMILY")
"""What `register` takes, and what the entry point `journal` of the group `dblog.families` names."""


@dataclass(frozen=True)
class JournalAddress:
    """The path of a journal (`databases.families.Address`). It holds no secrets."""

    path: str
    secrets: tuple[str, ...] = ()

    @property
    def database(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def endpoint(self) -> tuple[str, str, str]:
        return "", "", self.path

    def __str__(self) -> str:
        return f"journal://{self.path}"


class JournalFamily(SimpleFamily):
    def parse(self, url: str) -> JournalAddress:
        parts = urlsplit(url)
        if parts.netloc or not parts.path:
            raise ConfigError("option 'url' is not the path of a journal", hint=f"write it as {ENTRY.example}")
        return JournalAddress(parts.path)

    def default_schema(self, address: Address) -> str:
        return SCHEMA

    def source(self, options: SourceOptions) -> JournalSource:
        return JournalSource(options)


FAMILY = JournalFamily()
