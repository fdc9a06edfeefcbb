"""A proxy that holds one request, or its answer, for as long as a test needs to find out who sent it."""

from __future__ import annotations

import re
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from tests.proxy import CHUNK, Proxy, Server


class HoldingProxy(Proxy):
    """Forwards everything, until a client of the wanted kind sends what a pattern matches. That connection stands
    still from then on; all others go on."""

    def __init__(self, server: Server, wanted: Callable[[int], bool]) -> None:
        self._holds = wanted
        """Whether the client with this port is one whose requests are to be held."""
        self._pattern: re.Pattern[bytes] | None = None
        self._answer = False
        self._still: socket.socket | None = None
        self.held = threading.Event()
        self.port_of_client = 0
        super().__init__(server)

    def hold(self, pattern: bytes, *, answer: bool = False) -> None:
        """Hold the next request with this pattern. With `answer` it reaches the server, and the answer is held."""
        with self._lock:
            self.held.clear()
            self._pattern, self._answer = re.compile(pattern, re.IGNORECASE | re.DOTALL), answer

    def let_go(self) -> None:
        """Forward what is held. Its client may have ended by now."""
        with self._lock:
            one, self._still = self._still, None
            if one is not None and one in self._peers:
                self._watch(one)
        self._nudge()

    def _move(self, one: socket.socket, mask: int) -> None:
        if self._pattern is not None and mask & selectors.EVENT_READ and self._matches(one):
            server = self._peers[one]
            self._pattern, self._still = None, server if self._answer else one
            if self._answer:
                server.setblocking(True)
                server.sendall(self._waiting[server] + one.recv(CHUNK))
                server.setblocking(False)
                self._waiting[server] = b""
            if self._still in self._selector.get_map():
                self._selector.unregister(self._still)
            self.held.set()
            return
        super()._move(one, mask)

    def _watch(self, one: socket.socket) -> None:
        if one is not self._still:
            super()._watch(one)

    def _matches(self, one: socket.socket) -> bool:
        with suppress(OSError):
            sent = one.recv(CHUNK, socket.MSG_PEEK)
            if self._pattern is not None and self._pattern.search(sent):
                self.port_of_client = one.getpeername()[1]
                return self._holds(self.port_of_client)
        return False
