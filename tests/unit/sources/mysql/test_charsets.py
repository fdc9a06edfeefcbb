"""Character sets: every collation has one, and text comes out as characters. Compared with a server elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog.errors import DecodeError
from dblog.sources.columns import Cells, Raw
from dblog.sources.mysql.charsets import CHARSETS, charset


def cells(values: Sequence[bytes | None]) -> Cells:
    raw, start, size = Raw.join([value or b"" for value in values])
    return Cells(raw, start, np.where([value is None for value in values], -1, size).astype(np.int64))


SINGLE = sorted(name for name, made in CHARSETS.items() if made.width == 1)


@pytest.mark.parametrize("name", SINGLE)
@given(values=st.lists(st.none() | st.binary(max_size=20)))
def test_a_column_is_what_its_bytes_stand_for(name: str, values: list[bytes | None]) -> None:
    made = CHARSETS[name].strings(cells(values))
    made.validate(full=True)
    assert made.type == pa.string()
    assert made.to_pylist() == [None if value is None else CHARSETS[name].decode(value) for value in values]


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("latin1", b"\x80\x81\xe9", "€\x81é"),
        ("swe7", b"[\\]", "ÄÖÅ"),
        ("koi8r", b"\xf0\xd2\xc9", "При"),
        ("ascii", b"a\xff", "a?"),
        ("utf16", b"\xd8\x3d\xde\x00", "😀"),
        ("utf16le", b"a\0", "a"),
        ("utf32", b"\0\1\xf6\0", "😀"),
        ("ucs2", b"\0a\x6f\x22", "a漢"),
        ("gbk", b"a\xb2\xe2", "a测"),
        ("big5", b"\xba\x7e", "漢"),
        ("sjis", b"\x8a\xbf\xb1", "漢ｱ"),
        ("cp932", b"\x87\x40", "①"),
        ("ujis", b"\xb4\xc1\x8e\xb1", "漢ｱ"),
        ("euckr", b"\xc7\xd1", "한"),
        ("gbk", b"\xa2\xa1\xff", "\u2170?"),
        ("big5", b"a\xa2\xcc\xf9\xd6", "a\ufffd碁"),
        ("sjis", b"\x81\x5f\\", "\\\\"),
        ("eucjpms", b"~\xad\xa1\xa1\xc1\x8f\xf4\xb8\xf5\xa1", "~①\uff5e\ufa10\ue000"),
        ("gb18030", b"\x94\x39\xfc\x36", "😀"),
        ("gb18030", b"a\xa8\xbc\x94\x39\xfc\x36\x81\x35\xf4\x37", "a\u1e3f😀\ue7c7"),
        ("utf8mb4", "😀".encode(), "😀"),
        ("tis620", b"\xa1", "\u0e01"),
        ("keybcs2", b"\x80", "Č"),
        ("geostd8", b"\xc0", "\u10d0"),
        ("armscii8", b"\xb2", "\u0531"),
    ],
)
def test_text_in_each(name: str, value: bytes, shown: str) -> None:
    assert CHARSETS[name].strings(cells([value, None, b""])).to_pylist() == [shown, None, ""]
    assert CHARSETS[name].decode(value) == shown


def test_what_is_no_text_is_refused() -> None:
    for name, value in (("gbk", b"a\x81"), ("utf16", b"\xd8\0"), ("ujis", b"\x8e"), ("ucs2", b"\xd8\x3d\xde\0")):
        with pytest.raises(DecodeError, match=name):
            CHARSETS[name].strings(cells([value]))
    with pytest.raises(pa.ArrowInvalid):
        CHARSETS["utf8mb4"].strings(cells([b"\xff"]))


@pytest.mark.parametrize(
    ("collation", "name"),
    [(8, "latin1"), (1032, "latin1"), (45, "utf8mb4"), (255, "utf8mb4"), (309, "utf8mb4"), (1069, "utf8mb4"),
     (2048, "utf8mb3"), (2304, "utf8mb4"), (63, "binary"), (608, "utf8mb4"), (576, "utf8mb3"), (128, "ucs2")],
)  # fmt: skip
def test_collations_belong_to_a_character_set(collation: int, name: str) -> None:
    assert charset(collation).name == name


@pytest.mark.parametrize("collation", [0, 17, 500, 1500, 9999])
def test_an_unknown_collation_is_refused(collation: int) -> None:
    with pytest.raises(DecodeError, match=str(collation)):
        charset(collation)
