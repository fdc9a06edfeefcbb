"""The setting `key` of a pipeline's file: the key that the user promises for a table without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog.core.promised_keys import PromisedKeys
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import ConfigError
from dblog.pipelines.config import read_config
from dblog.spark.options import read_options
from tests.unit.pipelines.test_values import ITEMS, ORDERS, SINKS, SOURCE


def keys(folder: Path, text: str) -> list[PromisedKeys]:
    """The promised keys of each sink's stream."""
    path = folder / "shop.toml"
    path.write_text(text)
    config = read_config(path)
    given = [{**config.source, **({"keys": s.keys} if s.keys else {})} for s in config.sinks]
    return [read_options(options).keys for options in given]


def test_the_first_entry_of_a_table_counts_also_without_a_key(tmp_path: Path) -> None:
    tables = (
        '[[table]]\nmatch = "items"\n[[table]]\nmatch = "orders"\nsinks = ["one"]\nkey = ["a", "b"]\n'
        '[[table]]\nmatch = "public.*"\nkey = ["id"]\n'
    )
    one, two = keys(tmp_path, SOURCE + tables + SINKS)
    assert (one.of(ORDERS), two.of(ORDERS)) == (("a", "b"), ("id",))
    assert one.of(ITEMS) == ()
    assert one.of(TableName("other", "t")) == ()
    assert keys(tmp_path, SOURCE + SINKS)[0].of(ORDERS) == ()


@pytest.mark.parametrize("wrong", ['"id"', "[]", '["a", "a"]', "[1]", '[""]', "{ a = 1 }"])
def test_a_wrong_key_is_named(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError, match="key"):
        keys(tmp_path, SOURCE + f'[[table]]\nmatch = "orders"\nkey = {wrong}\n' + SINKS)


def test_the_option_is_not_set_among_the_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source\.options\.keys cannot be set"):
        keys(tmp_path, SOURCE + "options = { keys = '{}' }\n" + SINKS)


def test_a_promised_key_is_another_version_of_the_schema() -> None:
    import pyarrow as pa

    columns = (Column("id", "int", pa.int32()),)
    versions = {TableSchema(ORDERS, columns, ("id",), promised=p).version for p in (False, True)}
    assert len(versions) == 2
