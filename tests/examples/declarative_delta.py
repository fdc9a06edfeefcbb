"""The example of Declarative Pipelines into Delta Lake. `test_declarative.py` runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import SERVERS, Database
from tests.examples.test_declarative import LATER, ORDERS, SHOP, Project, rows, states
from tests.sinks.lakes import Delta, lake_session

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.parametrize("postgres", SERVERS[:1], indirect=True)]


def test_every_change_reaches_delta(database: Database, tmp_path: Path) -> None:
    project = Project(tmp_path, database)
    project.environment["SPARK_CONF_DIR"] = str(tmp_path / "shop" / "delta")
    for changes in ((SHOP,), LATER):
        for change in changes:
            database.execute(change)
        project.run("--remote", "local[2]", "--spec", "delta.yml")
    for spark in lake_session(Delta(tmp_path, None).make(tmp_path), tmp_path):
        for table in ("customers", "orders"):
            events = rows(spark.read.format("delta").load(str(tmp_path / "warehouse" / f"{table}_changes")))
            last = {event["id"]: event for event in sorted(events, key=lambda event: event["_place"])}
            left = [tuple(event.values())[:-3] for event in last.values() if event["_op"] != "delete"]
            assert sorted(left) == project.source(table)
        assert states([event for event in events if event["_op"] != "delete"], "_place") == ORDERS
