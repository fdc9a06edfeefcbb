"""Lakes on object storage that is away for a while: the server is killed and started again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from pyspark.sql import SparkSession

from dblog.core.schema import TableName
from dblog.sinks.folder import folder_name
from dblog.testing.object_server import ObjectServer
from tests.sinks.lakes import NAME, Lake, NativeDelta, NativeIceberg
from tests.sinks.suite import AwaySuite
from tests.sinks.target import Target


class InABucket(Lake):
    """A lake in a bucket."""

    def __init__(self, folder: Path, spark: SparkSession, server: ObjectServer, bucket: str) -> None:
        super().__init__(folder, spark)
        self.server, self.objects, self.bucket = server, server.storage, bucket

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "path": f"{self.bucket}/lake"}

    @contextmanager
    def away(self) -> Iterator[None]:
        self.server.kill()
        try:
            yield
        finally:
            self.server.start()


class DeltaInABucket(InABucket, NativeDelta):
    def opened(self, table: TableName = NAME) -> DeltaTable | None:
        uri, options = f"{self.bucket}/lake/{folder_name(table)}", self.objects.delta_options()
        return DeltaTable(uri, storage_options=options) if DeltaTable.is_deltatable(uri, options) else None


class IcebergInABucket(InABucket, NativeIceberg):
    """The catalog is elsewhere, and there all the time."""

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "options": {"type": "sql", "uri": self._uri}}

    @property
    def _uri(self) -> str:
        return f"sqlite:///{self.folder}/catalog.db"

    @cached_property
    def catalog(self) -> Catalog:
        return load_catalog("lake", type="sql", uri=self._uri, **self.objects.iceberg_properties())


class TestDeltaAway(AwaySuite):
    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession, object_server: ObjectServer, bucket: str) -> Target:
        return DeltaInABucket(tmp_path, spark, object_server, bucket)


class TestIcebergAway(AwaySuite):
    @pytest.fixture
    def target(self, tmp_path: Path, spark: SparkSession, object_server: ObjectServer, bucket: str) -> Target:
        return IcebergInABucket(tmp_path, spark, object_server, bucket)
