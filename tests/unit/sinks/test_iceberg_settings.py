"""The settings of the sink `iceberg`: which writer serves a catalog, and what the catalog's options are for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dblog.core.schema import TableName
from dblog.core.settings import read_settings
from dblog.errors import ConfigError, SinkUnreachable
from dblog.sinks.base import SinkContext
from dblog.sinks.lake.iceberg import IcebergSink
from dblog.testing.server_process import free_port

PACKAGE = "org.example:iceberg:1"


def sink(folder: Path, **given: Any) -> IcebergSink:
    return IcebergSink(read_settings("sink 'iceberg'", given, IcebergSink.settings), SinkContext("p", folder))


def of_catalog(folder: Path, *, writer: str = "auto", **options: str) -> IcebergSink:
    return sink(folder, catalog="prod", options=options, writer=writer, package=PACKAGE)


def in_spark(found: IcebergSink, catalog: str = "prod") -> dict[str, str]:
    """The options of the catalog, as Spark is started with them."""
    start = f"spark.sql.catalog.{catalog}."
    return {n.removeprefix(start): v for n, v in found.spark_settings.items() if n.startswith(start)}


@pytest.mark.parametrize(
    "options",
    [
        {"type": "rest", "uri": "https://catalog.example"},
        {"uri": "https://catalog.example"},
        {"type": "sql", "uri": "postgresql+psycopg2://u@h/d"},
        {"uri": "sqlite:////tmp/c.db"},
        {"type": "glue"},
        {"type": "hive", "uri": "thrift://h:9083"},
    ],
)
def test_catalogs_that_pyiceberg_knows_are_written_natively(tmp_path: Path, options: dict[str, str]) -> None:
    assert of_catalog(tmp_path, **options)._not_native() is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"type": "hadoop", "warehouse": "/w"}, "a catalog of the type 'hadoop'"),
        ({"type": "jdbc", "uri": "jdbc:postgresql://h/d"}, "a catalog of the type 'jdbc'"),
        ({"type": "dynamodb"}, "a catalog of the type 'dynamodb'"),
        ({"catalog-impl": "org.example.Own"}, "a catalog of the type 'org.example.Own'"),
        ({"warehouse": "/w"}, "its options have no type"),
        ({}, "Spark's own settings define the catalog"),
    ],
)
def test_other_catalogs_are_written_by_spark(tmp_path: Path, options: dict[str, str], why: str) -> None:
    assert why in (of_catalog(tmp_path, **options)._not_native() or "")
    assert "spark.jars.packages" in of_catalog(tmp_path, **options).spark_settings
    with pytest.raises(ConfigError, match=why):
        of_catalog(tmp_path, writer="native", **options).check()


def test_a_folder_has_a_catalog_of_its_own(tmp_path: Path) -> None:
    found = sink(tmp_path, path="lake")
    found.check()
    assert found.spark_settings == {}
    assert found._options() == {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/lake/catalog.db",
        "warehouse": f"{tmp_path}/lake",
    }
    for writer in ("auto", "native"):
        with_package = sink(tmp_path, path="lake", package=PACKAGE, writer=writer)
        assert with_package.spark_settings == {}, "Spark does not see these tables"
    assert sink(tmp_path, path="lake", catalog="c", options={"uri": "http://h"})._options() == {
        "type": "rest",
        "uri": "http://h",
        "warehouse": f"{tmp_path}/lake",
    }


def test_a_folder_with_tables_of_sparks_writer_stays_with_it(tmp_path: Path) -> None:
    hint = tmp_path / "lake" / "public" / "t" / "metadata" / "version-hint.text"
    hint.parent.mkdir(parents=True)
    hint.write_text("1")
    found = sink(tmp_path, path="lake", package=PACKAGE)
    assert "tables of Spark's writer" in (found._not_native() or "")
    assert in_spark(found, "lake") == {"type": "hadoop", "warehouse": f"{tmp_path}/lake", "cache-enabled": "false"}
    with pytest.raises(ConfigError, match="tables of Spark's writer"):
        sink(tmp_path, path="lake", writer="native").check()


def test_a_folder_with_tables_of_the_native_writer_is_not_for_sparks(tmp_path: Path) -> None:
    sink(tmp_path, path="lake", writer="spark", package=PACKAGE).check()
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "catalog.db").touch()
    with pytest.raises(ConfigError, match="native writer's catalog"):
        sink(tmp_path, path="lake", writer="spark", package=PACKAGE).check()


def test_a_folder_in_an_object_storage_needs_a_catalog(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot have its catalog at 's3://bucket/lake'") as raised:
        sink(tmp_path, path="s3://bucket/lake").check()
    assert "name a catalog" in str(raised.value.hint)
    named = sink(tmp_path, path="s3://bucket/lake", catalog="c", options={"uri": "http://h"})
    assert named._options() == {"type": "rest", "uri": "http://h", "warehouse": "s3://bucket/lake"}


def test_a_catalog_that_cannot_be_opened_is_found_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the catalog 'prod' cannot be opened"):
        sink(tmp_path, catalog="prod", options={"type": "sql"}).check()
    with pytest.raises(SinkUnreachable, match="the catalog 'prod'"):
        sink(tmp_path, catalog="prod", options={"uri": f"http://127.0.0.1:{free_port()}"}).check()


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        (
            "postgresql+psycopg2://me:p%40ss@db:5433/lake?sslmode=require",
            {"uri": "jdbc:postgresql://db:5433/lake?sslmode=require", "jdbc.user": "me", "jdbc.password": "p@ss"},
        ),
        ("sqlite:////var/c.db", {"uri": "jdbc:sqlite:/var/c.db"}),
    ],
)
def test_spark_opens_a_catalog_in_a_database_by_jdbc(tmp_path: Path, uri: str, expected: dict[str, str]) -> None:
    found = in_spark(of_catalog(tmp_path, writer="spark", type="sql", uri=uri))
    assert found == {"type": "jdbc", "cache-enabled": "false", **expected}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"uri": "https://catalog.example"}, {"type": "rest", "uri": "https://catalog.example"}),
        ({"catalog-impl": "org.example.Own"}, {"catalog-impl": "org.example.Own"}),
        ({"warehouse": "/w"}, {"warehouse": "/w"}),
        ({}, {}),
    ],
)
def test_spark_is_told_the_type_of_a_catalog(tmp_path: Path, options: dict[str, str], expected: dict[str, str]) -> None:
    assert in_spark(of_catalog(tmp_path, writer="spark", **options)) == {"cache-enabled": "false", **expected}


def test_a_closed_sink_has_no_connection_to_its_catalog(tmp_path: Path) -> None:
    found = sink(tmp_path, path="lake")
    tables = found._native_tables()
    assert tables.find(TableName("public", "t")) is None
    engine = tables._catalog.tables.engine  # type: ignore[attr-defined]
    assert engine.pool.checkedin() == 1
    found.close()
    assert engine.pool.checkedin() == 0
