"""The page on upgrades has the version, and names settings, options, metrics and sections that exist."""

from __future__ import annotations

import re
from pathlib import Path

import dblog
from dblog import errors
from dblog.control.metrics import METRICS
from dblog.core.offset import ASIDE_VERSION, VERSION
from dblog.core.throttle import SETTINGS as THROTTLE
from dblog.pipelines.file_settings import PIPELINE, SOURCE
from dblog.pipelines.sink_kinds import SINKS, sink_class
from dblog.spark.options import OPTIONS
from tests.unit.test_docs_cli import commands

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/upgrading.md").read_text()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


def sections(page: str) -> list[str]:
    return re.findall(r"^## (.+)$", page, re.MULTILINE)


def test_every_version_of_the_changelog_has_a_section() -> None:
    versions = [title.split()[0] for title in sections(CHANGELOG)]
    assert versions[:2] == ["Unreleased", dblog.__version__]
    assert [title for title in sections(PAGE) if title in versions] == versions
    assert f"the newest release is {dblog.__version__}." in PAGE


def test_the_format_of_offsets_is_the_present_one() -> None:
    assert f"in format {VERSION}," in PAGE
    assert f"in format {ASIDE_VERSION}." in PAGE


def test_what_is_named_exists() -> None:
    options = {option.name for option in OPTIONS} | {s.name for s in (*PIPELINE, *SOURCE, *THROTTLE)}
    options |= {s.name for kind in SINKS for s in sink_class(kind).settings}
    assert {"unsuitable", "catchUp", "streamInProgress", "max_delay_seconds", "writer", "every", "slot"} <= options
    for name in re.findall(r"set `(\w+)(?: = [^`]+)?`|`(\w+)` to `", PAGE):
        assert (name[0] or name[1]) in options, name
    for name in re.findall(r"`(dblog_\w+)`", PAGE):
        assert name in {metric.name for metric in METRICS}
    for name in re.findall(r"`dblog ([a-z]+)", PAGE):
        assert name in commands()
    assert hasattr(errors, "PositionLost")
