"""`[spark]` of a pipeline's file: Spark's master and settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog.errors import ConfigError
from dblog.pipelines.config import Config, read_config
from dblog.pipelines.running import streams_of
from dblog.pipelines.spark_settings import spark_settings
from dblog.spark.session import TUNED

FILE = """
[source]
url = "postgresql://cdc@db.example/shop"
tables = ["public.*"]
[[sink]]
type = "parquet"
path = "out"
"""


def read(folder: Path, section: str) -> Config:
    path = folder / "shop.toml"
    path.write_text(FILE + section, "utf-8")
    return read_config(path)


def settings(folder: Path, section: str) -> dict[str, str]:
    config = read(folder, section)
    return spark_settings(streams_of(config, lambda sink, text: None), config.spark)


def test_without_it_nothing_is_set(tmp_path: Path) -> None:
    config = read(tmp_path, "")
    assert (config.master, config.spark) == (None, {})


def test_names_may_be_written_with_and_without_quotes(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
        [spark]
        master = "spark://spark.example:7077"
        [spark.settings]
        spark.executor.memory = "2g"
        spark.executor.cores = 2
        "spark.speculation" = true
        "spark.speculation.interval" = "1s"
        """,
    )
    assert config.master == "spark://spark.example:7077"
    assert config.spark == {
        "spark.executor.memory": "2g",
        "spark.executor.cores": "2",
        "spark.speculation": "true",
        "spark.speculation.interval": "1s",
    }


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ('[spark]\nmastr = "yarn"', "did you mean 'master'"),
        ('[spark.settings]\n"spark.master" = "yarn"', "set spark.master as master in"),
        ('[spark.settings]\n"spark.remote" = "sc://x"', "cannot use Spark Connect"),
        ('[spark.settings]\n"executor.memory" = "2g"', "the names begin with spark."),
        ('[spark.settings]\n"spark.ssl.keyPassword" = { env = "X" }', "spark.settings.spark.ssl.keyPassword cannot be"),
        ("[spark.settings]\nspark.x = [1]", "allowed: a table like"),
        ('[spark]\nsettings = "x"', "allowed: a table like"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, section: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(tmp_path, section)
    assert said in str(error.value)


def test_settings_of_the_file_and_of_sinks_are_put_together(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        """
        [spark.settings]
        "spark.scheduler.mode" = "FIFO"
        "spark.executor.extraJavaOptions" = "-Dx=1"
        "spark.sql.parquet.outputTimestampType" = "TIMESTAMP_MICROS"
        """,
    )
    assert found["spark.scheduler.mode"] == "FIFO"
    assert found["spark.executor.extraJavaOptions"] == TUNED["spark.executor.extraJavaOptions"] + " -Dx=1"
    assert found["spark.sql.parquet.datetimeRebaseModeInWrite"] == "CORRECTED"


def test_packages_of_the_file_are_joined_with_those_of_sinks(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        """
        [spark.settings]
        "spark.jars.packages" = "a:b:1"
        [[sink]]
        type = "parquet"
        name = "far"
        path = "s3://bucket/out"
        [storage]
        package = "c:d:2"
        """,
    )
    assert found["spark.jars.packages"] == "a:b:1,c:d:2"


def test_a_setting_that_a_sink_needs_otherwise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sink 'parquet' needs 'spark.sql.parquet.outputTimestampType' to be"):
        settings(tmp_path, '[spark.settings]\n"spark.sql.parquet.outputTimestampType" = "INT96"')
