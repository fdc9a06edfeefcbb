"""The state store of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from dblog.control.requests import Choice
from dblog.state.pipeline import Pipeline, only_pipeline
from dblog.state.store import Store


class Stores:
    """A store belongs to one thread, so each request opens its own."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store

    @contextmanager
    def open(self) -> Iterator[Store]:
        with closing(self._open_store()) as store:
            yield store

    @contextmanager
    def pipeline(self, choice: Choice, by: str | None = None) -> Iterator[Pipeline]:
        """The pipeline that a request has chosen; `by` is recorded with actions."""
        with self.open() as store:
            yield only_pipeline(store, choice.pipeline, by)
