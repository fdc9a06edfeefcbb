"""What a random life has delivered, replayed into the sink `sql`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from dblog.demo.server import PostgresServer
from tests.conftest import Database
from tests.life.run import live
from tests.life.test_life import SEED
from tests.sinks.sql_targets import fresh_name

pytestmark = [pytest.mark.server, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def database(servers: dict[str, PostgresServer]) -> Iterator[Database]:
    made = Database(servers["pg18"].start(), fresh_name())
    made.create()
    yield made
    made.drop()


def test_the_sql_target_of_a_random_life_has_the_rows_of_its_source(spark: SparkSession, database: Database) -> None:
    live("pg18", SEED, steps=60, seconds=12, target=(spark, database))
