"""A chosen set of tests on every older minor version of PySpark. All tests run on the environment's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.versions.minors import MINORS, run_on

STREAM = "tests/spark/test_stream.py::test_"
EVERYWHERE = [
    "tests/unit/spark/test_versions.py",
    f"{STREAM}a_typed_stream_is_found_without_registration_and_gives_the_tables_columns",
    f"{STREAM}a_drained_stream_has_everything_and_goes_on_in_the_next_query",
    f"{STREAM}mariadb_gives_typed_columns_and_envelopes",
    f"{STREAM}a_change_of_the_table_ends_the_query_with_what_to_do",
    f"{STREAM}a_spark_connect_client_streams_too",
    "tests/versions/test_killed.py",
    "tests/cli/test_run.py::test_a_pipeline_goes_on_where_it_stopped_and_says_why_it_cannot",
    "tests/sinks/test_native_delta.py::TestNativeDelta::test_a_batch_that_comes_again_changes_nothing",
    "tests/sinks/test_sql.py::TestPostgres::test_a_pipeline_goes_on_where_it_stopped",
]
THOROUGH = ["tests/spark/test_cluster.py::test_a_cluster_dumps_and_follows"]
"""What takes long. Declarative Pipelines are tested on 4.2 by `tests/examples/test_declarative.py`."""
AVAILABLE_NOW = f"{STREAM}all_that_is_there_now_goes_into_parquet_once"
OF_A_MINOR = {"4.0": ["tests/versions/one_batch.py"], "4.1": ["tests/versions/one_batch.py"], "4.2": [AVAILABLE_NOW]}


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("minor", MINORS)
def test_the_chosen_tests_pass_on(minor: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    more = THOROUGH if request.config.getoption("--thorough") else []
    run_on(minor, tmp_path, *EVERYWHERE, *OF_A_MINOR[minor], *more)
