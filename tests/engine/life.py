"""One life of a query in a process of its own, to be killed: `life.py <folder> <json>`.

The folder plays Spark's checkpoint and an idempotent sink: `offsets/<n>` is written before batch n runs,
`out/<n>-<pid>.json` when it has, and `commits/<n>` at last, each in one step.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.engine.query import Query


def main(folder: Path, options: dict[str, Any]) -> None:
    query = Query(spool=str(folder / "spool"), **options)
    query.offsets = [json.loads((folder / "offsets" / str(n)).read_text()) for n in range(_count(folder / "offsets"))]
    query.done = _count(folder / "commits")
    while True:
        if len(query.offsets) == query.done:
            if not query.plan():
                continue
            _write(folder / "offsets" / str(query.done), json.dumps(query.offsets[-1]))
        number = query.done
        rows = query.finish()
        _write(folder / "out" / f"{number}-{os.getpid()}.json", json.dumps(rows, default=str))
        _write(folder / "commits" / str(number), "")


def _count(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return sum(path.name.isdigit() for path in folder.iterdir())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
