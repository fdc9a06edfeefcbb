"""A stream's copy of the dumps in the state store. Only documents that are new or have changed are read again.

A store may have hundreds of ended requests, and several streams that write to it all the time. So each `look` compares
the versions of the documents with those of the last one. A request never changes, so it is read once.
"""

from __future__ import annotations

from dataclasses import replace

from dblog.core.dump import OWN
from dblog.state.pipeline import Pipeline, request_id
from dblog.state.requests import Dump, Progress, Request, Wish


class DumpIndex:
    """The dumps of a pipeline, as the store had them at the last `look`."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._store = ""
        """The id of the store that was read."""
        self._ids: dict[str, str] = {}
        """The ids of all requests, by the names of their documents."""
        self._open: dict[str, Dump] = {}
        """Requests that have not ended, the oldest first."""
        self._versions: dict[str, int] = {}
        self.wishes: dict[str, Wish] = {}

    def look(self) -> dict[str, Progress]:
        """Read the documents that have changed. Returns the progress of each new request that has not ended."""
        pipeline, store = self._pipeline, self._pipeline.store
        if store.id != self._store:  # the file was replaced: the same names are other requests now
            for known in (self._ids, self._open, self._versions, self.wishes):
                known.clear()
            self._store = store.id
        # 1. wishes
        versions = store.versions(pipeline.at("wishes"))
        for name in versions.keys() | self._versions.keys():
            if versions.get(name) != self._versions.get(name):
                document = store.get(pipeline.at("wishes", name))
                self.wishes.pop(name, None)
                if document is not None:
                    self.wishes[name] = Wish(document.value["wish"])
        self._versions = versions
        # 2. requests
        names = store.versions(pipeline.at("requests"))
        for name in self._ids.keys() - names.keys():
            gone = self._ids.pop(name)
            self._open.pop(gone, None)
        new = [self._read(name) for name in sorted(names.keys() - self._ids.keys())]
        return {dump.id: dump.progress for dump in new if dump is not None and not dump.progress.state.ended}

    def _read(self, name: str) -> Dump | None:
        document = self._pipeline.store.get(self._pipeline.at("requests", name))
        if document is None:
            return None  # it was removed in the meantime
        dump_id = self._ids[name] = request_id(int(name), document.value["salt"])
        progress = self._pipeline.progress(dump_id) or Progress()
        dump = Dump(dump_id, Request.from_json(document.value), document.value["created_at"], progress=progress)
        if not progress.state.ended:
            self._open[dump_id] = dump
        return dump

    def has(self, dump_id: str) -> bool:
        """Whether the store has a request of this id, or it is a dump that the stream makes itself."""
        return dump_id in OWN or dump_id in self._ids.values()

    def end(self, dump_id: str) -> None:
        """Mark the dump as ended: `open` does not return its request any more."""
        self._open.pop(dump_id, None)

    def open(self, progress: dict[str, Progress]) -> list[Dump]:
        """The requests that have not ended, the oldest first, with the stream's own `progress`."""
        dumps = [
            replace(d, wish=self.wishes.get(d.id, Wish.run), progress=progress.get(d.id, d.progress))
            for d in self._open.values()
        ]
        return [dump for dump in dumps if not dump.state.ended]

    @property
    def ended(self) -> int:
        """How many requests have ended."""
        return len(self._ids) - len(self.open({}))
