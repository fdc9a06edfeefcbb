"""A family of databases that another package brings, read by Spark: its worker processes find it by themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sources.journal_file import Journal
from tests.spark.apps import delivered, running

pytestmark = pytest.mark.spark


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of the journal, as an installer leaves it behind: its entry point is all that dblog knows of it."""
    info = tmp_path / "site" / "journal-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: journal\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dblog.families]\njournal = tests.sources.journal_family:ENTRY\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(info.parent), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.usefixtures("installed")
def test_spark_reads_a_source_that_a_package_has_added(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "shop.journal")
    journal.create()
    journal.define("t", {"id": "int", "n": "int"}, ("id",))
    journal.commit(*(("insert", "t", {"id": i, "n": i}) for i in range(50)))
    options = {"url": f"journal://{journal.path}", "table": "t", "chunkRows": 20, "state": "off"}
    with running(tmp_path, options, available_now=True) as app:
        app.wait()
    history = delivered(tmp_path)
    history.check_order()
    history.check_state(list(journal.tables()["t"].rows.values()))
    assert history.count("read") == 50
