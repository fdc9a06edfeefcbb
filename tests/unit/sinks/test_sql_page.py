"""The page of the sink `sql` says what is true; its settings are checked before anything is connected."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog.core.settings import read_settings
from dblog.errors import ConfigError
from dblog.sinks.base import SinkContext
from dblog.sinks.sql import SqlSink

PAGE = (Path(__file__).parents[3] / "docs/sinks/sql.md").read_text()


@pytest.mark.parametrize("setting", SqlSink.settings, ids=lambda s: s.name)
def test_every_setting_is_on_the_page_as_the_code_has_it(setting: object) -> None:
    shown = "" if setting.required or setting.default is None else setting.default  # type: ignore[attr-defined]
    assert f"| `{setting.name}` | {setting.kind.takes} | {setting.about} | {shown} |" in PAGE  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "url", ["oracle://u:secret@h/d", "postgresql://u:secret@h", "mysql://u:secret@h:x/d", "secret"]
)
def test_a_wrong_url_is_refused_and_not_shown(url: str) -> None:
    given = read_settings("sink", {"url": url}, SqlSink.settings)
    with pytest.raises(ConfigError) as refused:
        SqlSink(given, SinkContext("p", Path()))
    assert "secret" not in str(refused.value)
    assert "url" in str(refused.value)
