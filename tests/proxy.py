"""A TCP proxy in front of a server, to break connections in the ways networks do.

    cut()             reset every connection, both ways, as a firewall or a dying host does
    pause() resume()  forward nothing, close nothing: the peer is there and does not answer; pause("client") forwards
                      only what the server sends, pause("server") only what the client sends
    refuse() accept() turn new connections away; those that exist live on

One thread and one selector serve all connections, so that what is forwarded after `pause` returned is exactly nothing.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

CHUNK = 1 << 16


class Server(Protocol):
    @property
    def port(self) -> int: ...

    def url(self, *login: str) -> str: ...


class Proxy:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._target = ("127.0.0.1", server.port)
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._waiting: dict[socket.socket, bytes] = {}  # what a socket has yet to be sent
        self._listener: socket.socket | None = None
        self._paused: frozenset[str] = frozenset()  # the sides whose data are not forwarded
        self._closed = False
        self._clients: set[socket.socket] = set()
        self._lock = threading.RLock()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self.port = 0
        self.connections = 0  # accepted since the start
        self.forwarded = 0  # bytes, both ways
        self.accept()
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def url(self, *login: str) -> str:
        """As the server's own `url`, by way of this proxy."""
        return self.through(self._server.url(*login))

    def through(self, url: str) -> str:
        """The same URL, by way of this proxy."""
        direct = f"@127.0.0.1:{self._server.port}/"
        if direct not in url:
            raise ValueError("the url does not lead to the proxy's target")
        return url.replace(direct, f"@127.0.0.1:{self.port}/")

    def cut(self) -> None:
        """Reset all connections. New ones are accepted as before."""
        with self._lock:
            for each in list(self._peers):
                self._drop(each)

    def pause(self, *sides: str) -> None:
        with self._lock:
            self._paused = frozenset(sides or ("client", "server"))
            self._watch_all()

    def resume(self) -> None:
        with self._lock:
            self._paused = frozenset()
            self._watch_all()

    def refuse(self) -> None:
        """Close the listening socket: a client sees "connection refused"."""
        with self._lock:
            if self._listener is not None:
                self._selector.unregister(self._listener)
                # Without this the kernel would still complete the handshake while the selector looks at the socket.
                self._listener.shutdown(socket.SHUT_RDWR)
                self._listener.close()
                self._listener = None
        self._nudge()

    def accept(self) -> None:
        """Listen (again), on the same port."""
        with self._lock:
            if self._listener is None:
                self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
                self._listener.setblocking(False)
                self.port = self._listener.getsockname()[1]
                self._selector.register(self._listener, selectors.EVENT_READ)
        self._nudge()

    def close(self) -> None:
        self.refuse()
        self.cut()
        self._closed = True
        self._nudge()
        self._thread.join(5)
        self._selector.close()
        self._wake.close()
        self._woken.close()

    def _nudge(self) -> None:
        self._wake.send(b"x")

    def _serve(self) -> None:
        while not self._closed:
            for key, mask in self._selector.select():
                with self._lock:
                    one = key.fileobj
                    assert isinstance(one, socket.socket)
                    if one is self._woken:
                        one.recv(CHUNK)
                    elif one is self._listener:
                        self._connect(one)
                    elif one in self._peers:
                        self._move(one, mask & self._wanted(one))

    def _connect(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        try:
            server = socket.create_connection(self._target, timeout=5)
        except OSError:
            _reset(client)
            return
        self.connections += 1
        self._clients.add(client)
        for one, other in ((client, server), (server, client)):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[one], self._waiting[one] = other, b""
        for one in (client, server):
            self._watch(one)

    def _move(self, one: socket.socket, mask: int) -> None:
        other = self._peers[one]
        try:
            if mask & selectors.EVENT_WRITE:
                sent = one.send(self._waiting[one])
                self.forwarded += sent
                self._waiting[one] = self._waiting[one][sent:]
            if mask & selectors.EVENT_READ:
                data = one.recv(CHUNK)
                if not data:
                    self._finish(one, other)
                    return
                self._waiting[other] += data
        except BlockingIOError:
            pass
        except OSError:
            self._drop(one)
            return
        self._watch(one)
        self._watch(other)

    def _finish(self, one: socket.socket, other: socket.socket) -> None:
        """One side has closed: give the other what is left for it, and close it too."""
        other.setblocking(True)
        other.settimeout(1)
        with suppress(OSError):
            other.sendall(self._waiting[other])
        for each in (one, other):
            self._forget(each)
            each.close()

    def _drop(self, one: socket.socket) -> None:
        other = self._peers.get(one)
        for each in (one, other):
            if each is not None:
                self._forget(each)
                _reset(each)

    def _forget(self, one: socket.socket) -> None:
        if self._peers.pop(one, None) is not None:
            self._waiting.pop(one, None)
            self._clients.discard(one)
            if one in self._selector.get_map():
                self._selector.unregister(one)

    def _watch_all(self) -> None:
        for one in self._peers:
            self._watch(one)
        self._nudge()

    def _watch(self, one: socket.socket) -> None:
        wanted = self._wanted(one)
        registered = one in self._selector.get_map()
        if wanted and registered:
            self._selector.modify(one, wanted)
        elif wanted:
            self._selector.register(one, wanted)
        elif registered:
            self._selector.unregister(one)

    def _wanted(self, one: socket.socket) -> int:
        """What to do with a socket. Read only while the other side keeps up, so that back-pressure passes through."""
        wanted = 0
        if self._side(one) not in self._paused and len(self._waiting[self._peers[one]]) < 4 * CHUNK:
            wanted |= selectors.EVENT_READ
        if self._side(self._peers[one]) not in self._paused and self._waiting[one]:
            wanted |= selectors.EVENT_WRITE
        return wanted

    def _side(self, one: socket.socket) -> str:
        return "client" if one in self._clients else "server"


def _reset(one: socket.socket) -> None:
    """Close with a reset instead of an orderly end."""
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()
