"""The page `/docs`: every route with its parameters and the fields of its body, made from the API's OpenAPI document.

It is plain HTML without a script: a page that loads scripts from another host gives that host access to the API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.responses import HTMLResponse

_POLICY = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font-family: sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }}
h2 {{ font: bold 1em monospace; margin-top: 2em; }}
td {{ padding: 0.1em 1em 0.1em 0; vertical-align: top; }}
td:first-child {{ font-family: monospace; }}
</style></head><body><h1>{title}</h1><p>{about}</p><p>Answers and status codes in full: <code>/openapi.json</code>.</p>
"""


def add_page(app: FastAPI) -> None:
    """Serve the page."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(_render(app.openapi()), headers=_POLICY)


def _render(description: Mapping[str, Any]) -> str:
    info = description["info"]
    parts = [_HEAD.format(title=escape(info["title"]), about=escape(info["description"]))]
    for path, routes in description["paths"].items():
        for method, route in routes.items():
            parts.append(f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(route.get('description', ''))}</p>")
            rows = [*_parameters(route), *_fields(route, description)]
            if rows:
                cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
                parts.append("<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>")
    return "\n".join([*parts, "</body></html>\n"])


def _parameters(route: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for each in route.get("parameters", ()):
        about = each.get("description") or each["schema"].get("description", "")
        yield each["name"], f"in the {each['in']}", about


def _fields(route: Mapping[str, Any], description: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The fields of a body; if it has alternatives, the fields of all of them."""
    found: dict[str, str] = {}
    waiting = [content["schema"] for content in route.get("requestBody", {}).get("content", {}).values()]
    while waiting:
        schema = waiting.pop(0)
        if "$ref" in schema:
            schema = description["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        waiting += schema.get("anyOf", ())
        for name, field in schema.get("properties", {}).items():
            found[name] = found.get(name) or field.get("description", "")
    for name, about in found.items():
        yield name, "in the body", about
