"""The options of the source: every one is checked, and an error says what is allowed."""

from __future__ import annotations

import os

import pytest

from dblog.core.option_values import OptionValues
from dblog.core.schema import TableName
from dblog.core.settings import choice, number
from dblog.errors import ConfigError
from dblog.spark.options import OPTIONS, read_options

URL = "postgresql://ann:s3cret@db.example:5433/shop"
TABLE = {"url": URL, "table": "public.orders"}


def test_the_defaults_are_safe() -> None:
    options = read_options(TABLE)
    assert options.table == TableName("public", "orders")
    assert options.settings.dump
    assert options.settings.chunk_rows is None
    assert options.settings.parallelism == min(os.cpu_count() or 2, 8)
    assert options.limit.nbytes == 128 << 20
    assert options.own["publication"] == options.slot


def test_a_family_reads_options_that_only_it_declares() -> None:
    values = OptionValues({"mode": "FAST", "rows": "none"})
    assert values.value("mode", choice("slow", "fast"), "slow") == "fast"
    assert values.value("absent", number(1, 9), 5) == 5
    with pytest.raises(ConfigError, match="option 'rows' has the value 'none'") as refused:
        values.value("rows", number(1, 9), 5)
    assert refused.value.hint == "allowed: a whole number from 1 to 9"


def test_names_of_options_ignore_case_as_everywhere_in_spark() -> None:
    assert read_options({**TABLE, "CHUNKROWS": "500"}).settings.chunk_rows == 500


def test_the_default_slot_is_stable_and_differs_between_tables_and_databases() -> None:
    slot = read_options(TABLE).slot
    assert slot == read_options(TABLE).slot
    assert slot.startswith("dblog_public_orders_")
    others = [{**TABLE, "table": "public.items"}, {**TABLE, "url": URL + "2"}, {"url": URL, "tables": "public.orders"}]
    assert slot not in {read_options(o).slot for o in others[:2]}
    assert len(read_options({"url": URL, "tables": "a" * 200}).slot) <= 63


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
@pytest.mark.parametrize("option", ["table", "tables"])
def test_a_mysql_stream_is_named_alike_with_and_without_the_schema_of_its_table(scheme: str, option: str) -> None:
    url = f"{scheme}://ann:s3cret@db.example/shop"
    short, full = (read_options({"url": url, option: name}) for name in ("orders", "shop.orders"))
    assert (short.slot, short.spool, short.pipeline) == (full.slot, full.spool, full.pipeline)
    assert short.source.identity() == full.source.identity()
    assert short.slot != read_options({"url": url, option: "public.orders"}).slot


@pytest.mark.parametrize(
    ("url", "given", "slot"),
    [
        (URL, {"table": "public.orders"}, "dblog_public_orders_3a2b34"),
        (URL, {"table": "orders"}, "dblog_public_orders_3a2b34"),
        (URL, {"tables": "public.orders"}, "dblog_public_orders_3a2b34"),
        (URL, {"tables": "orders"}, "dblog_orders_273b48"),
        (URL, {"tables": "public.*, !public.tmp_*"}, "dblog_public_public_tmp_2cc2ab"),
        ("mysql://ann:s3cret@db.example/shop", {"table": "shop.orders"}, "dblog_shop_orders_a89cbf"),
        ("mysql://ann:s3cret@db.example/shop", {"tables": "shop.*, shop.a"}, "dblog_shop_shop_a_94789b"),
    ],
)
def test_the_slot_of_a_running_stream_stays_the_one_that_it_has(url: str, given: dict[str, str], slot: str) -> None:
    """A stream that finds another slot than the one it made has lost its log: these names never change."""
    assert read_options({"url": url, **given}).slot == slot


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("dump", "always", "initial or never"),
        ("before", "maybe", "true or false"),
        ("chunkRows", "many", "a whole number from 1"),
        ("chunkRows", "0", "a whole number from 1"),
        ("parallelism", "-1", "a whole number from 1 to 1000"),
        ("maxRowsPerTrigger", "1e6", "a whole number"),
        ("maxBytesPerTrigger", "64 parsecs", "a size like 64m"),
        ("readAheadBytes", "0", "a size like 64m"),
        ("decimals", "float", "decimal or string"),
        ("arrays", "json", "array or string"),
        ("heartbeatSeconds", "0", "a whole number from 1"),
        ("patienceSeconds", "", "a whole number from 1"),
        ("slot", "My-Slot", "lower-case letters"),
        ("columns", "a,,b", "names separated by commas"),
    ],
)
def test_a_bad_value_is_refused_with_the_option_the_value_and_what_is_allowed(
    option: str, value: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options({**TABLE, option: value})
    assert repr(option) in caught.value.message
    assert repr(value) in caught.value.message
    assert allowed in (caught.value.hint or "")


@pytest.mark.parametrize(("text", "size"), [("64m", 64 << 20), ("1G", 1 << 30), ("100", 100), ("2 kb", 2048)])
def test_sizes_have_units(text: str, size: int) -> None:
    assert read_options({**TABLE, "maxBytesPerTrigger": text}).limit.nbytes == size


def test_an_unknown_option_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(ConfigError, match="unknown option 'chunkSize'") as caught:
        read_options({**TABLE, "chunkSize": "1"})
    assert all(o.name in (caught.value.hint or "") for o in OPTIONS)


@pytest.mark.parametrize("given", [{}, {"url": URL}, {"table": "t"}, {**TABLE, "tables": "public.*"}])
def test_what_is_missing_or_contradictory_is_named(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"'(url|table)'"):
        read_options(given)


def test_columns_need_one_table() -> None:
    assert read_options({**TABLE, "columns": "id, total"}).columns == ("id", "total")
    with pytest.raises(ConfigError, match="'columns' needs the option 'table'"):
        read_options({"url": URL, "tables": "public.*", "columns": "id"})


def test_exclusions_alone_match_nothing() -> None:
    with pytest.raises(ConfigError, match="'tables'"):
        read_options({"url": URL, "tables": "!public.*"})


def test_options_do_not_show_the_password() -> None:
    assert "s3cret" not in repr(read_options(TABLE))
    assert "s3cret" not in str(read_options(TABLE).source)
