"""Checks before every route: the caller, the host, and the size of the body."""

from __future__ import annotations

import ipaddress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dblog.control.session import COOKIE, LOCAL, PAGE_HEADER, Caller, Tokens

MOST_BYTES = 1024 * 1024

OPEN = ("/health", "/health/live", "/health/ready")
"""Health probes, open without a token."""

SESSION = "/api/v1/session"
SIGN_IN, SIGN_OUT = (SESSION, "POST"), (SESSION, "DELETE")


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
    """Refuses a request without a token or a session cookie, and one that changes something for a caller that may only
    read. If no token is set, the host and origin of a request must be this machine. So a web page of another site
    cannot use the API through the user's browser. The caller is in the state of the request."""

    def __init__(self, app: ASGIApp, tokens: Tokens | None) -> None:
        self.app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None
        if scope["type"] == "http" and scope["path"] not in OPEN:
            found = self._caller(scope)
            if isinstance(found, JSONResponse):
                refusal = found
            else:
                scope.setdefault("state", {})["caller"] = found
        await (refusal or self.app)(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller | JSONResponse | None:
        """Who sends the request, or why it is refused; None for the page and for signing in, which need no token."""
        headers = Headers(scope=scope)
        if self._tokens is None:
            return self._without_token(headers) or LOCAL
        if is_page(scope["path"]) or (scope["path"], scope["method"]) == SIGN_IN:
            return None
        reads = scope["method"] in ("GET", "HEAD")
        if "authorization" in headers:
            caller = self._with_token(self._tokens, scope)
        else:
            caller = self._with_cookie(self._tokens, headers)
            if caller is not None and not reads and not _from_our_page(headers):
                return problem(403, "the request does not come from the page", f"send the header {PAGE_HEADER}: 1")
        if caller is None:
            return problem(
                401,
                "the request has no valid token",
                "send the token in the header Authorization: Bearer <token>",
                {"www-authenticate": 'Bearer realm="dblog"'},
            )
        if caller.role == "reader" and not reads and (scope["path"], scope["method"]) != SIGN_OUT:
            return problem(403, "this token may only read", "use the operators' token")
        return caller

    def _with_token(self, tokens: Tokens, scope: Scope) -> Caller | None:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        role = tokens.role(token.strip()) if scheme.lower() == b"bearer" else None
        return None if role is None else Caller(role, f"{role} at {address(scope)}")

    def _with_cookie(self, tokens: Tokens, headers: Headers) -> Caller | None:
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return None
        return tokens.caller(cookies[COOKIE].value) if COOKIE in cookies else None

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


def is_page(path: str) -> bool:
    """Whether a path is the page or a file of it. They contain no data, so they need no token."""
    return path == "/" or path.startswith("/page/")


def address(scope: Scope) -> str:
    """The address of the client."""
    return str(scope["client"][0]) if scope.get("client") else "an unknown address"


def _from_our_page(headers: Headers) -> bool:
    return PAGE_HEADER in headers and headers.get("sec-fetch-site", "same-origin") == "same-origin"


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
