"""Numbers as people read them."""

from __future__ import annotations

import pytest

from dblog.cli.number_format import bar, count, duration, size


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "?"),
        (0.0, "0 ms"),
        (0.0154, "15 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (250, "4 min 10 s"),
        (3599.9, "1 h"),
        (7500, "2 h 5 min"),
        (86_399.9, "1 d"),
        (273_600, "3 d 4 h"),
    ],
)
def test_a_duration(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("nbytes", "words"), [(None, "?"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_a_size(nbytes: int | None, words: str) -> None:
    assert size(nbytes) == words


def test_a_bar_is_full_only_at_the_end() -> None:
    assert bar(0.999, 4) == "███░  99%"
    assert (bar(1.0, 4), bar(3.0, 4), bar(None)) == ("████ 100%", "████ 100%", "")


def test_a_count() -> None:
    assert (count(1234567), count(None)) == ("1,234,567", "?")
