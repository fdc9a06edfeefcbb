"""Sessions with ZooKeeper. The handles of a process share one session for each URL.

A session is kept for a moment after the last handle was closed, because the HTTP API opens the store for each request.
Nothing in the store depends on a session: if one expires, the client opens another.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dblog.errors import StateError
from dblog.state.zookeeper.address import Address

if TYPE_CHECKING:
    from kazoo.client import KazooClient

SESSION_SECONDS = 10.0
KEEP_SECONDS = 10.0
"""How long an unused session is kept, in seconds."""
END_SECONDS = 3.0
"""How long the end of a session whose servers do not answer is waited for, in seconds."""

_LOG = logging.getLogger("dblog.zookeeper")
# The client would log every request, and with them the password.
_LOG.setLevel(logging.ERROR)


@dataclass
class _Shared:
    client: KazooClient
    process: int
    users: int = 1
    unused_since: float = 0.0


_SHARED: dict[Address, _Shared] = {}
_LOCK = threading.Lock()


def take(address: Address, patience: float) -> KazooClient:
    """A connected client. Raises StateError."""
    with _LOCK:
        _end_unused()
        shared = _SHARED.get(address)
        if shared is not None and shared.process == os.getpid():
            shared.users += 1
            return shared.client
    client = _connect(address, patience)
    with _LOCK:
        shared = _SHARED.get(address)
        if shared is None or shared.process != os.getpid():
            _SHARED[address] = _Shared(client, os.getpid())
            return client
        shared.users += 1
    _end(client)
    return shared.client


def give(address: Address, client: KazooClient, *, broken: bool = False) -> None:
    """Give a client back; `broken` ends its session for all handles, which then open another."""
    with _LOCK:
        shared = _SHARED.get(address)
        if shared is None or shared.client is not client:
            return
        shared.users -= 1
        shared.unused_since = time.monotonic()
        if broken:
            del _SHARED[address]
        _end_unused()
    if broken:
        _end(client)


def _connect(address: Address, patience: float) -> KazooClient:
    try:
        from kazoo.client import KazooClient
        from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE
    except ImportError as error:
        raise StateError(
            "a state store in ZooKeeper needs the package kazoo", hint="pip install 'dblog[zookeeper]'"
        ) from error
    client = KazooClient(
        ",".join(address.hosts),
        timeout=SESSION_SECONDS,
        auth_data=[("digest", f"{address.user}:{address.password}")] if address.user else None,
        default_acl=CREATOR_ALL_ACL if address.user else OPEN_ACL_UNSAFE,
        connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0},
        logger=_LOG,
        **address.encryption,
    )
    started = client.start_async()
    started.wait(patience)
    if not client.connected:
        _end(client)
        raise StateError(
            f"the state store {address} cannot be reached",
            hint="check that a majority of its servers runs and can be reached from here, and the settings of TLS",
        )
    return client


def _end_unused() -> None:
    long_ago = time.monotonic() - KEEP_SECONDS
    for address, shared in list(_SHARED.items()):
        if shared.process != os.getpid():
            del _SHARED[address]
        elif not shared.users and shared.unused_since < long_ago:
            del _SHARED[address]
            _end(shared.client)


def _end(client: KazooClient) -> threading.Thread:
    """End a session in a thread. If the servers do not answer, that takes seconds, so nobody has to wait for it."""
    ending = threading.Thread(target=_stop, args=(client,), name="dblog-zookeeper-end", daemon=True)
    ending.start()
    return ending


def _stop(client: KazooClient) -> None:
    with contextlib.suppress(Exception):  # the client's thread still waits for a server, and ends by itself later
        client.stop()
        client.close()


def end_all() -> None:
    """End all sessions of this process."""
    for shared in [each for each in _SHARED.values() if each.process == os.getpid()]:
        if shared.client.connected:
            _stop(shared.client)
        else:
            with contextlib.suppress(RuntimeError):  # no new thread while Python ends: the session ends by itself
                _end(shared.client).join(END_SECONDS)
    _SHARED.clear()


def _after_fork() -> None:
    global _LOCK  # noqa: PLW0603  # another thread may have held it
    _LOCK = threading.Lock()


atexit.register(end_all)
os.register_at_fork(after_in_child=_after_fork)
