"""Checks before every route: the token, the host, and the size of the body."""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 1024 * 1024

OPEN = ("/health", "/health/live", "/health/ready")
"""Health probes, open without a token."""


def problem(status: int, error: str, hint: str | None = None, headers: dict[str, str] | None = None) -> JSONResponse:
    """An answer with an error and a hint."""
    # A request may contain half a surrogate pair, which cannot be encoded.
    error = error.encode(errors="backslashreplace").decode()
    return JSONResponse({"error": error, "hint": hint}, status, headers)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is a loopback address, which other machines cannot reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Gate:
    """Refuses a request without the token. If no token is set, the host and origin of a request must be this machine.
    So a web page of another site cannot use the API through the user's browser."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app = app
        self._expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None
        if scope["type"] == "http" and scope["path"] not in OPEN:
            refusal = self._without_token(Headers(scope=scope)) if self._expected is None else self._with_token(scope)
        await (refusal or self.app)(scope, receive, send)

    def _with_token(self, scope: Scope) -> JSONResponse | None:
        assert self._expected is not None
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        if scheme.lower() == b"bearer" and hmac.compare_digest(b"Bearer " + token.strip(), self._expected):
            return None
        return problem(
            401,
            "the request has no valid token",
            "send the token in the header Authorization: Bearer <token>",
            {"www-authenticate": 'Bearer realm="dblog"'},
        )

    def _without_token(self, headers: Headers) -> JSONResponse | None:
        try:
            named = [urlsplit("//" + headers.get("host", ""))]
            if "origin" in headers:
                named.append(urlsplit(headers["origin"]))
            if all(is_loopback(each.hostname or "") for each in named) and len({n.netloc for n in named}) == 1:
                return None
        except ValueError:
            pass
        return problem(403, "without a token, only this machine may send requests", "serve with a token")


class Limit:
    """Refuses a body that is too large, with or without a Content-Length."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        said = Headers(scope=scope).get("content-length", "")
        left = MOST_BYTES
        if said.isdecimal() and int(said) > MOST_BYTES:
            left = -1

        async def receive_some() -> Message:
            nonlocal left
            if left >= 0:
                message = await receive()
                left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"the body has more than {MOST_BYTES} bytes")
            return message

        await self.app(scope, receive_some, send)
