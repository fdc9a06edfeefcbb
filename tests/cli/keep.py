"""Sinks for `type = "python"`, which write what they are given to files, are slow, are away, or fail."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from dblog.errors import SinkUnreachable
from dblog.sinks.base import Batch


class Keep:
    """Writes each row as a line of JSON to `into`, in one go for each batch, and says when a batch begins."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.into = Path(settings["into"])
        self.seconds = settings.get("seconds", 0)
        self.away = Path(f"{self.into}.away")
        """A file with a line for each time that it is to be away."""

    def open(self, spark: Any) -> None:
        self._be_away()

    def write(self, batch: Batch) -> None:
        self._be_away()
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
            self.away.write_text("".join(f"{line}\n" for line in left[1:]))
            raise SinkUnreachable("nobody is at home")


def fail(batch: Batch) -> None:
    raise ValueError(f"no room for {os.environ['SHOP_PASSWORD']}")
