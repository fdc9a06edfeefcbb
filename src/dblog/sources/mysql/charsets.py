"""Text in every character set of the servers, to UTF-8.

The server converts the rows of a dump to UTF-8; the log has the stored bytes. Both must give the same text, so
differences between a Python codec and the server are listed here. A byte without a character becomes a question mark,
as on the server.
"""

# ruff: noqa: RUF001 (tables of characters that look like others)
from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dblog.core.arrays import Bytes
from dblog.errors import DecodeError
from dblog.sources import columns
from dblog.sources.columns import Cells
from dblog.sources.unfit import Unfit


class NotText(DecodeError):
    """Bytes that are not text in their character set."""


@dataclass(frozen=True)
class Charset:
    """A character set."""

    name: str
    codec: str
    """The nearest Python codec."""
    width: int = 1
    """Bytes of the widest character. CHAR(n) has at most n times as many bytes."""
    differs: dict[int, str] = field(default_factory=dict, compare=False)
    """Characters that differ from the codec's, by their code."""
    ascii: bool = True
    """Whether bytes below 128, outside of wider characters, are ASCII."""
    lead: dict[range, int] = field(default_factory=dict, compare=False)
    """The first bytes of wider characters, and their widths."""
    wider: range = range(0)
    """Second bytes that double the width."""

    def decode(self, value: bytes) -> str:
        if self.width == 1:
            return "".join(map(self._characters.__getitem__, value))
        try:
            text = value.decode(self.codec)
            if self.name == "ucs2" and max(text, default="") > "\uffff":
                raise NotText(f"{text!r} is not text in ucs2, which has no surrogates")
            if self._doubtful.isdisjoint(text):
                return text
        except UnicodeDecodeError as error:
            if not self.lead:
                raise NotText(f"{value!r} is not text in {self.name}: {error.reason}") from error
        return "".join(self._each(value))

    def _each(self, value: bytes) -> Iterator[str]:
        """The characters one by one, as the server decodes them."""
        at = 0
        while at < len(value):
            size = next((size for leads, size in self.lead.items() if value[at] in leads), 1)
            if value[at + 1 : at + 2] and value[at + 1] in self.wider:
                size *= 2
            character = value[at : at + size]
            if len(character) < size:
                raise NotText(f"{value!r} is not text in {self.name}: its last character is incomplete")
            found = self.differs.get(int.from_bytes(character))
            yield found or character.decode(self.codec, "replace").replace("\ufffd", "?")[0]
            at += size

    @cached_property
    def _doubtful(self) -> frozenset[str]:
        """The characters that Python's codec decodes differently from the server."""
        found = set()
        for code in self.differs:
            with suppress(UnicodeDecodeError):
                found.add(code.to_bytes((code.bit_length() + 7) // 8).decode(self.codec))
        return frozenset(found)

    @cached_property
    def _characters(self) -> list[str]:
        """The character of each byte."""
        known = [bytes([byte]).decode(self.codec, "replace").replace("\ufffd", "?") for byte in range(256)]
        return [self.differs.get(byte, character) for byte, character in enumerate(known)]

    @cached_property
    def _table(self) -> tuple[Bytes, Bytes]:
        """The UTF-8 text of each byte's character, and its length in bytes."""
        encoded = [character.encode() for character in self._characters]
        filled = b"".join(value.ljust(3, b"\0") for value in encoded)
        return np.frombuffer(filled, np.uint8).reshape(256, 3), np.array([len(value) for value in encoded], np.uint8)

    def strings(self, cells: Cells) -> pa.Array:
        """A column of text in this character set."""
        if self.codec == "utf-8":
            return columns.strings(cells)
        stored = columns.binary(cells)
        content, ends = columns.contiguous(stored)
        if self.ascii and content.max(initial=0) < 128:
            return stored.cast(pa.string())
        if self.width == 1:
            return self._mapped(content, ends.astype(np.int64), cells)
        distinct = stored.dictionary_encode()
        texts: list[str | None] = []
        for value in distinct.dictionary.to_pylist():
            try:
                texts.append(self.decode(value))
            except NotText:
                texts.append(None)
        if None in texts:
            invalid = [n for n, text in enumerate(texts) if text is None]
            wrong = np.isin(distinct.indices.fill_null(-1).to_numpy(), invalid)
            message = f"a value is not text in {self.name}"
            raise Unfit(message, wrong, lambda row: "\\x" + stored[row].as_py().hex())
        return pa.array(texts, pa.string()).take(distinct.indices)

    def _mapped(self, content: Bytes, ends: npt.NDArray[np.int32], cells: Cells) -> pa.Array:
        characters, sizes = self._table
        size = sizes[content].astype(np.int64)
        after = np.append(0, np.cumsum(size))
        made = np.empty(after[-1], np.uint8)
        for nth in range(3):
            has = np.flatnonzero(size > nth)
            made[after[has] + nth] = characters[content[has], nth]
        bitmap, nulls = columns.validity(cells.valid)
        if after[-1] >= 2**31:
            raise DecodeError(
                f"one batch has {after[-1]} bytes of text, which is too many", hint="decode fewer rows at once"
            )
        buffers = [bitmap, pa.py_buffer(after[ends].astype(np.int32)), pa.py_buffer(made)]
        return pa.Array.from_buffers(pa.string(), len(cells), buffers, nulls)


_ARMSCII8 = "".join(map(chr, range(128, 161))) + (
    "❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ’'"
)
_GEOSTD8 = (
    "€?‚?„…†‡?‰?‹?????‘’“”•–—???›????\u00a0¡¢£¤¥¦§¨©ª«¬\u00ad®¯°±²³´µ¶·¸¹º»¼½¾¿"
    "აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ???????????????????????№??"
)
_KEYBCS2 = (
    "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐"
    "└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u00a0"
)


def _upper(characters: str) -> dict[int, str]:
    return dict(enumerate(characters, 128))


_LATIN1 = {byte: chr(byte) for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}
_CP1256 = dict.fromkeys((0x8A, 0x8F, 0x98, 0x9A, 0x9F, 0xAA, 0xC0, 0xFF), "?")
_DEC8 = dict.fromkeys((0xA4, 0xA6, *range(0xAC, 0xB0), 0xB4, 0xB8, 0xBE, 0xD0, 0xDE, 0xF0, 0xFE, 0xFF), "?")
_DEC8 |= {0xA8: "¤", 0xD7: "Œ", 0xDD: "Ÿ", 0xF7: "œ", 0xFD: "ÿ"}
_GREEK = {0xA1: "\u02bd", 0xA2: "\u02bc", 0xA4: "?", 0xA5: "?", 0xAA: "?"}
_SWE7 = dict(zip(b"@[\\]^`{|}~\x7f", "ÉÄÖÅÜéäöåü?", strict=True))
_TIS620 = dict.fromkeys((0xA0, *range(0xDB, 0xDF), *range(0xFC, 0x100)), "\ufffd")
_GB18030 = {0xA8BC: "\u1e3f", 0x8135F437: "\ue7c7"}
_BIG5 = dict.fromkeys((0xA15A, 0xA1C3, 0xA1C5, 0xA1FE, 0xA240, 0xA2CC, 0xA2CE), "\ufffd")
_BIG5 |= dict(enumerate("碁銹裏墻恒粧嫺", 0xF9D6))


def _user_defined(plane: int, first: int) -> dict[int, str]:
    """Ten rows of 94 characters for private use, in EUC."""
    codes = [plane | row << 8 | cell for row in range(0xF5, 0xFF) for cell in range(0xA1, 0xFF)]
    return dict(zip(codes, map(chr, range(first, first + len(codes))), strict=True))


_UJIS = {0xA1C0: "\\"} | _user_defined(0, 0xE000) | _user_defined(0x8F0000, 0xE3AC)
_NEC = {0xADA1 + cell: bytes([0x87, 0x40 + cell + (cell > 62)]).decode("cp932", "replace") for cell in range(94)}
_IBM = (
    "\u2170\u2171\u2172\u2173\u2174\u2175\u2176\u2177\u2178\u2179\u2160\u2161\u2162\u2163\u2164\u2165\u2166\u2167"
    "\u2168\u2169\uff07\uff02\u3231\u2116\u2121\u70bb\u4efc\u50f4\u51ec\u5307\u5324\ufa0e\u548a\u5759\ufa0f\ufa10"
    "\u589e\u5bec\u5cf5\u5d53\ufa11\u5fb7\u6085\u6120\u654e\u663b\u6665\ufa12\uf929\u6801\ufa13\ufa14\u6a6b\u6ae2"
    "\u6df8\u6df2\u7028\ufa15\ufa16\u7501\u7682\u769e\ufa17\u7930\ufa18\ufa19\ufa1a\ufa1b\u7ae7\ufa1c\ufa1d\u7da0"
    "\u7dd6\ufa1e\u8362\ufa1f\u85b0\ufa20\ufa21\u8807\ufa22\u8b7f\u8cf4\u8d76\ufa23\ufa24\ufa25\u90de\ufa26\u9115"
    "\ufa27\ufa28\u9592\uf9dc\ufa29\u973b\u974d\u9751\ufa2a\ufa2b\ufa2c\u999e\u9ad9\u9b72\ufa2d\u9ed1"
)
_EUCJPMS = {code: character for code, character in _NEC.items() if "\ufffd" not in character}
_EUCJPMS |= {0xA1C1: "～", 0xA1C2: "∥", 0xA1DD: "－", 0xA1F1: "￠", 0xA1F2: "￡", 0xA2CC: "￢"}
_EUCJPMS |= {0x8FA2B7: "～", 0x8FA2C3: "￤"} | dict(
    zip((*range(0x8FF3F3, 0x8FF3FF), *range(0x8FF4A1, 0x8FF4FF)), _IBM, strict=True)
)
_EUCJPMS |= _user_defined(0, 0xE000) | _user_defined(0x8F0000, 0xE3AC)
_CP932 = dict.fromkeys((0x80, 0xA0, 0xFD, 0xFE, 0xFF), "?")

_DOUBLE = {range(0x81, 0xFF): 2}
_SHIFT = {range(0x81, 0xA0): 2, range(0xE0, 0xFD): 2}
_EUC = {range(0x8E, 0x8F): 2, range(0x8F, 0x90): 3, range(0xA1, 0xFF): 2}

CHARSETS: dict[str, Charset] = {
    charset.name: charset
    for charset in (
        Charset("binary", "latin-1"),
        Charset("ascii", "ascii"),
        Charset("utf8mb3", "utf-8", 3),
        Charset("utf8mb4", "utf-8", 4),
        Charset("ucs2", "utf-16-be", 2, ascii=False),
        Charset("utf16", "utf-16-be", 4, ascii=False),
        Charset("utf16le", "utf-16-le", 4, ascii=False),
        Charset("utf32", "utf-32-be", 4, ascii=False),
        Charset("latin1", "cp1252", differs=_LATIN1),
        Charset("latin2", "iso8859-2"),
        Charset("latin5", "iso8859-9"),
        Charset("latin7", "iso8859-13"),
        Charset("cp850", "cp850"),
        Charset("cp852", "cp852"),
        Charset("cp866", "cp866", differs={0xFC: "ⁿ", 0xFD: "²"}),
        Charset("cp1250", "cp1250"),
        Charset("cp1251", "cp1251"),
        Charset("cp1256", "cp1256", differs=_CP1256),
        Charset("cp1257", "cp1257"),
        Charset("dec8", "latin-1", differs=_DEC8),
        Charset("hp8", "hp-roman8"),
        Charset("koi8r", "koi8-r"),
        Charset("koi8u", "koi8-u", differs={0x95: "•"}),
        Charset("swe7", "ascii", differs=_SWE7, ascii=False),
        Charset("hebrew", "iso8859-8", differs={0xAF: "‾"}),
        Charset("greek", "iso8859-7", differs=_GREEK),
        Charset("tis620", "tis-620", differs=_TIS620),
        Charset("armscii8", "latin-1", differs=_upper(_ARMSCII8)),
        Charset("geostd8", "latin-1", differs=_upper(_GEOSTD8)),
        Charset("keybcs2", "latin-1", differs=_upper(_KEYBCS2)),
        Charset("macce", "mac-latin2"),
        Charset("macroman", "mac-roman"),
        Charset("big5", "big5", 2, _BIG5, lead=_DOUBLE),
        Charset("gb2312", "gb2312", 2, lead=_DOUBLE),
        Charset("gbk", "gbk", 2, lead=_DOUBLE),
        Charset("gb18030", "gb18030", 4, _GB18030, lead=_DOUBLE, wider=range(0x30, 0x3A)),
        Charset("euckr", "cp949", 2, lead=_DOUBLE),
        Charset("sjis", "shift-jis", 2, {0x815F: "\\"}, lead=_SHIFT),
        Charset("cp932", "cp932", 2, _CP932, lead=_SHIFT),
        Charset("ujis", "euc-jp", 3, _UJIS, lead=_EUC),
        Charset("eucjpms", "euc-jp", 3, _EUCJPMS, lead=_EUC),
    )
}

_COLLATIONS: dict[str, tuple[int, ...]] = {
    "big5": (1, 84),
    "latin2": (2, 9, 21, 27, 77),
    "dec8": (3, 69),
    "cp850": (4, 80),
    "latin1": (5, 8, 15, 31, 47, 48, 49, 94),
    "hp8": (6, 72),
    "koi8r": (7, 74),
    "swe7": (10, 82),
    "ascii": (11, 65),
    "ujis": (12, 91),
    "sjis": (13, 88),
    "cp1251": (14, 23, 50, 51, 52),
    "hebrew": (16, 71),
    "tis620": (18, 89),
    "euckr": (19, 85),
    "latin7": (20, 41, 42, 79),
    "koi8u": (22, 75),
    "gb2312": (24, 86),
    "greek": (25, 70),
    "cp1250": (26, 34, 44, 66, 99),
    "gbk": (28, 87),
    "cp1257": (29, 58, 59),
    "latin5": (30, 78),
    "armscii8": (32, 64),
    "utf8mb3": (33, 76, 83, *range(192, 224), *range(576, 608)),
    "ucs2": (35, 90, *range(128, 160), *range(640, 672)),
    "cp866": (36, 68),
    "keybcs2": (37, 73),
    "macce": (38, 43),
    "macroman": (39, 53),
    "cp852": (40, 81),
    "utf8mb4": (45, 46, *range(224, 248), *range(255, 400), *range(608, 640)),
    "utf16": (54, 55, *range(101, 128), *range(672, 704)),
    "utf16le": (56, 62),
    "cp1256": (57, 67),
    "utf32": (60, 61, *range(160, 192), *range(736, 768)),
    "binary": (63,),
    "geostd8": (92, 93),
    "cp932": (95, 96),
    "eucjpms": (97, 98),
    "gb18030": (248, 249, 250),
}
_BY_COLLATION = {collation: CHARSETS[name] for name, numbers in _COLLATIONS.items() for collation in numbers}
_NOPAD = 1024
"""On MariaDB the number of a collation without padding is that of the same collation with padding, plus this."""
_UCA1400, _EACH = 2048, 256
"""The first number of MariaDB's UCA 14.0.0 collations, and how many numbers each character set of `_UNICODE` has."""
_UNICODE = ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")
"""The character sets of the UCA 14.0.0 collations, in the order of the numbers."""


@cache
def charset(collation: int) -> Charset:
    """The character set of a collation, which is given by its number. Raises DecodeError."""
    if collation >= _UCA1400 and (collation - _UCA1400) // _EACH < len(_UNICODE):
        return CHARSETS[_UNICODE[(collation - _UCA1400) // _EACH]]
    found = _BY_COLLATION.get(collation - _NOPAD if _NOPAD <= collation < _UCA1400 else collation)
    if found is None:
        raise DecodeError(f"a column has the unknown collation {collation}", hint="update dblog")
    return found
