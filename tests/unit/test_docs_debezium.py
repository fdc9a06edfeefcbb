"""The page for people who come from Debezium maps every one of its settings, and names nothing of ours that does not
exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dblog import errors
from dblog.control.api import create_app
from dblog.control.metrics import METRICS
from dblog.core.event import RESERVED
from dblog.core.settings import Setting
from dblog.core.throttle import SETTINGS as THROTTLE
from dblog.pipelines.config import read_config
from dblog.pipelines.file_settings import PIPELINE, SINK, SOURCE, SPARK, TABLE
from dblog.pipelines.sink_kinds import SINKS, sink_class
from dblog.sinks.route import MASKS
from dblog.spark.options import OPTIONS
from dblog.state import open_store
from tests.unit.test_docs_cli import main_command

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/coming-from-debezium.md").read_text()
DEBEZIUM = (Path(__file__).parent / "debezium_settings.txt").read_text().split()
"""The properties of the connectors for PostgreSQL, MySQL and MariaDB, as Debezium 3.7 documents them."""
SECTIONS: dict[str, tuple[Setting, ...]] = {
    "[source]": SOURCE,
    "[pipeline]": PIPELINE,
    "[spark]": SPARK,
    "[[table]]": TABLE,
    "[[sink]]": SINK,
}
SINK_SETTINGS = {setting.name for kind in SINKS for setting in sink_class(kind).settings}
OPTION_NAMES = {option.name for option in OPTIONS}
METRIC_NAMES = {metric.name for metric in METRICS}
VALUES = {"initial", "never", "none", "readStream", "offset", *MASKS}
"""Values of settings, and words of Spark and of the glossary, that the column of ours has."""


def rows(page: str) -> list[list[str]]:
    """The cells of all rows of the tables that have Debezium in the first column and dblog in the second."""
    found, inside = [], False
    for line in page.splitlines():
        if not line.startswith("|"):
            inside = False
        elif line.startswith("| Debezium | dblog |"):
            inside = True
        elif inside and not line.startswith("|---"):
            cells = re.split(r"(?<!\\) \| ", line.strip("|").strip() + " ")
            found.append([*(cell.strip().removesuffix("|").strip() for cell in cells), ""][:3])
    return found


ROWS = rows(PAGE)
OURS = [(row[0], row[1]) for row in ROWS if row[1] != "-"]


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_every_setting_of_debezium_is_mapped_once() -> None:
    named = [name for row in ROWS for name in spans(row[0])]
    assert set(DEBEZIUM) - set(named) == set()
    twice = {name for name in named if named.count(name) > 1 and name in DEBEZIUM}
    assert twice == {"snapshot.mode"}, "it has a row for each of its values"


def test_rows_without_a_counterpart_of_ours_are_marked_by_a_dash() -> None:
    assert len(OURS) > 60
    assert all(row[0] and row[1] for row in ROWS)


@pytest.mark.parametrize(("theirs", "ours"), OURS)
def test_every_name_of_ours_exists(theirs: str, ours: str) -> None:
    section: tuple[Setting, ...] | None = None
    assert spans(ours), theirs
    for name in spans(ours):
        if name in SECTIONS:
            section = SECTIONS[name]
        elif name.startswith("dblog "):
            check_command(name)
        elif name.startswith("dblog_"):
            assert name in METRIC_NAMES
        elif name.startswith("_"):
            assert name in RESERVED
        elif section is not None:
            assert name in {s.name for s in section} | VALUES, f"{theirs}: {name}"
        else:
            assert name in OPTION_NAMES | SINK_SETTINGS | VALUES, f"{theirs}: {name}"


def check_command(text: str) -> None:
    """Raise unless the command can be parsed. One that is only named needs no arguments."""
    words, command = shlex.split(text)[1:], main_command()
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    assert command is not main_command(), text
    if words:
        command.make_context(command.name, words)


def test_other_commands_settings_routes_and_errors_of_the_page_exist() -> None:
    for text in re.findall(r"`(dblog [^`]+)`", PAGE):
        check_command(text)
    paths = create_app(open_store).openapi()["paths"]
    for method, path in re.findall(r"`(GET|POST) (/[^`]+)`", PAGE):
        assert method.lower() in paths[path]
    assert hasattr(errors, "PositionLost")
    notes = " ".join(row[2] for row in ROWS)
    settings = {s.name for section in SECTIONS.values() for s in section} | {s.name for s in THROTTLE}
    known = OPTION_NAMES | SINK_SETTINGS | settings | VALUES | set(SINKS) | RESERVED
    ours = {
        "select_seconds",
        "streamInProgress",
        "catchUp",
        "dates",
        "columns",
        "partitions",
        "before",
        "sinks",
        "where",
    }
    assert ours <= known
    assert all(f"`{name}`" in notes for name in ours)


def test_the_file_is_one_that_can_be_read(tmp_path: Path) -> None:
    (content,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "secret").write_text("secret-7")
    (tmp_path / "shop.toml").write_text(content.replace("/run/secrets/db", str(tmp_path / "secret")))
    config = read_config(tmp_path / "shop.toml")
    assert [(sink.kind, sink.settings["format"]) for sink in config.sinks] == [("kafka", "debezium")]
    assert [route.mask for route in config.sinks[0].routes] == [{"email": "sha256"}]


def test_a_name_that_does_not_exist_is_found() -> None:
    with pytest.raises(AssertionError):
        test_every_name_of_ours_exists("x", "`chunkRow`")
    with pytest.raises(AssertionError):
        test_every_name_of_ours_exists("x", "`[pipeline]` `evry`")
    with pytest.raises(AssertionError):
        test_every_name_of_ours_exists("x", "`dblog_lags`")
