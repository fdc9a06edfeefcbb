"""The page of MySQL and MariaDB says what the code does: types, settings, parameters, versions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql.pandas.types import from_arrow_type

from dblog.databases.mysql import connect
from dblog.databases.mysql.flavor import MARIADB, MYSQL
from dblog.sources.mysql import preflight, preflight_checks
from dblog.sources.mysql.codecs import CODECS, my_column
from dblog.sources.mysql.column_types import MyColumn, TypeOptions
from dblog.sources.mysql.spelling import read_type

PAGE = (Path(__file__).parents[2] / "docs/mysql.md").read_text()
UTF8MB4 = 45


def section(name: str) -> str:
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


def rows() -> list[tuple[str, str]]:
    """Each type of the table, and what Spark makes of it."""
    found = []
    for sql, spark in re.findall(r"^\| (`.*?) \| (.*?) \|$", section("Types"), re.MULTILINE):
        types = re.findall(r"`([^`]+)`", sql)
        names = re.findall(r"[a-z_]+(?:\([\d,]+\))?", re.split(r"[;:]|, from", spark)[0])
        found += zip(types, names * len(types) if len(names) == 1 else names, strict=True)
    return found


def column(sql: str) -> MyColumn:
    text = re.match(r"char|varchar|\w*text|enum|set", sql)
    flavor = MARIADB if sql in MARIADB.fixed_binary else MYSQL
    kind = read_type(sql, 100, UTF8MB4 if text else None, flavor)
    return my_column("c", kind, flavor, TypeOptions())


@pytest.mark.parametrize(("sql", "spark"), rows())
def test_a_type_becomes_what_the_table_says(sql: str, spark: str) -> None:
    assert from_arrow_type(column(sql).arrow, prefer_timestamp_ntz=True).simpleString() == spark


def test_every_type_is_in_the_table() -> None:
    assert {column(sql).codec for sql, _ in rows()} == set(CODECS)


def test_the_parameters_of_a_url_are_named() -> None:
    encryption = section("Encryption")
    assert re.findall(r"^\| `([A-Z_]+)` \|", encryption, re.MULTILINE) == list(connect.SSL_MODES)
    assert {name for name in connect.PARAMETERS if f"`{name}`" in encryption} == set(connect.PARAMETERS)


def test_the_settings_that_are_looked_at_are_named() -> None:
    looked_at = set(
        re.findall(
            r'"(binlog_\w+|gtid_mode|log_\w+|replica_preserve_\w+)"', Path(preflight_checks.__file__).read_text()
        )
    )
    assert "binlog_row_image" in looked_at
    assert {name for name in looked_at if f"`{name}" not in PAGE} == set()


def test_the_oldest_versions_are_named() -> None:
    (mysql, mariadb) = (".".join(map(str, preflight.OLDEST[name][:2])) for name in ("MySQL", "MariaDB"))
    assert f"MySQL {mysql} and later, MariaDB {mariadb} and later" in PAGE


def test_the_watermark_table_is_the_one_that_the_code_makes() -> None:
    definition = re.search(r"watermark (\(id .*?\) ENGINE = InnoDB)", preflight_checks.WATERMARK_SQL[1])
    assert definition
    assert definition[1] in section("What is created")
