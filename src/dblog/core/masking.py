"""Masking: texts for people without the secrets in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "***"
LONG = 8
"""Characters from which on a secret is masked wherever its letters are. A shorter one may be part of many words: it is
masked where it stands alone."""

_LOGIN = re.compile(r"\w+://[^/@:\s]*:([^@\s]+)@")
"""The password of a URL."""
_BEFORE = r"(?:(?<!\w)|(?<=\\[nrt]))"
"""The start of a word: no word before it, or the end of an escaped line."""


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with `***` in place of each secret, as it is and as it is quoted in URLs, Python and JSON."""
    forms = sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True)
    return re.sub("|".join(map(_pattern, forms)), HIDDEN, text) if forms else text


def _forms(secret: str) -> Iterator[str]:
    known = [str(secret)]
    if found := _LOGIN.match(secret):
        known += [found[1], unquote(found[1])]
    for each in known:
        quoted = quote(each, safe=""), quote_plus(each), each.replace("'", "\\'")
        escaped = (json.dumps(each, ensure_ascii=plain)[1:-1] for plain in (False, True))
        yield from filter(None, (each, *quoted, *escaped, str.__repr__(each)[1:-1]))


def _pattern(form: str) -> str:
    if len(form) >= LONG:
        return re.escape(form)
    before = _BEFORE if re.match(r"\w", form) else ""
    after = r"(?!\w)" if re.match(r"\w", form[-1]) else ""
    return before + re.escape(form) + after
