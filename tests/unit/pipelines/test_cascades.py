from __future__ import annotations

import pytest

from dblog.core.names import parse_patterns
from dblog.errors import ConfigError
from dblog.pipelines.cascades import cascade_option, check_cascade_routes
from dblog.sinks.base import APPLIED, DELIVERED, UNKNOWN
from dblog.sinks.route import Route
from dblog.spark.options import read_options
from tests.unit.core.test_cascades import C_G, P_C, rules


def test_cascades_are_followed_if_every_sink_can_apply_them() -> None:
    assert cascade_option({}, {"a": APPLIED, "b": APPLIED}) == {"cascades": "follow"}
    assert cascade_option({}, {"a": APPLIED, "b": DELIVERED}) == {"cascades": "skip"}
    assert cascade_option({"Cascades": "stop"}, {"a": UNKNOWN}) == {}
    assert cascade_option({"cascades": "follow"}, {"a": APPLIED, "b": DELIVERED}) == {}
    with pytest.raises(ConfigError, match="the sink 'b' can neither apply nor deliver"):
        cascade_option({"cascades": "follow"}, {"a": APPLIED, "b": UNKNOWN})


def test_a_stream_without_a_sink_cannot_follow_cascades() -> None:
    given = {"url": "mysql://u@h/shop", "tables": "shop.*"}
    assert read_options(given).own["cascades"] == "skip"
    with pytest.raises(ConfigError, match="only the sinks of a pipeline can apply"):
        read_options({**given, "cascades": "follow"})


@pytest.mark.parametrize(
    "route",
    [
        {"where": "id > 3"},
        {"exclude": ("up",)},
        {"rename": {"up": "x"}},
        {"mask": {"up": "null"}},
        {"include": ("id",)},
    ],
)
def test_a_route_must_keep_the_columns_that_rules_need(route: dict[str, object]) -> None:
    [pattern] = parse_patterns("shop.c")
    with pytest.raises(ConfigError, match="the sink cannot follow this with the route"):
        check_cascade_routes(rules(P_C, C_G), [Route(pattern, **route)])  # type: ignore[arg-type]


def test_a_route_may_do_anything_else() -> None:
    [child], [parent] = parse_patterns("shop.c"), parse_patterns("shop.p")
    routes = [Route(child, include=("up",), target="other"), Route(parent, where="id > 3", exclude=("up",))]
    check_cascade_routes(rules(P_C, C_G), routes)
