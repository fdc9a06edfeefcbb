"""The state of a pipeline in the store, as the command line, the HTTP API and the pipeline itself use it.

pipelines/<name>                    when it was first seen
pipelines/<name>/status             state, lag, positions, counters; the source's process writes it every second
pipelines/<name>/delivery           whether it waits for its sink or restarts; `dblog run` writes it
pipelines/<name>/settings           the throttle; users write it
pipelines/<name>/requests/<number>  dump requests; users add them
pipelines/<name>/wishes/<id>        pause, resume, cancel; users write them
pipelines/<name>/retries/<table>    which failure of a table that is set aside it is to be taken up again after
pipelines/<name>/progress/<id>      state and progress of a dump; the pipeline writes it from its offset
pipelines/<name>/schemas/<version>  every table schema that an event was captured with
log pipelines/<name>/events         the last events of the algorithm (`state.events`), up to `KEEP_EVENTS`
log pipelines/<name>/actions        what users did: requests, wishes, changes of settings; up to `KEEP_ACTIONS`
log pipelines/<name>/history        samples of the status (`state.history`)
"""

from __future__ import annotations

import contextlib
import time
import urllib.parse
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dblog.core.dump import OWN
from dblog.core.throttle import Throttle, read_settings
from dblog.errors import Conflict, NotFound, StateError
from dblog.state.requests import Dump, Progress, Request, State, Wish, known
from dblog.state.store import Store, Value

SILENT_SECONDS = 10.0
"""A pipeline whose status is older than this, in seconds, counts as stopped."""

RUNNING, DEGRADED, WAITING, RESTARTING = "running", "degraded", "waiting for sink", "restarting"
"""`degraded`: it runs, but tables are set aside."""
ALIVE = (RUNNING, DEGRADED, WAITING, RESTARTING)
"""The states of a pipeline whose process works, or tries to."""

UNREADY_SECONDS = 60.0
"""How long a pipeline may wait for its sink or restart and still count as ready, in seconds. A pipeline's file can set
another time."""

KEEP_ENDED = 500
"""About how many ended dumps the store keeps. Older ones are removed."""
KEEP_ENDED_SECONDS = 90 * 86_400.0
"""How long the store keeps a dump after its end, in seconds."""
KEEP_EVENTS = 10_000
KEEP_ACTIONS = 1000
"""How many actions of users the store keeps."""


def pipelines(store: Store) -> list[str]:
    """The names of all pipelines in the store."""
    return [urllib.parse.unquote(name) for name in store.list("pipelines")]


def only_pipeline(store: Store, name: str | None = None, by: str | None = None) -> Pipeline:
    """The pipeline of this name; without a name, the only one. Raises NotFound, with the names of all pipelines."""
    known = pipelines(store)
    if name is not None and name in known:
        return Pipeline(store, name, by)
    if name is None and len(known) == 1:
        return Pipeline(store, known[0], by)
    if not known:
        raise NotFound(
            "no pipeline has used this state store yet",
            hint="start one (dblog run, or a Spark query with format dblog), with the same state store as here",
        )
    what = "there are several pipelines" if name is None else f"there is no pipeline {name!r}"
    raise NotFound(what, hint="name one of " + ", ".join(known))


class Pipeline:
    """One pipeline in the store. `by` names the user whose actions are recorded; without it, none are."""

    def __init__(self, store: Store, name: str, by: str | None = None) -> None:
        self.store = store
        self.name = name
        self._by = by
        self._root = "pipelines/" + urllib.parse.quote(name, safe="")

    # -- for users ----------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Dump:
        """Request a dump. It begins when the pipeline runs and reads the request."""
        created_at, salt = time.time(), uuid.uuid4().hex[:4]
        number = self.store.add(self.at("requests"), {**request.to_json(), "created_at": created_at, "salt": salt})
        dump = Dump(request_id(number, salt), request, created_at)
        asked = {"kind": request.kind, "tables": request.tables, "keys": len(request.keys) or None}
        self._acted("dump", dump=dump.id, **{name: value for name, value in asked.items() if value is not None})
        return dump

    def dumps(self) -> list[Dump]:
        """All dumps: the stream's own that have a document in the store, then the requests, the oldest first."""
        wishes, progress = self.store.list(self.at("wishes")), self.store.list(self.at("progress"))
        known: dict[str, tuple[Request, float | None]] = {
            name: (Request(), None) for name in OWN if name in progress or name in wishes
        }
        for number, document in self.store.list(self.at("requests")).items():
            value = document.value
            known[request_id(int(number), value["salt"])] = Request.from_json(value), value["created_at"]
        return [
            Dump(
                name,
                request,
                created_at,
                Wish(wishes[name].value["wish"]) if name in wishes else Wish.run,
                Progress.from_json(progress[name].value) if name in progress else Progress(),
            )
            for name, (request, created_at) in known.items()
        ]

    def dump(self, dump_id: str) -> Dump:
        """One dump, by its id or by the number at the start of its id. Raises NotFound."""
        found = {d.id: d for d in self.dumps()}
        if dump_id in found:
            return found[dump_id]
        numbered = [d for d in found.values() if d.id.split("-")[0] == dump_id]
        if len(numbered) == 1:
            return numbered[0]
        raise NotFound(f"there is no dump {dump_id!r} in pipeline {self.name!r}", hint="dblog dumps lists them")

    def wish(self, dump_id: str, wish: Wish) -> Dump:
        """Pause, resume or cancel a dump. Raises StateError if it has ended or is cancelled, which cannot be undone."""
        while True:
            dump = self.dump(dump_id)
            seen = self.store.get(self.at("wishes", dump.id))
            if seen is not None:
                dump = replace(dump, wish=Wish(seen.value["wish"]))
            if dump.state.ended or dump.wish is Wish.cancel:
                ended = dump.state if dump.state.ended else State.cancelled
                if (wish, ended) == (Wish.cancel, State.cancelled):
                    return dump
                raise StateError(f"dump {dump.id} is {ended} already", hint="make a new request")
            wanted = {"wish": str(wish), "at": time.time()}
            with contextlib.suppress(Conflict):
                self.store.put(self.at("wishes", dump.id), wanted, version=seen.version if seen else 0)
                self._acted("resume" if wish is Wish.run else str(wish), dump=dump.id)
                return replace(dump, wish=wish)

    def settings(self) -> Throttle:
        document = self.store.get(self.at("settings"))
        return known(Throttle, document.value if document else {})

    def change(self, given: Mapping[str, Any]) -> Throttle:
        """Change some settings. Raises ConfigError for those that are unknown or out of range."""
        changed = read_settings(given)
        while True:
            document = self.store.get(self.at("settings"))
            value, version = (document.value, document.version) if document else ({}, 0)
            try:
                self.store.put(self.at("settings"), {**value, **changed}, version=version)
            except Conflict:
                continue
            self._acted("settings", changed=changed)
            return known(Throttle, {**value, **changed})

    def actions(self, limit: int = 100) -> list[Value]:
        """What users did last, the newest first: `at`, `by`, `action` and its details."""
        return [value for _, value in reversed(self.store.tail(self.at("actions"), limit=limit))]

    def _acted(self, action: str, **details: Any) -> None:
        if self._by is not None:
            entry = {"at": time.time(), "by": self._by, "action": action, **details}
            self.store.append(self.at("actions"), [entry], keep=KEEP_ACTIONS)

    def status(self) -> dict[str, Any]:
        """The status that the pipeline wrote last; `state` is corrected to the present state.

        Two processes write about a pipeline, each its own document. While `delivery` says that the stream waits for its
        sink or restarts, that is the state: the source's process may be idle then, dead, or not yet started.
        """
        said, delivery = self.store.get(self.at("status")), self.store.get(self.at("delivery"))
        if said is None:
            status: dict[str, Any] = {"pipeline": self.name, "state": "never started"}
        else:
            status = {"pipeline": self.name, "state": RUNNING, **said.value}
            if status["state"] == RUNNING and _silent(said.value):
                status["state"] = "lost"
        if delivery is not None:
            status["restarts"] = delivery.value["restarts"]
            status |= {name: delivery.value[name] for name in ("sink", "spark_ui") if name in delivery.value}
            if "lease" in delivery.value and (lease := self.store.get(delivery.value["lease"])) is not None:
                status["ha"] = _election(lease.value)
            if delivery.value.get("failed") and status["state"] != RUNNING:
                # the source's process may have ended before it could write its last state
                status |= {"state": "failed", "error": delivery.value["failed"]}
            if delivery.value["state"] != RUNNING and not _silent(delivery.value):
                now = {name: delivery.value[name] for name in ("state", "since", "reason", "unready_after")}
                status |= {**now, "updated_at": max(status.get("updated_at", 0.0), delivery.value["updated_at"])}
        if status["state"] == RUNNING and status.get("failed_tables"):
            status["state"] = DEGRADED
        return status

    def retry(self, table: str) -> Value:
        """Have a table taken up again that is set aside. Returns what is known about it. Raises NotFound."""
        failed: Mapping[str, Value] = self.status().get("failed_tables", {})
        named = [name for name in failed if table in (name, name.split(".", 1)[-1])]
        if len(named) != 1:
            hint = f"set aside are {', '.join(failed)}" if failed else "no table is set aside: dblog status"
            raise NotFound(f"table {table!r} of pipeline {self.name!r} is not set aside", hint=hint)
        found = {"table": named[0], **failed[named[0]]}
        wanted = {"table": named[0], "position": found["position"], "at": found["at"]}
        self.store.put(self.at("retries", urllib.parse.quote(named[0], safe="")), wanted)
        return found

    def retries(self) -> dict[str, tuple[int, float]]:
        """By table that is to be taken up again: the position and the time of the failure that is meant."""
        documents = [document.value for document in self.store.list(self.at("retries")).values()]
        return {value["table"]: (value["position"], value["at"]) for value in documents}

    @property
    def running(self) -> bool:
        return self.status()["state"] in ALIVE

    def schemas(self) -> dict[str, Value]:
        """Every table schema that an event was captured with, by its version."""
        return {version: document.value for version, document in self.store.list(self.at("schemas")).items()}

    def events(self, after: int | None = None, limit: int = 1000) -> Sequence[tuple[int, Value]]:
        return self.store.tail(self.at("events"), after=after, limit=limit)

    def forget(self) -> None:
        """Remove the pipeline from the store."""
        self.store.delete(self._root)

    # -- for the pipeline itself ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Add the pipeline to the store, if it is not there."""
        with contextlib.suppress(Conflict):
            self.store.put(self._root, {"name": self.name, "created_at": time.time()}, version=0)

    def say(self, status: Value) -> None:
        self.store.put(self.at("status"), {**status, "updated_at": time.time()})

    def deliver(self, delivery: Value) -> None:
        """Write whether batches are delivered: `state`, `since`, `reason`, `restarts`, `unready_after`, `sink`, what
        the sink says about itself, `spark_ui`, the address of Spark's own page, `failed`, the error that ended the
        stream, and `lease`, the key of the leader's lease."""
        self.store.put(self.at("delivery"), {**delivery, "updated_at": time.time()})

    def ended(self, error: str | None) -> None:
        """Write that the pipeline has ended. The source's process may not have done so: Spark kills it."""
        document = self.store.get(self.at("status"))
        if document is not None or error is not None:
            state = {"state": "stopped" if error is None else "failed", "error": error}
            self.say({**(document.value if document is not None else {}), **state})

    def mirror(self, dump_id: str, progress: Progress) -> None:
        self.store.put(self.at("progress", dump_id), progress.to_json())

    def saw_schema(self, version: str, schema: Value) -> None:
        if self.store.get(self.at("schemas", version)) is None:
            self.store.put(self.at("schemas", version), schema)

    def tell(self, events: Sequence[Value]) -> None:
        self.store.append(self.at("events"), events, keep=KEEP_EVENTS)

    def progress(self, dump_id: str) -> Progress | None:
        """The progress of a dump, if the store has any."""
        document = self.store.get(self.at("progress", dump_id))
        return None if document is None else Progress.from_json(document.value)

    def prune(self) -> None:
        """Remove ended dumps that are too many (`KEEP_ENDED`) or too old (`KEEP_ENDED_SECONDS`). Also remove wishes and
        progress that have no request."""
        # Read before the requests: a wish for a request that is added in the meantime must stay.
        about = {kind: self.store.versions(self.at(kind)) for kind in ("wishes", "progress")}
        dumps = self.dumps()
        ended = [d for d in dumps if d.state.ended and d.id not in OWN]
        long_ago = time.time() - KEEP_ENDED_SECONDS
        last = {d.id for d in ended[-KEEP_ENDED:] if (d.progress.finished_at or long_ago) >= long_ago}
        for dump in ended:
            if dump.id not in last:
                self.store.delete(self.at("requests", f"{request_number(dump.id):010d}"))
        kept = {*OWN, *(d.id for d in dumps if not d.state.ended), *last}
        for kind, names in about.items():
            for name in names.keys() - kept:
                self.store.delete(self.at(kind, name))

    def at(self, *parts: str) -> str:
        """The key of a document of the pipeline."""
        return "/".join((self._root, *parts))


def ready(status: Mapping[str, Any]) -> bool:
    """Whether a pipeline with this status runs, or has waited or restarted for less than `unready_after`."""
    if status["state"] not in (WAITING, RESTARTING):
        return status["state"] in (RUNNING, DEGRADED)
    return time.time() - float(status["since"]) < float(status["unready_after"])


def _election(lease: Value) -> dict[str, Any]:
    """What users should know about the lease of a pipeline with standbys. Its age is by the clocks of two machines."""
    age = max(0.0, time.time() - float(lease["renewed_at"]))
    return {"leader": lease["holder"], "epoch": lease["epoch"], "lease_seconds": lease["seconds"], "lease_age": age}


def _silent(document: Value) -> bool:
    return time.time() - float(document.get("updated_at", 0.0)) > SILENT_SECONDS


def too_many(ended: int) -> bool:
    """Whether it is time to prune: a tenth more dumps have ended than are kept."""
    return ended > KEEP_ENDED * 1.1


def request_id(number: int, salt: str) -> str:
    """The id of a dump. Users name the dump by it, and its rows have it in `_dump`."""
    return f"{number}-{salt}"


def request_number(dump_id: str) -> int:
    return int(dump_id.split("-")[0])
