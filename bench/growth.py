"""Whether lakes stay fast: the time of a batch, and of a full read, over hundreds of batches.

The native writers get made-up batches, and their tasks run in this process: what a batch of Spark takes beside, which
does not depend on the table, is left out. `bench.lakes` measures whole batches of a stream. Processor time is shown
beside the elapsed time, because it depends less on what else the machine does; it includes that of maintenance.
"""

from __future__ import annotations

import pickle
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from bench.figures import Figure, Measured, Target, joined
from dblog.core.event import DUMP_SEQ
from dblog.core.schema import Column, TableName, TableSchema
from dblog.sinks.base import Batch, TableBatch
from dblog.sinks.folder import Folder
from dblog.sinks.lake.native import writer
from dblog.sinks.lake.native.writer import NativeTables, NativeWriter
from dblog.work.rows import Typed

COLUMNS = (
    Column("id", "bigint", pa.int64()),
    Column("customer", "bigint", pa.int64()),
    Column("amount", "double precision", pa.float64()),
    Column("state", "text", pa.string()),
    Column("note", "text", pa.string()),
)
TABLE = TableSchema(TableName("public", "orders"), COLUMNS, ("id",))
FORMATS = ("delta", "iceberg")
ENDS = 10
"""How many batches the first and the last figure have."""
PAUSE = 0.05
"""Seconds between two batches. In a stream they are more: a Spark job takes 0.2 s by itself."""
FOLDER = Path("public.orders"), Path("public") / "orders"
"""The table's folder in a lake of each format."""


@dataclass(frozen=True)
class MadeRows:
    """Rows of a batch. Each record batch of a dump is a part."""

    given_changes: tuple[pa.RecordBatch, ...]
    given_rows: tuple[pa.RecordBatch, ...] = ()
    overlapping: bool = False
    weight: int = 1

    def changes(self) -> Iterator[pa.RecordBatch]:
        return iter(self.given_changes)

    def dump_rows(self) -> Iterator[pa.RecordBatch]:
        return iter(self.given_rows)

    def split(self) -> list[MadeRows]:
        parts = [MadeRows((), (rows,)) for rows in self.given_rows]
        return [MadeRows(self.given_changes), *parts] if self.given_changes else parts


def made(ops: Sequence[str], keys: Sequence[int], lsn: int) -> pa.RecordBatch:
    kind = Typed(TABLE, before=False).arrow
    count = len(keys)
    dumped = ops[0] == "read"
    numbers = np.arange(lsn, lsn + count)
    columns: dict[str, Any] = {
        "id": pa.array(keys, pa.int64()),
        "customer": pa.array(numbers * 7919 % 10_007),
        "amount": pa.array(numbers * 31 % 9_999),
        "state": pa.array(["paid", "open", "sent", "lost"] * (count // 4 + 1))[:count],
        "note": pa.array([f"a note on order {n * lsn * 7919 % 999_983}, as long as notes are" for n in keys]),
        "_op": pa.array(ops),
        "_lsn": pa.array(np.full(count, lsn) if dumped else numbers),
        "_seq": pa.array(np.full(count, DUMP_SEQ if dumped else 0)),
        "_txid": pa.array(np.ones(count)),
    }
    arrays = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(count, f.type) for f in kind]
    return pa.RecordBatch.from_arrays(arrays, schema=kind)


class Lake:
    """A lake with one table, its writer, and its batches."""

    def __init__(self, form: str, folder: Path, mode: str, maintain: str) -> None:
        self.form = form
        self.path = folder / FOLDER[form == "iceberg"]
        self.tables = _tables(form, folder)
        self.writer = NativeWriter(cast(Any, None), self.tables, mode, "evolve", maintain=maintain == "auto")
        self.id, self.lsn = 0, 1

    def write(self, changes: pa.RecordBatch | None, rows: tuple[pa.RecordBatch, ...] = ()) -> None:
        given = MadeRows(() if changes is None else (changes,), rows)
        table = TableBatch(TABLE.table, TABLE, None, None, None, incomplete=False, arrow=given)
        self.lsn += max([1, *(b.num_rows for b in (*given.given_changes, *rows))])
        with self.writer.batch([table.schema.table]):
            self.writer.write(Batch(self.id, self.lsn, (table,)), [table])
        self.id += 1

    def read(self) -> tuple[int, float, float]:
        """How many rows there are, and the seconds that the format's own reader and pyarrow need for all of them. The
        table is opened anew."""
        begin = time.perf_counter()
        if self.form == "delta":
            from deltalake import DeltaTable

            opened = DeltaTable(str(self.path))
            count, paths = opened.to_pyarrow_table().num_rows, opened.file_uris()
        else:
            catalog: Any = cast(Any, self.tables)._catalog.tables
            found = catalog.load_table(("public", "orders"))
            count, paths = found.scan().to_arrow().num_rows, [t.file.file_path for t in found.scan().plan_files()]
        own = time.perf_counter() - begin
        begin = time.perf_counter()
        assert ds.dataset(paths).to_table().num_rows == count
        return count, own, time.perf_counter() - begin


def _tables(form: str, folder: Path) -> NativeTables:
    if form == "delta":
        from dblog.sinks.lake.native.delta import DeltaFolder

        return DeltaFolder(Folder(str(folder)), "bench")
    from dblog.sinks.lake.native.iceberg import IcebergCatalog
    from dblog.sinks.lake.native.iceberg_catalog import OpenCatalog

    options = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder)}
    return IcebergCatalog(OpenCatalog("lake", options, folder), None, "bench")


def in_process(
    _: Any, works: Sequence[Any], run: Callable[[Any], Any], weights: Any = None, *, threads: int = 1
) -> list[Any]:
    """Runs tasks here, with what goes to and from a task pickled as for Spark."""
    return [pickle.loads(pickle.dumps(run(pickle.loads(pickle.dumps(work))))) for work in works]


@contextmanager
def without_spark() -> Iterator[None]:
    """Have the native writers run their tasks in this process while the block runs."""
    before = writer.run_in_tasks
    writer.run_in_tasks = in_process  # type: ignore[assignment]
    try:
        yield
    finally:
        writer.run_in_tasks = before


# -- what is written -------------------------------------------------------------------------------------------------

ROWS = 100_000
CHANGES = 50


def first_rows(lake: Lake, count: int = ROWS) -> None:
    lake.write(None, (made(["read"] * count, range(count), lake.lsn),))


def updates(lake: Lake, number: int) -> None:
    """Scattered updates, and a few new and deleted rows."""
    chosen = random.Random(number).sample(range(ROWS), CHANGES - 10)
    new = [ROWS + number * 5 + n for n in range(5)]
    old = [ROWS + (number - 20) * 5 + n for n in range(5)]
    ops = ["update"] * len(chosen) + ["create"] * 5 + ["delete"] * 5
    lake.write(made(ops, [*chosen, *new, *old], lake.lsn))


def inserts(lake: Lake, number: int) -> None:
    lake.write(made(["create"] * CHANGES, range(number * CHANGES, (number + 1) * CHANGES), lake.lsn))


def dumped(lake: Lake, number: int) -> None:
    """Two chunks of a dump, beside few changes of what was dumped before."""
    chunks = [range((2 * number + n) * 2000, (2 * number + n + 1) * 2000) for n in range(2)]
    lake.write(None, tuple(made(["read"] * 2000, chunk, lake.lsn) for chunk in chunks))


CASES: dict[str, tuple[str, Callable[[Lake], None] | None, Callable[[Lake, int], None]]] = {
    "50 changes into 100,000 rows": ("current", first_rows, updates),
    "50 new rows": ("current", None, inserts),
    "50 changes, mode log": ("log", None, inserts),
    "two chunks of a dump": ("current", None, dumped),
}


def measure(batches: int) -> Measured:
    """All formats and cases."""
    batches = max(batches, 2 * ENDS)
    with without_spark():
        return joined([_grown(form, case, batches) for form in FORMATS for case in CASES])


def _grown(form: str, case: str, batches: int) -> Measured:
    mode, prepare, write = CASES[case]
    with tempfile.TemporaryDirectory(prefix="dblog-bench-") as folder:
        lake = Lake(form, Path(folder), mode, "auto")
        if prepare is not None:
            prepare(lake)
        elapsed, used = [], []
        reads = []
        for number in range(batches):
            begin, cpu = time.perf_counter(), time.process_time()
            write(lake, number)
            elapsed.append(time.perf_counter() - begin)
            used.append(time.process_time() - cpu)
            time.sleep(PAUSE)
            if number in (ENDS - 1, batches - 1):
                reads.append(lake.read())
        lake.writer.close()
        done = lake.writer.maintenance_facts().get("counts", {})
        did = f"{_files(lake)}; maintenance: {', '.join(f'{count} {what}' for what, count in done.items()) or 'none'}"
    part = f"growth, {form}, {case}"
    figures = []
    growth = []
    for what, times in (("batch", elapsed), ("batch, processor time", used)):
        first, last = (tuple(1000 * t for t in some) for some in (times[:ENDS], times[-ENDS:]))
        figures += [
            Figure(part, f"{what}, first {ENDS}", first, "ms"),
            Figure(part, f"{what}, last {ENDS} of {batches}", last, "ms", f"slowest of all {1000 * max(times):.0f} ms"),
        ]
        growth.append(figures[-1].value / figures[-2].value)
    for when, (rows, own, plain) in zip((f"after {ENDS} batches", f"after {batches}"), reads, strict=True):
        note = f"{rows:,} rows; by pyarrow {1000 * plain:.0f} ms"
        figures.append(Figure(part, f"full read {when}", (1000 * own,), "ms", note))
    figures[-1] = replace(figures[-1], note=f"{figures[-1].note}; {did}")
    what = f"{form}, {case}: last batches against the first"
    return figures, [
        Target(what, growth[0], " x", None, least=False),
        Target(f"{what}, processor time", growth[1], " x", None, least=False),
    ]


def _files(lake: Lake) -> str:
    """What the table's folder has."""
    found = lake.tables.find(TABLE.table)
    assert found is not None
    log = lake.path / ("_delta_log" if lake.form == "delta" else "metadata")
    every = [f for f in lake.path.rglob("*") if f.is_file()]
    logs = [f for f in every if log in f.parents]
    size = sum(f.stat().st_size for f in logs)
    return (
        f"{len(found.listed('id'))} files in the table, {len(every) - len(logs)} in its folder; "
        f"log: {len(logs)} files, {size / 1e6:.1f} MB"
    )
