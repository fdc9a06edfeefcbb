"""Sinks for `type = "python"`, which write what they are given to files, are slow, are away, or fail."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from dblog.errors import SinkError, SinkUnreachable
from dblog.sinks.base import Batch


class Keep:
    """Writes each row as a line of JSON to `into`, in one go for each batch, and says when a batch begins."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.into = Path(settings["into"])
        self.seconds = settings.get("seconds", 0)
        self.away = Path(f"{self.into}.away")
        """A file with a line for each time that it is to be away; `always`: as long as the file is there."""
        self.trouble = Path(f"{self.into}.trouble")
        """A file with a line for each batch that is to fail: how."""

    def open(self, spark: Any) -> None:
        self._be_away()

    def write(self, batch: Batch) -> None:
        self._be_away()
        self._have_trouble(batch)
        self._say("begin", batch)
        lines = []
        for table in batch.tables:
            for frame in (table.changes, table.rows):
                if frame is not None:
                    for row in frame.collect():
                        lines.append({"batch": batch.id, "table": str(table.schema.table), **row.asDict()})
        time.sleep(self.seconds)
        with self.into.open("a") as file:
            file.writelines(json.dumps(line, default=str) + "\n" for line in lines)
        self._say("end", batch)

    def close(self) -> None:
        with Path(f"{self.into}.said").open("a") as file:
            file.write("close\n")

    def _say(self, what: str, batch: Batch) -> None:
        with Path(f"{self.into}.said").open("a") as file:
            file.write(f"{what} {batch.id}\n")

    def _be_away(self) -> None:
        left = self.away.read_text().splitlines() if self.away.exists() else []
        if left:
            if left[0] != "always":
                self.away.write_text("".join(f"{line}\n" for line in left[1:]))
            raise SinkUnreachable("nobody is at home")

    def _have_trouble(self, batch: Batch) -> None:
        """Fail as a sink can: by an error of its own, for good, or by a task whose Python process dies."""
        left = self.trouble.read_text().splitlines() if self.trouble.exists() else []
        if not left:
            return
        self.trouble.write_text("".join(f"{line}\n" for line in left[1:]))
        if left[0] == "for good":
            raise SinkError("the target refuses this", hint="ask its owner")
        if left[0] == "dead worker":
            frame = next(f for t in batch.tables for f in (t.changes, t.rows) if f is not None)
            frame.select("id").mapInArrow(lambda batches: os.kill(os.getpid(), 9), "id int").collect()
        raise RuntimeError(f"{left[0]}, {os.environ['SHOP_PASSWORD']}")


def fail(batch: Batch) -> None:
    raise ValueError(f"no room for {os.environ['SHOP_PASSWORD']}")
