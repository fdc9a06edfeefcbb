"""Tokens, roles, the cookie of a browser, and the list of actions."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from dblog.control.serve import serving
from dblog.control.session import COOKIE, SESSION_SECONDS, Caller, Tokens
from dblog.errors import ConfigError
from dblog.state.pipeline import Pipeline
from dblog.state.requests import Request

API = "/api/v1"
OPERATOR, READER = "an-operators-token", "a-readers-token"
PAGE = {"x-dblog-page": "1"}


@pytest.fixture
def guarded(place: str) -> Iterator[httpx.Client]:
    served = serving("127.0.0.1:0", place, OPERATOR, read_token=READER)
    with served as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_a_reader_may_only_read(shop: Pipeline, guarded: httpx.Client) -> None:
    assert guarded.get(API + "/status", headers=bearer(READER)).status_code == 200
    for method, path in (("POST", "/pause"), ("PATCH", "/settings"), ("POST", "/dumps"), ("PUT", "/settings")):
        answer = guarded.request(method, API + path, headers=bearer(READER), json={})
        assert (answer.status_code, answer.json()["error"]) == (403, "this token may only read")
    assert guarded.post(API + "/pause", headers=bearer(OPERATOR)).status_code == 200
    assert shop.settings().paused


def test_a_cookie_stands_for_a_token(shop: Pipeline, guarded: httpx.Client) -> None:
    assert guarded.get(API + "/session").status_code == 401
    assert guarded.post(API + "/session", json={"token": "wrong"}).status_code == 401
    assert not guarded.cookies
    given = guarded.post(API + "/session", json={"token": OPERATOR, "name": " Maria\n"})
    assert given.json() == {"role": "operator", "name": "Maria", "token": True}
    said = given.headers["set-cookie"].lower()
    assert "httponly" in said
    assert "samesite=strict" in said
    assert "secure" not in said
    assert guarded.get(API + "/status").status_code == 200
    assert guarded.post(API + "/pause").status_code == 403
    assert guarded.post(API + "/pause", headers={**PAGE, "sec-fetch-site": "cross-site"}).status_code == 403
    assert not shop.settings().paused
    assert guarded.post(API + "/pause", headers=PAGE).status_code == 200
    assert shop.settings().paused
    assert guarded.delete(API + "/session", headers=PAGE).status_code == 200
    assert guarded.get(API + "/status").status_code == 401


def test_over_tls_the_cookie_is_secure(shop: Pipeline, guarded: httpx.Client) -> None:
    given = guarded.post(API + "/session", json={"token": READER}, headers={"origin": "https://dblog.example"})
    assert "secure" in given.headers["set-cookie"].lower()


def test_a_cookie_is_worth_nothing_when_it_is_changed_old_or_of_another_token() -> None:
    tokens = Tokens(OPERATOR, READER)
    cookie = tokens.cookie(Caller("reader", "Maria"))
    assert tokens.caller(cookie) == Caller("reader", "Maria")
    said, _, signature = cookie.partition(".")
    forged = tokens.cookie(Caller("operator", "Maria")).partition(".")[0]
    for wrong in (
        "",
        ".",
        "x",
        said,
        f"{said}.",
        f"{forged}.{signature}",
        f"{said}.{signature[:-2]}",
        f"é.{signature}",
    ):
        assert tokens.caller(wrong) is None
    assert tokens.caller(cookie, now=time.time() + SESSION_SECONDS + 1) is None
    assert Tokens("another", READER).caller(cookie) is not None, "a reader's cookie needs the readers' token only"
    assert Tokens(OPERATOR, "another").caller(cookie) is None
    assert Tokens(OPERATOR).caller(cookie) is None
    assert Tokens("another").caller(tokens.cookie(Caller("operator", "Maria"))) is None


@pytest.mark.parametrize(("operator", "reader"), [("", None), (None, "x"), ("x", "x"), ("x", " ")])
def test_tokens_that_make_no_sense_are_refused(operator: str | None, reader: str | None) -> None:
    with pytest.raises(ConfigError):
        Tokens.of(operator, reader)


def test_the_page_itself_needs_no_token(shop: Pipeline, guarded: httpx.Client) -> None:
    page = guarded.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    script = guarded.get("/page/main.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert guarded.get("/page/main.js", headers={"if-none-match": script.headers["etag"]}).status_code == 304
    for wrong in ("/page/none.js", "/page/../api.py", "/page/%2e%2e/api.py", "/page/", "/pagex"):
        assert guarded.get(wrong).status_code in (401, 404)


def test_a_page_of_another_host_is_not_served_without_a_token(shop: Pipeline, client: httpx.Client) -> None:
    assert client.get("/").status_code == 200
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403


def test_every_action_is_recorded(shop: Pipeline, guarded: httpx.Client) -> None:
    guarded.post(API + "/session", json={"token": OPERATOR, "name": "Maria"})
    dump = guarded.post(API + "/dumps", json={"tables": "public.orders"}, headers=PAGE).json()["id"]
    guarded.post(f"{API}/dumps/{dump}/pause", headers=PAGE)
    guarded.post(f"{API}/dumps/{dump}/resume", headers=bearer(OPERATOR))
    guarded.post(f"{API}/dumps/{dump}/cancel", headers=PAGE)
    guarded.patch(API + "/settings", json={"chunks": 3}, headers=PAGE)
    guarded.patch(API + "/settings", json={"chunks": 0}, headers=PAGE)
    found = guarded.get(API + "/actions").json()["actions"]
    assert [(a["action"], a["by"]) for a in reversed(found)] == [
        ("dump", "Maria"),
        ("pause", "Maria"),
        ("resume", "operator at 127.0.0.1"),
        ("cancel", "Maria"),
        ("settings", "Maria"),
    ]
    assert found[0]["changed"] == {"chunks": 3}
    assert guarded.get(API + "/actions?limit=1").json()["actions"] == found[:1]
    assert abs(found[0]["at"] - time.time()) < 60


def test_what_a_pipeline_does_itself_is_no_action(shop: Pipeline) -> None:
    shop.submit(Request())
    shop.change({"chunks": 2})
    assert shop.actions() == []
    Pipeline(shop.store, "shop", by="me@here").change({"chunks": 4})
    assert [a["by"] for a in shop.actions()] == ["me@here"]
    assert COOKIE not in str(shop.actions())
