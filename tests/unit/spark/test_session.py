"""Which master a session gets."""

from __future__ import annotations

import pytest

from dblog.spark.session import chosen_master, is_local


def test_the_master_is_that_of_the_environment_or_of_spark_submit_or_local() -> None:
    assert chosen_master({}) == "local[*]"
    assert chosen_master({"MASTER": "yarn"}) == "yarn"
    assert chosen_master({"MASTER": "yarn", "PYSPARK_GATEWAY_PORT": "1"}) == "yarn"
    assert chosen_master({"PYSPARK_GATEWAY_PORT": "1"}) is None, "the one that spark-submit was given"


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2,3]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://localhost:7077", False),
        ("yarn", False),
        (None, False),
    ],
)
def test_a_local_master_has_no_executors_of_its_own(master: str | None, local: bool) -> None:
    assert is_local(master) == local
