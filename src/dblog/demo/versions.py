"""Reads the tables of the demo's lake, now and as they were after an earlier batch, without Spark.

Every commit of the sink has the mark of its batch: the position in the log up to which the table is complete.
"""

from __future__ import annotations

import json
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from dblog.core.schema import TableName
from dblog.sinks.folder import folder_name
from dblog.sinks.lake.marks import read_delta_mark, read_iceberg_mark

QUERY = "select status, count(*), sum(total) from orders group by status order by status"


class Version(NamedTuple):
    """A version of a table."""

    position: int
    """The position at which its batch ends."""
    number: int
    """The version of Delta, or the snapshot of Iceberg."""


class LakeTable(ABC):
    """A table of the lake."""

    @abstractmethod
    def __init__(self, folder: Path, table: TableName, pipeline: str) -> None: ...

    @abstractmethod
    def versions(self) -> list[Version]:
        """The versions that batches have written, the oldest first."""

    @abstractmethod
    def read(self, columns: Sequence[str], version: Version | None = None) -> pa.Table:
        """The rows of a version; without one, the present rows."""

    @abstractmethod
    def lines(self, version: Version) -> Mapping[str, str]:
        """How to query the table `orders` in a version: a command for a shell, and a statement of PySpark."""

    def at(self, position: int) -> Version:
        """The version that has all changes up to a position and no later one."""
        return [version for version in self.versions() if version.position <= position][-1]


class _Delta(LakeTable):
    def __init__(self, folder: Path, table: TableName, pipeline: str) -> None:
        self._uri = str(folder / folder_name(table))
        self._pipeline = pipeline

    def versions(self) -> list[Version]:
        from deltalake import DeltaTable

        found = []
        for commit in reversed(DeltaTable(self._uri).history()):
            if (mark := read_delta_mark(commit.get("userMetadata"), self._pipeline)) is not None:
                found.append(Version(mark.position, commit["version"]))
        return found

    def read(self, columns: Sequence[str], version: Version | None = None) -> pa.Table:
        from deltalake import DeltaTable

        table = DeltaTable(self._uri, version=None if version is None else version.number)
        return table.to_pyarrow_table(columns=list(columns)).select(columns)

    def lines(self, version: Version) -> Mapping[str, str]:
        uri = json.dumps(self._uri)
        opened = f"deltalake.DeltaTable({uri}, version={version.number}).to_pyarrow_dataset()"
        return {
            **_duckdb(f'import deltalake, duckdb; orders = {opened}; print(duckdb.sql("{QUERY}"))'),
            "Spark": f'spark.read.format("delta").option("versionAsOf", {version.number}).load({uri})',
        }


class _Iceberg(LakeTable):
    def __init__(self, folder: Path, table: TableName, pipeline: str) -> None:
        from pyiceberg.catalog import load_catalog

        self._uri = f"sqlite:///{folder / 'catalog.db'}"
        self._name = f"{table.schema}.{table.name}"
        self._pipeline = pipeline
        self._table = load_catalog("lake", type="sql", uri=self._uri).load_table(self._name)

    def versions(self) -> list[Version]:
        found = []
        for snapshot in self._table.snapshots():
            said = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if (mark := read_iceberg_mark(said, self._pipeline)) is not None:
                found.append((snapshot.sequence_number, Version(mark.position, snapshot.snapshot_id)))
        return [version for _, version in sorted(found)]

    def read(self, columns: Sequence[str], version: Version | None = None) -> pa.Table:
        number = None if version is None else version.number
        return self._table.scan(selected_fields=tuple(columns), snapshot_id=number).to_arrow().select(columns)

    def lines(self, version: Version) -> Mapping[str, str]:
        opened = f'load_catalog("lake", type="sql", uri={json.dumps(self._uri)}).load_table({json.dumps(self._name)})'
        scanned = f'{opened}.scan(snapshot_id={version.number}).to_duckdb("orders")'
        metadata = json.dumps(self._table.metadata_location.removeprefix("file://"))
        return {
            **_duckdb(f'from pyiceberg.catalog import load_catalog; print({scanned}.sql("{QUERY}"))'),
            "Spark": f'spark.read.format("iceberg").option("versionAsOf", {version.number}).load({metadata})',
        }


LAKES: Mapping[str, type[LakeTable]] = {"delta": _Delta, "iceberg": _Iceberg}
"""By the sink's type."""


def _duckdb(program: str) -> dict[str, str]:
    name = "DuckDB" if find_spec("duckdb") else "DuckDB, after pip install duckdb"
    return {name: f"{shlex.quote(sys.executable)} -c {shlex.quote(program)}"}
