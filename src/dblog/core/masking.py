"""Masking: replace secrets in texts that people see."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "***"
LONG = 8
"""Length from which a secret is masked everywhere, also inside of words. A shorter secret may be part of ordinary
words, so it is masked only where it stands alone."""

_LOGIN = re.compile(r"\w+://[^/@:\s]*:([^@\s]+)@")
"""The password of a URL."""
_BEFORE = r"(?:(?<!\w)|(?<=\\[nrt]))"
"""The start of a word: no letter before it, or an escaped line end."""


def has_password(url: str) -> bool:
    """Whether a text is a URL with a password."""
    return _LOGIN.match(url) is not None


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
