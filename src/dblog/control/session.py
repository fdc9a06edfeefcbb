"""Who sends a request: the tokens, their roles, and the cookie that a browser gets in exchange for a token.

The cookie holds the role, a name and the time of its end, signed with a key made from the token. So no server keeps a
list of sessions, several servers with the same token accept it, and another token ends all of them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from dataclasses import dataclass
from typing import Any, Literal

from dblog.errors import ConfigError

COOKIE = "dblog_session"
SESSION_SECONDS = 12 * 3600
"""How long a browser stays signed in, in seconds."""
PAGE_HEADER = "x-dblog-page"
"""The header that a request with the cookie needs if it changes something. A page of another site cannot send it."""

Role = Literal["operator", "reader"]


@dataclass(frozen=True)
class Caller:
    """Who sends a request. `reader` may only read."""

    role: Role
    name: str
    """The name that is recorded with an action."""


LOCAL = Caller("operator", "this machine")
"""The caller of a server without a token: such a server can be reached from this machine only."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a server: one for operators, and one for callers that may only read."""

    operator: str
    reader: str | None = None

    @staticmethod
    def of(operator: str | None, reader: str | None) -> Tokens | None:
        """The tokens; None if there are none. Raises ConfigError."""
        if any(token is not None and not token.strip() for token in (operator, reader)):
            raise ConfigError("the token is empty", hint="set a token, or leave it out to serve this machine only")
        if operator is None and reader is not None:
            raise ConfigError("there is a token to read, but none for operators", hint="set the operators' token too")
        if operator is not None and operator == reader:
            raise ConfigError("the token to read is the operators' token", hint="set two different tokens")
        return None if operator is None else Tokens(operator, reader)

    def role(self, token: bytes) -> Role | None:
        """The role of a token; None for a wrong one."""
        found: Role | None = None
        if hmac.compare_digest(token, self.operator.encode()):
            found = "operator"
        if self.reader is not None and hmac.compare_digest(token, self.reader.encode()):
            found = "reader"
        return found

    def cookie(self, caller: Caller, now: float | None = None) -> str:
        """The value of a cookie for a caller."""
        ends = int((time.time() if now is None else now) + SESSION_SECONDS)
        said = json.dumps({"role": caller.role, "name": caller.name, "ends": ends}).encode()
        return f"{_text(said)}.{_text(self._signature(caller.role, said))}"

    def caller(self, cookie: str, now: float | None = None) -> Caller | None:
        """The caller of a cookie; None if it was not made with these tokens, or has ended."""
        said, _, signature = cookie.partition(".")
        try:
            content = base64.urlsafe_b64decode(said + "=" * (-len(said) % 4))
            given = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
            value: Any = json.loads(content)
            role, name, ends = value["role"], value["name"], value["ends"]
        except (ValueError, KeyError, TypeError):
            return None
        known = role == "operator" or (role == "reader" and self.reader is not None)
        if not known or not hmac.compare_digest(given, self._signature(role, content)):
            return None
        return Caller(role, name) if (time.time() if now is None else now) < ends else None

    def _signature(self, role: Role, said: bytes) -> bytes:
        token = self.operator if role == "operator" else self.reader or ""
        key = hashlib.sha256(b"dblog session " + role.encode() + b" " + token.encode()).digest()
        return hmac.digest(key, said, "sha256")


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
