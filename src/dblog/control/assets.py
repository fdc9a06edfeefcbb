"""The page: HTML, CSS and scripts that are files of this package. It loads nothing from other hosts."""

from __future__ import annotations

import hashlib
import mimetypes
from functools import cache
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FILES = Path(__file__).parent / "web"
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


def add_assets(app: FastAPI) -> None:
    """Serve the page at `/`, and its files below `/page`."""

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return _answer(request, "index.html")

    @app.get("/page/{name:path}", include_in_schema=False)
    async def file(request: Request, name: str) -> Response:
        return _answer(request, name)


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """All files: their contents, type and tag. They are read once: a path of a request never reaches the disk."""
    found = {}
    for path in FILES.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[path.relative_to(FILES).as_posix()] = content, kind, tag
    return found


def _answer(request: Request, name: str) -> Response:
    if name not in _files():
        raise HTTPException(404, "the page has no such file")
    content, kind, tag = _files()[name]
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={**HEADERS, "etag": tag})
    return Response(content, media_type=kind, headers={**HEADERS, "etag": tag})
