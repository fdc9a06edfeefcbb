"""Calls of ZooKeeper's client with a time limit, and with errors of ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dblog.errors import StateError

if TYPE_CHECKING:
    from kazoo.client import KazooClient, TransactionRequest

_T = TypeVar("_T")


class Session:
    """A client's session. One object belongs to one thread; the client may be shared."""

    def __init__(self, client: KazooClient, where: str, patience: float) -> None:
        self.client = client
        self.broken = False
        """Whether the servers have not answered in time: what the client still sends must not be done later."""
        self._where = where
        self._patience = patience
        self._deadline = time.monotonic() + patience
        self._committing = False
        """Whether the present call has sent its commit."""

    @property
    def ended(self) -> bool:
        """Whether another handle has ended the session."""
        return bool(self.client.handler and not self.client.handler.running)

    def limit(self) -> None:
        """Begin a call: all its requests must be answered within the patience."""
        self._deadline = time.monotonic() + self._patience

    def retrying(self, body: Callable[[Session], _T]) -> _T:
        """The result of a call that only reads. It is repeated if the connection breaks."""
        from kazoo.exceptions import ConnectionLoss, SessionExpiredError

        self.limit()
        while True:
            try:
                return self._translated(body)
            except (ConnectionLoss, SessionExpiredError) as error:
                if self.ended or time.monotonic() > self._deadline:
                    raise self._told(error) from error
                time.sleep(0.02)

    def once(self, body: Callable[[Session], _T]) -> _T:
        """The result of a call that writes. It is repeated if the connection breaks before the commit is sent."""
        from kazoo.exceptions import ConnectionLoss, SessionExpiredError

        while True:
            self._committing = False
            try:
                return self._translated(body)
            except (ConnectionLoss, SessionExpiredError) as error:
                if self._committing:
                    raise StateError(
                        f"the connection with the state store {self._where} broke during a write, which may have been "
                        "done",
                        hint="read what it has, and try again",
                    ) from error
                if self.ended or time.monotonic() > self._deadline:
                    raise self._told(error) from error
                time.sleep(0.02)

    def _translated(self, body: Callable[[Session], _T]) -> _T:
        from kazoo.exceptions import ConnectionLoss, KazooException, SessionExpiredError

        try:
            return body(self)
        except (ConnectionLoss, SessionExpiredError):
            raise
        except (self.client.handler.timeout_exception, KazooException) as error:
            self.broken = isinstance(error, self.client.handler.timeout_exception)
            raise self._told(error) from error

    def _told(self, error: Exception) -> StateError:
        from kazoo.exceptions import AuthFailedError, NoAuthError

        if self.broken:
            return StateError(
                f"the state store {self._where} has not answered for {self._patience:g} s",
                hint="check that a majority of its servers runs and can be reached from here",
            )
        hint = None
        if isinstance(error, NoAuthError | AuthFailedError):
            hint = "check user and password in the URL: only the user that created the store may use it"
        return StateError(f"the state store {self._where} cannot be used: {type(error).__name__} {error}", hint=hint)

    # -- requests ----------------------------------------------------------------------------------------------

    def get(self, node: str) -> tuple[bytes, Any] | None:
        """The content and the stat of a node; None if it does not exist."""
        return self.get_all([node])[0]

    def get_all(self, nodes: Sequence[str]) -> list[tuple[bytes, Any] | None]:
        return self._all(nodes, self.client.get_async)

    def stat(self, node: str) -> Any:
        return self.stat_all([node])[0]

    def stat_all(self, nodes: Sequence[str]) -> list[Any]:
        return self._all(nodes, self.client.exists_async)

    def children(self, node: str) -> list[str] | None:
        found: list[str] | None = self._all([node], self.client.get_children_async)[0]
        return found

    def below(self, node: str) -> list[str]:
        """A node and all nodes below it, children before their parents; empty if it does not exist."""
        found, level = [], [node]
        while level:
            listed = self._all(level, self.client.get_children_async)
            here = [(each, names) for each, names in zip(level, listed, strict=True) if names is not None]
            found += [each for each, _ in here]
            level = [f"{each}/{name}" for each, names in here for name in names]
        return found[::-1]

    def ensure(self, node: str) -> None:
        """Create a node and those above it, if they do not exist.

        Other users may create stores beside it, and remove their own: a node with children cannot be deleted, and only
        the user that created a store may delete its children.
        """
        from kazoo.security import make_acl

        above = node.rpartition("/")[0]
        if above:
            anyone = make_acl("world", "anyone", read=True, create=True, delete=True)
            self._wait(self.client.ensure_path_async(above, [*self.client.default_acl, anyone]))
        self._wait(self.client.ensure_path_async(node))

    def begin(self) -> TransactionRequest:
        return self.client.transaction()

    def commit(self, doing: TransactionRequest) -> bool:
        """Commit a transaction; False if a node is not as it was expected to be."""
        from kazoo.exceptions import (
            BadVersionError,
            NodeExistsError,
            NoNodeError,
            NotEmptyError,
            RolledBackError,
            RuntimeInconsistency,
        )

        self._committing = True
        undone = (RolledBackError, RuntimeInconsistency)
        failed = [each for each in self._wait(doing.commit_async()) if isinstance(each, Exception)]
        for error in failed:
            if not isinstance(error, (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError, *undone)):
                raise error
        self._committing = False
        return not failed

    def _all(self, nodes: Sequence[str], ask: Callable[[str], Any]) -> list[Any]:
        """Ask for several nodes at once, after a `sync`; None for those that do not exist."""
        from kazoo.exceptions import NoNodeError

        if not nodes:
            return []
        asked = [self.client.sync_async(nodes[0]), *(ask(node) for node in nodes)]
        answers: list[Any] = []
        for each in asked:
            try:
                answers.append(self._wait(each))
            except NoNodeError:
                answers.append(None)
        return answers[1:]

    def _wait(self, asked: Any) -> Any:
        return asked.get(timeout=max(0.001, self._deadline - time.monotonic()))
