"""An API of the tests' own, on a real socket: it notes what is posted, and can refuse, dawdle and die."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    """Names are in lower case."""
    events: list[dict[str, Any]]
    taken: bool

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]


Reply = tuple[int, dict[str, str], str]
TAKEN: Reply = (200, {}, "")


class Endpoint:
    """Takes requests until it is closed. `answer` is asked for each: None hangs up without an answer."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Callable[[list[dict[str, Any]]], Reply | None] = lambda events: TAKEN
        self._lock = threading.Lock()
        self._port = 0
        self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/events?for=test"

    def taken(self) -> list[Request]:
        """The requests that it has taken, each once: what a repeated key brings is known already."""
        first: dict[str, Request] = {}
        with self._lock:
            for request in self.requests:
                if request.taken:
                    first.setdefault(request.key, request)
        return list(first.values())

    @contextmanager
    def away(self) -> Iterator[None]:
        self.close()
        try:
            yield
        finally:
            self._start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._down.set()
        self._thread.join()

    def _start(self) -> None:
        endpoint, down = self, threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                reply = None if down.is_set() else endpoint._take(self.path, dict(self.headers.items()), body)
                self.close_connection = reply is None
                if reply is not None:
                    status, headers, text = reply
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": str(len(text.encode()))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            block_on_close = False  # a client that keeps its connection does not keep it alive
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """A client that has gone is nothing to tell of."""

        self._down = down
        self._server = Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        events = json.loads(body, parse_float=Decimal)
        reply = self.answer(events)
        taken = reply is not None and reply[0] < 300
        with self._lock:
            self.requests.append(Request(path, {n.lower(): v for n, v in headers.items()}, events, taken))
        return reply
