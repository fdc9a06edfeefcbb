"""The HTTP server: in the foreground until a signal, or in a thread while a `with` block runs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import uvicorn

from dblog.control.api import create_app
from dblog.control.events import Hub
from dblog.control.guard import is_loopback
from dblog.errors import ConfigError
from dblog.state import open_store

STOP_SECONDS = 5
"""How long open requests may still take when the server stops, in seconds."""


class _Server(uvicorn.Server):
    """Ends the event streams when it stops: they do not end by themselves."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self._hub = hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.close()
        await super().shutdown(sockets)


def serve(
    address: str, location: str | None = None, token: str | None = None, *, read_token: str | None = None
) -> None:
    """Serve the HTTP API of a state store until a signal stops the process."""
    server, bound = _prepare(address, location, token, read_token)
    with bound, suppress(KeyboardInterrupt):
        server.run(sockets=[bound])


@contextmanager
def serving(
    address: str, location: str | None = None, token: str | None = None, *, read_token: str | None = None
) -> Iterator[str]:
    """Serve in a thread while the body runs; gives the URL. Port 0 means any free port."""
    server, bound = _prepare(address, location, token, read_token)
    with bound:
        host, port = bound.getsockname()[:2]
        thread = threading.Thread(target=server.run, args=([bound],), name="dblog-control", daemon=True)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        finally:
            server.should_exit = True
            thread.join()


def parse_address(text: str) -> tuple[str, int]:
    """Host and port: `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`. Raises ConfigError."""
    try:
        parts = urlsplit("//" + text)
        if parts.netloc == text and parts.hostname and parts.port is not None and "@" not in text:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise ConfigError(f"{text!r} is not an address to serve at", hint="write host:port, like 127.0.0.1:8080")


def check_address(address: str, token: str | None) -> None:
    """Raise ConfigError if the server could not listen on the address."""
    _listening(address, token).close()


def _listening(address: str, token: str | None) -> socket.socket:
    host, port = parse_address(address)
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"{host!r} can be reached from other machines, but no token is set",
            hint="set a token, or serve at 127.0.0.1",
        )
    return _bind(host, port)


def _prepare(
    address: str, location: str | None, token: str | None, read_token: str | None
) -> tuple[_Server, socket.socket]:
    app = create_app(lambda: open_store(location), token=token, read_token=read_token)  # raises before a socket is open
    bound = _listening(address, token)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=STOP_SECONDS)
    return _Server(config, app.state.hub), bound


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(where[:2], family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot serve at {host}:{port}: {error.strerror or error}", hint="check whether another server uses it"
        ) from error
