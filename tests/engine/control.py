"""People, as a stream under test meets them: they use the state store, and wait until the stream has looked at it."""

from __future__ import annotations

from typing import Any

from dblog.state import open_store
from dblog.state.pipeline import Pipeline
from dblog.state.requests import Dump, Wish, read_request
from tests.engine.query import Query


class Control:
    """A pipeline, seen through a second handle of the store."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self.pipeline = Pipeline(open_store(query.given["state"]), query.engine.sync._name)  # type: ignore[union-attr]

    def ask(self, tables: str | None = None, **request: Any) -> str:
        dump = self.pipeline.submit(read_request(tables, **request))
        self.noticed()
        return dump.id

    def noticed(self) -> None:
        """The stream has seen what was said, and the store what the stream said."""
        assert self._query.engine.sync is not None
        self._query.engine.sync.exchange(10.0)

    def wish(self, dump: str, wish: Wish) -> None:
        self.pipeline.wish(dump, wish)
        self.noticed()

    def set(self, **settings: Any) -> None:
        self.pipeline.change(settings)
        self.noticed()

    def dump(self, dump: str) -> Dump:
        self.noticed()
        return self.pipeline.dump(dump)

    def finish(self, dump: str) -> Dump:
        self._query.until(lambda: self.dump(dump).state.ended)
        return self.dump(dump)
