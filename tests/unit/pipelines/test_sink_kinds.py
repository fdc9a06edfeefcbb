"""The kinds of sinks are what they are said to be."""

from __future__ import annotations

import pytest

from dblog.core.settings import Setting
from dblog.errors import ConfigError
from dblog.pipelines.sink_kinds import SINKS, sink_class
from dblog.sinks.base import Sink


@pytest.mark.parametrize("kind", SINKS)
def test_a_kind_is_a_sink_whose_settings_do_not_take_the_names_that_all_have(kind: str) -> None:
    found = sink_class(kind)
    assert issubclass(found, Sink)
    assert all(isinstance(s, Setting) for s in found.settings)
    names = [s.name for s in found.settings]
    assert len(set(names)) == len(names)
    assert not {"type", "name", "enabled"} & set(names)


def test_an_unknown_kind_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no sink of the type 'kafak'") as caught:
        sink_class("kafak")
    assert "did you mean 'kafka'?" in str(caught.value)
