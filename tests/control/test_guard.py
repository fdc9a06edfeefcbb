"""Who may ask, and how much they may send."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from dblog.control.guard import MOST_BYTES, is_loopback
from dblog.control.serve import serving
from dblog.state.pipeline import Pipeline

TOKEN = "s3cret-tökén"
ROUTES = [
    ("GET", "/metrics"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/api/v1/pipelines"),
    ("GET", "/api/v1/status"),
    ("GET", "/api/v1/events"),
    ("POST", "/api/v1/pause"),
    ("POST", "/api/v1/dumps"),
    ("GET", "/nothing"),
    ("GET", "/health/other"),
]


@pytest.fixture
def guarded(place: str) -> Iterator[httpx.Client]:
    with serving("127.0.0.1:0", place, TOKEN) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_the_token_there_is_nothing(shop: Pipeline, guarded: httpx.Client, method: str, path: str) -> None:
    for given in (None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x"):
        answer = guarded.request(method, path, headers=[] if given is None else [("authorization", given.encode())])
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert set(answer.json()) == {"error", "hint"}
        assert TOKEN not in answer.text
    assert not shop.settings().paused


def test_the_token_opens(shop: Pipeline, guarded: httpx.Client) -> None:
    for scheme in ("Bearer", "bearer"):
        headers = {b"authorization": f"{scheme} {TOKEN}".encode(), b"host": b"dblog.example", b"origin": b"http://x"}
        assert guarded.get("/api/v1/status", headers=headers).status_code == 200
    assert guarded.post("/api/v1/pause", headers=headers).status_code == 200
    twice = [("authorization", f"Bearer {TOKEN}".encode()), ("authorization", b"Bearer wrong")]
    assert guarded.get("/api/v1/status", headers=twice).status_code == 401


def test_health_needs_no_token(shop: Pipeline, guarded: httpx.Client) -> None:
    for path in ("/health", "/health/live", "/health/ready"):
        assert guarded.get(path).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:80"}, 200),
        ({"host": "[::1]:80"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "["}, 403),
        ({"host": ""}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "localhost:80", "origin": "http://localhost:81"}, 403),
        ({"host": "localhost:80", "origin": "http://localhost:80"}, 200),
    ],
)
def test_a_web_page_from_elsewhere_can_ask_nothing_of_an_open_server(
    shop: Pipeline, client: httpx.Client, headers: dict[str, str], status: int
) -> None:
    assert client.post("/api/v1/pause", headers=headers).status_code == status
    assert shop.settings().paused is (status == 200)


def test_what_is_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com", "", "localhost.evil.example")))


JSON = {"content-type": "application/json"}


def test_a_body_may_have_a_mebibyte(shop: Pipeline, client: httpx.Client) -> None:
    body = b'{"chunks": 7}'.ljust(MOST_BYTES)
    assert client.patch("/api/v1/settings", content=body, headers=JSON).status_code == 200
    assert client.patch("/api/v1/settings", content=iter([body]), headers=JSON).status_code == 200
    for content in (body + b" ", iter([body[:500_000], body[500_000:], b" "])):
        answer = client.patch("/api/v1/settings", content=content, headers=JSON)
        assert answer.status_code == 413
        assert set(answer.json()) == {"error", "hint"}


def test_a_body_without_an_end_is_not_read_for_ever(shop: Pipeline, client: httpx.Client) -> None:
    url = urlsplit(str(client.base_url))
    with socket.create_connection((url.hostname, url.port), timeout=20) as connection:
        connection.sendall(
            b"POST /api/v1/dumps HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        answer, sent = b"", 0
        connection.settimeout(0.01)
        while not answer and sent < 50 * MOST_BYTES:
            try:
                connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
                sent += 0x10000
                answer = connection.recv(1000)
            except TimeoutError:
                continue
            except OSError:
                break
    assert sent < 20 * MOST_BYTES
    assert answer.startswith(b"HTTP/1.1 413") or not answer


def test_a_body_that_says_it_is_too_large_is_not_waited_for(shop: Pipeline, client: httpx.Client) -> None:
    url = urlsplit(str(client.base_url))
    with socket.create_connection((url.hostname, url.port), timeout=10) as connection:
        connection.sendall(
            b"POST /api/v1/dumps HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n{" % (MOST_BYTES + 1)
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")
