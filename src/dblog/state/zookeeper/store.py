"""The state store in ZooKeeper, for pipelines and commands on several machines. `nodes.py` shows where things are.

Every write is one transaction of ZooKeeper, which also counts the write in `stamp` and in the node of the parent key.
Only `delete` of more than a few hundred nodes takes several: if it breaks off, call it again.

Every read follows a `sync`, so that a follower shows what others wrote before. The leader of the ensemble does not wait
for itself: for a moment it may answer with the state before a write that a follower has already confirmed. What must be
sure is written with a version. A read that meets a broken connection is repeated. A write is not: it may have been
done, so the call fails, and its caller reads what the store has.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from dblog.errors import StateError
from dblog.state.keys import bounded, checked, conflict, split, text
from dblog.state.store import Document, Value
from dblog.state.zookeeper import clients
from dblog.state.zookeeper.address import Address, parse
from dblog.state.zookeeper.nodes import DOCUMENT, PIECE, Nodes, name_of, pack, pieces, unpack
from dblog.state.zookeeper.session import Session

if TYPE_CHECKING:
    from kazoo.client import TransactionRequest

PATIENCE = 10.0
"""How long a call waits for the servers, in seconds."""
FORMAT = 1
"""The version of the nodes' layout. A store with a higher number is refused."""
MOST_NODES = 300
"""How many nodes one transaction removes at most."""

_T = TypeVar("_T")


class ZooKeeperStore:
    """A `Store` in ZooKeeper. Handles of one process share a session."""

    def __init__(self, location: str, *, patience: float = PATIENCE) -> None:
        self._address = parse(location)
        self._patience = patience
        self._nodes = Nodes(self._address.path)
        self._session: Session | None = None
        self._process = 0
        self._id = ""
        self._opened = 0
        """How often the store was opened. It is part of `stamp`: after a failure it is unknown which writes were this
        handle's own."""
        self._written = 0
        """The writes of this handle since the store was opened. `stamp` leaves them out."""
        self._versions: dict[str, tuple[tuple[int, int], dict[str, int]]] = {}
        """The last answer of `versions` for each key, and the creation and version of the key's node then."""
        self._read(lambda session: None)

    @property
    def id(self) -> str:
        return self._read(lambda session: self._id)

    def stamp(self) -> str:
        def read(session: Session) -> str:
            found = session.get(self._nodes.stamp)
            if found is None:
                raise self._gone()
            return f"{self._id} {self._opened} {found[1].version - self._written}"

        return self._read(read)

    def get(self, key: str) -> Document | None:
        split(bounded(key))
        return self._read(lambda session: _document(session.get(self._nodes.document(key))))

    def list(self, prefix: str) -> dict[str, Document]:
        checked(bounded(prefix))

        def read(session: Session) -> dict[str, Document]:
            names = self._names(session, prefix)
            found = session.get_all([self._below(prefix, node) for node in names.values()])
            documents = {name: _document(each) for name, each in zip(names, found, strict=True)}
            return {name: document for name, document in sorted(documents.items()) if document is not None}

        return self._read(read)

    def versions(self, prefix: str) -> dict[str, int]:
        """As of the protocol. The documents' versions are asked for only if the node of the key has changed."""
        checked(bounded(prefix))

        def read(session: Session) -> dict[str, int]:
            node = session.get(self._nodes.of(prefix))
            if node is None:
                return {}
            state = (node[1].czxid, node[1].version)
            if self._versions.get(prefix, (None, None))[0] != state:
                names = self._names(session, prefix)
                stats = session.stat_all([self._below(prefix, each) for each in names.values()])
                now = {n: stat.version + 1 for n, stat in zip(names, stats, strict=True) if stat is not None}
                self._versions[prefix] = (state, now)
            return dict(self._versions[prefix][1])

        return self._read(read)

    def put(self, key: str, value: Value, *, version: int | None = None) -> int:
        split(bounded(key))
        content = pack(text(value), f"document {key!r}")
        node = self._nodes.document(key)

        def write(session: Session) -> int | None:
            stat = session.stat(node)
            present = 0 if stat is None else stat.version + 1
            if version is not None and version != present:
                raise conflict(key, present, version)
            doing = session.begin()
            if stat is None:
                session.ensure(self._nodes.of(key))
                doing.create(node, content)
            else:
                doing.set_data(node, content, present - 1)
            done = self._commit(session, doing, split(key)[0])
            return None if done is None else present + 1

        return self._write(write)

    def add(self, prefix: str, value: Value) -> int:
        split(bounded(prefix + "/0123456789")[: len(prefix)])
        content = pack(text(value), f"a document below {prefix!r}")

        def write(session: Session) -> int | None:
            session.ensure(self._nodes.of(prefix))
            doing = session.begin()
            number = self._count(session, doing, "add", prefix, 1)
            key = f"{prefix}/{number:010d}"
            doing.create(self._nodes.of(key))
            doing.create(self._nodes.document(key), content)
            done = self._commit(session, doing, prefix)
            return None if done is None else number

        return self._write(write)

    def delete(self, key: str) -> None:
        parent, _ = split(bounded(key))

        def write(session: Session) -> bool | None:
            below = session.below(self._nodes.of(key))
            if not below:
                return True
            for begin in range(0, len(below), MOST_NODES):
                doing = session.begin()
                for node in below[begin : begin + MOST_NODES]:
                    doing.delete(node)
                if self._commit(session, doing, parent) is None:
                    return None
            return True

        self._write(write)

    def append(self, log: str, values: Sequence[Value], *, keep: int) -> None:
        split(bounded(log))
        for some in pieces([text(value) for value in values]):
            self._append(log, some, keep)

    def _append(self, log: str, texts: Sequence[str], keep: int) -> None:
        node, most = self._nodes.log(log), max(1, keep // 10)

        def write(session: Session) -> bool | None:
            session.ensure(node)
            names = sorted(session.children(node) or ())
            last_piece = session.get(f"{node}/{names[-1]}") if names else None
            doing = session.begin()
            last = self._count(session, doing, "log", log, len(texts))
            first = last - len(texts) + 1
            entries = [] if last_piece is None else unpack(last_piece[0])
            follows = last_piece is not None and int(names[-1]) + len(entries) == first
            size = 0 if last_piece is None else len(json.dumps(entries))
            if last_piece is not None and follows and size < PIECE and len(entries) < most:
                content = f"[{json.dumps(entries)[1:-1]},{','.join(texts)}]"
                doing.set_data(f"{node}/{names[-1]}", pack(content, f"log {log!r}"), last_piece[1].version)
            else:
                doing.create(f"{node}/{first:020d}", pack(f"[{','.join(texts)}]", f"log {log!r}"))
                names.append(f"{first:020d}")
            for name, following in pairwise(names):
                if int(following) <= last - keep + 1:
                    doing.delete(f"{node}/{name}")
            return self._commit(session, doing, log)

        self._write(write)

    def tail(self, log: str, *, after: int | None = None, limit: int = 1000) -> Sequence[tuple[int, Value]]:
        split(bounded(log))
        node = self._nodes.log(log)

        def read(session: Session) -> list[tuple[int, Value]]:
            names = sorted(session.children(node) or ())
            if after is not None:
                behind = [name for name in names if int(name) <= after + 1]
                names = names[max(0, len(behind) - 1) :]
            else:
                names.reverse()
            found: list[tuple[int, Value]] = []
            for name in names:
                if len(found) >= limit:
                    break
                piece = session.get(f"{node}/{name}")
                if piece is not None:
                    entries = list(enumerate(unpack(piece[0]), int(name)))
                    found += [e for e in entries if e[0] > after] if after is not None else reversed(entries)
            return found[: max(limit, 0)] if after is not None else found[: max(limit, 0)][::-1]

        return self._read(read)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._process == os.getpid():
            clients.give(self._address, session.client)

    # -- calls -------------------------------------------------------------------------------------------------

    def _read(self, body: Callable[[Session], _T]) -> _T:
        session = self._opened_session()
        try:
            return session.retrying(body)
        except StateError:
            self._break(session)
            raise

    def _write(self, body: Callable[[Session], _T | None]) -> _T:
        """The body's result. It is called again while it returns None: others have changed the nodes."""
        session = self._opened_session()
        session.limit()
        try:
            while True:
                result = session.once(body)
                if result is not None:
                    return result
        except StateError as error:
            if type(error) is StateError:
                self._break(session)
            raise

    def _commit(self, session: Session, doing: TransactionRequest, key: str) -> bool | None:
        """Commit the operations, and count the write. None if others have changed a node in the meantime."""
        doing.set_data(self._nodes.of(key), b"")
        doing.set_data(self._nodes.stamp, b"")
        if session.commit(doing):
            self._written += 1
            return True
        if not session.stat(self._nodes.stamp):
            raise self._gone()
        session.ensure(self._nodes.of(key))
        return None

    def _count(self, session: Session, doing: TransactionRequest, kind: str, key: str, numbers: int) -> int:
        """Take the next `numbers` numbers of a counter; return the last of them."""
        node = self._nodes.counter(kind, key)
        found = session.get(node)
        last = numbers if found is None else int(found[0]) + numbers
        if found is None:
            doing.create(node, str(last).encode())
        else:
            doing.set_data(node, str(last).encode(), found[1].version)
        return last

    def _names(self, session: Session, prefix: str) -> dict[str, str]:
        """The keys directly below a key, with the names of their nodes."""
        nodes = session.children(self._nodes.of(prefix)) or ()
        return {name: node for node in nodes if (name := name_of(node)) is not None}

    def _below(self, prefix: str, node: str) -> str:
        return f"{self._nodes.of(prefix)}/{node}/{DOCUMENT}"

    # -- the session -------------------------------------------------------------------------------------------

    def _opened_session(self) -> Session:
        if self._session is None or self._process != os.getpid() or self._session.ended:
            self._session = Session(clients.take(self._address, self._patience), str(self._address), self._patience)
            self._process, self._written = os.getpid(), 0
            self._opened += 1
            self._versions.clear()
            self._id = self._session.retrying(self._prepare)
        return self._session

    def _break(self, session: Session) -> None:
        if self._session is session:
            self._session = None
            clients.give(self._address, session.client, broken=session.broken)

    def _prepare(self, session: Session) -> str:
        """The id of the store, which is created if it does not exist."""
        found = read_id(session, self._nodes, self._address)
        if found:
            return found
        session.ensure(self._nodes.root)
        doing = session.begin()
        doing.create(self._nodes.stamp)
        doing.create(self._nodes.counters)
        doing.create(self._nodes.keys)
        doing.create(self._nodes.store, json.dumps({"id": uuid.uuid4().hex, "format": FORMAT}).encode())
        session.commit(doing)  # if it fails, another process has created it
        return read_id(session, self._nodes, self._address) or self._fail()

    def _fail(self) -> str:
        raise self._gone()

    def _gone(self) -> StateError:
        return StateError(
            f"the state store {self._address} was removed, or nodes of another program are there",
            hint="name another path; or stop all pipelines of this store, remove the rest of its nodes, start again",
        )


def read_id(session: Session, nodes: Nodes, address: Address) -> str:
    """The id of the store, empty if it does not exist. Raises StateError if it has a newer format."""
    found = session.get(nodes.store)
    if found is None:
        return ""
    store = json.loads(found[0])
    if store["format"] > FORMAT:
        raise StateError(
            f"the state store {address} has the format {store['format']}; this dblog reads formats up to {FORMAT}",
            hint="a newer dblog has written it: install the same version here, or name another path",
        )
    return str(store["id"])


def check(location: str, *, patience: float = PATIENCE) -> None:
    """Raise StateError if the store cannot be used. Creates nothing."""
    address = parse(location)
    client = clients.take(address, patience)
    try:
        session = Session(client, str(address), patience)
        session.retrying(lambda each: read_id(each, Nodes(address.path), address))
    finally:
        clients.give(address, client)


def _document(found: tuple[bytes, Any] | None) -> Document | None:
    return None if found is None else Document(unpack(found[0]), found[1].version + 1)
