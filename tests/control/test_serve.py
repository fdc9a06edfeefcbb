"""The server: where it listens, what it refuses, and that it stops."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from dblog.control.api import create_app
from dblog.control.serve import parse_address, serving
from dblog.errors import ConfigError
from dblog.state import open_store
from dblog.state.pipeline import Pipeline
from tests.control.conftest import wait_until

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:8080", ("::1", 8080)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "8080", ":8080", "localhost", "localhost:", "localhost:x", "localhost:99999", "::1:80", "[::1:80"),
        *("http://localhost:80", "localhost:80/x", "me@localhost:80"),
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="not an address") as raised:
        parse_address(text)
    assert raised.value.hint


def test_other_machines_are_served_only_with_a_token(place: str) -> None:
    for address in ("0.0.0.0:0", "[::]:0", "example.com:80"):
        with pytest.raises(ConfigError, match="no token is set"), serving(address, place):
            pass
    with serving("0.0.0.0:0", place, "token") as url:
        assert httpx.get(url.replace("0.0.0.0", "127.0.0.1") + "/metrics").status_code == 401


@pytest.mark.parametrize("token", ["", " "])
def test_an_empty_token_is_none(place: str, token: str) -> None:
    with pytest.raises(ConfigError, match="the token is empty"):
        create_app(lambda: open_store(place), token=token)
    with pytest.raises(ConfigError), serving("0.0.0.0:0", place, token):
        pass


def test_an_address_that_is_taken_is_said(place: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match="cannot serve at") as raised, serving(address, place):
            pass
    assert raised.value.hint


def test_it_stops_with_its_context_although_somebody_listens(shop: Pipeline, place: str) -> None:
    ended = threading.Event()

    def listen(url: str) -> None:
        with httpx.stream("GET", url + "/api/v1/events", timeout=30) as response:
            for line in response.iter_lines():
                if line == ": connected":
                    connected.set()
        ended.set()

    connected = threading.Event()
    with serving("127.0.0.1:0", place) as url:
        threading.Thread(target=listen, args=(url,), daemon=True).start()
        assert connected.wait(20)
        began = time.monotonic()
    assert time.monotonic() - began < 4
    assert ended.wait(5), "the stream has ended in order"
    with pytest.raises(httpx.ConnectError):
        httpx.get(url + "/health/live")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_when_it_is_told_to(shop: Pipeline, place: str, how: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    code = f"from dblog.control.serve import serve; serve({address!r}, {place!r})"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}

    def answers() -> bool:
        try:
            return httpx.get(f"http://{address}/health/live").status_code == 200
        except httpx.TransportError:
            return False

    with subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE) as server:
        try:
            wait_until(answers, 60)
            server.send_signal(how)
            assert server.wait(20) in (0, -how)
            assert server.stderr is not None
            assert b"Traceback" not in server.stderr.read()
        finally:
            server.kill()
