"""What a task does for a table of a lake, against a model: random histories, cut into batches at random.

The files are kept in memory. After each batch the table must be what the history says, event by event.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dblog.core.event import DUMP_SEQ, UTC_MICROS
from dblog.core.schema import Column, TableName, TableSchema
from dblog.sinks.lake.native import write
from dblog.sinks.lake.native.files import LakeFiles, ListedFile, NewFile
from dblog.sinks.lake.native.write import TablePart, Target, rewrite, write_part
from dblog.sinks.net_rows import net_changes
from dblog.work.rows import Typed

KINDS = {
    "int": (pa.int64(), lambda k: k),
    "text": (pa.string(), lambda k: f"key {k}"),
    "float": (pa.float64(), lambda k: [0.0, float("nan"), 1.5, -2.5, float("inf"), 9.0][k]),
    "list": (pa.list_(pa.int32()), lambda k: [k, None]),
}
"""Types of the first key column."""
NOW = 1_000_000_000


class MemoryFiles(LakeFiles):
    """Files of few rows, in memory."""

    def __init__(self, schema: pa.Schema, rows_per_file: int, key: str) -> None:
        self.schema = schema
        self.kept: dict[str, pa.Table] = {}
        self.new: dict[str, pa.Table] = {}
        self.reads = 0
        self._rows = rows_per_file
        self._key = key
        self._next = 0

    def read(self, file: ListedFile, columns: Sequence[str]) -> pa.Table:
        self.reads += 1
        return self.kept[file.name].select(columns)

    def write(self, tables: Iterable[pa.Table]) -> list[NewFile]:
        made = []
        for table in tables:
            assert table.schema.equals(self.schema), (table.schema, self.schema)
            for at in range(0, table.num_rows, self._rows):
                self._next += 1
                name = f"f{self._next}"
                self.new[name] = table.slice(at, self._rows)
                made.append(NewFile(name, None))
        return made

    def listed(self) -> tuple[ListedFile, ...]:
        def bounds(rows: pa.Table) -> tuple[Any, Any] | None:
            kind = rows.schema.field(self._key).type
            values = rows[self._key].to_pylist()
            return (min(values), max(values)) if pa.types.is_integer(kind) or pa.types.is_string(kind) else None

        return tuple(
            ListedFile(name, rows.nbytes, bounds(rows), max(rows["_lsn"].to_pylist()))
            for name, rows in self.kept.items()
        )

    def commit(self, added: Iterable[NewFile], removed: Iterable[str]) -> None:
        gone = set(removed)
        assert gone <= set(self.kept)
        self.kept = {n: t for n, t in self.kept.items() if n not in gone} | {f.name: self.new[f.name] for f in added}

    def rows(self) -> list[dict[str, Any]]:
        return [row for table in self.kept.values() for row in table.to_pylist()]


@dataclass
class GivenRows:
    given_changes: list[pa.RecordBatch]
    given_rows: list[pa.RecordBatch]
    overlapping: bool = False

    def changes(self) -> list[pa.RecordBatch]:
        return self.given_changes

    def dump_rows(self) -> list[pa.RecordBatch]:
        return self.given_rows


@dataclass
class World:
    """A table with the key `(k, j)` and the columns `a` and `b`, its history, and what it should be."""

    kind: str
    seed: int
    state: dict[int, dict[str, Any]] = field(default_factory=dict)
    versions: list[dict[str, Any]] = field(default_factory=list)
    lsn: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        kind, self.key = KINDS[self.kind]
        columns = (
            Column("k", "", kind),
            Column("j", "", pa.int32()),
            Column("a", "", pa.string()),
            Column("b", "", pa.float64()),
        )
        self.schema = TableSchema(TableName("public", "t"), columns, ("k", "j"))

    def batch(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]], tuple[int, int] | None]:
        """Changes, dump rows, and where the last truncate is."""
        changes: list[dict[str, Any]] = []
        for _ in range(self.random.randrange(0, 7)):
            self.lsn += self.random.randrange(1, 3)
            changes += [self.change(seq) for seq in range(self.random.randrange(1, 3))]
        self.lsn += 1
        touched = {e["id"] for e in changes}
        emptied = any(e["op"] == "truncate" for e in changes)
        rows = []
        for key in self.random.sample(range(6), self.random.randrange(0, 4)):
            if key in self.state and key not in touched and not emptied:
                event = {"op": "read", "lsn": self.lsn, "seq": DUMP_SEQ, "id": key, "unchanged": None}
                rows.append({**event, **{n: self.state[key][n] for n in "ab"}, "at": None})
                self.state[key]["order"] = (self.lsn, DUMP_SEQ)
                self.dumped(key)
        truncates = [(e["lsn"], e["seq"]) for e in changes if e["op"] == "truncate"]
        return changes, rows, max(truncates, default=None)

    def change(self, seq: int) -> dict[str, Any]:
        key = self.random.randrange(6)
        event: dict[str, Any] = {"lsn": self.lsn, "seq": seq, "id": key, "unchanged": None, "at": self.lsn * 1000}
        draw = self.random.random()
        order = (self.lsn, seq)
        if draw < 0.06:
            self.state.clear()
            self.close(None, event["at"])
            return {**event, "op": "truncate", "id": None, "a": None, "b": None}
        if key not in self.state:
            values = {"a": self.random.choice(["x", None, "y"]), "b": self.random.choice([0.5, None, float("nan")])}
            if self.random.random() < 0.3:  # it was created before the table had the column
                values["b"], event["unchanged"] = None, ["b"]
            self.state[key] = {**values, "order": order}
            self.open(key, order, event["at"])
            return {**event, "op": "create", **values}
        if draw < 0.3:
            old = self.state.pop(key)
            self.close(key, event["at"])
            known = self.random.random() < 0.5  # some logs have the old row
            return {**event, "op": "delete", **{n: old[n] if known else None for n in "ab"}}
        left_out = self.random.choice([[], ["a"], ["b"], ["a", "b"]])
        new = {"a": f"v{self.random.randrange(4)}", "b": float(self.random.randrange(3))}
        values = {n: None if n in left_out else new[n] for n in "ab"}
        self.state[key] = {**self.state[key], **{n: v for n, v in values.items() if n not in left_out}, "order": order}
        self.close(key, event["at"])
        self.open(key, order, event["at"])
        return {**event, "op": "update", **values, "unchanged": left_out or None}

    # -- the history that the table should have: times of commits grow here, so that none has to be corrected

    def open(self, key: int, order: tuple[int, int], at: int) -> None:
        values = {n: self.state[key][n] for n in "ab"}
        self.versions.append({"id": key, **values, "order": order, "from": at, "to": None})

    def close(self, key: int | None, at: int) -> None:
        for version in self.versions:
            if version["to"] is None and key in (None, version["id"]):
                version["to"] = max(at, version["from"])

    def dumped(self, key: int) -> None:
        """A dump row shows a state that has an open version: nothing changes."""

    # -- as Arrow

    def arrow(self, events: Sequence[dict[str, Any]]) -> list[pa.RecordBatch]:
        if not events:
            return []
        shape = Typed(self.schema, before=False).arrow
        rows = [
            {
                "k": None if e["id"] is None else self.key(e["id"]),
                "j": e["id"],
                "a": e["a"],
                "b": e["b"],
                "_op": e["op"],
                "_lsn": e["lsn"],
                "_seq": e["seq"],
                "_txid": 1,
                "_committed_at": e["at"],
                "_unchanged": e["unchanged"],
            }
            for e in events
        ]
        batch = pa.RecordBatch.from_pylist(rows, schema=shape)
        cut = self.random.randrange(0, len(events) + 1)
        return [part for part in (batch.slice(0, cut), batch.slice(cut)) if part.num_rows]


def shown(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and value != value else value


def micros(value: datetime.datetime | None) -> int | None:
    return None if value is None else round(value.timestamp() * 1e6)


def files_for(world: World, mode: str) -> MemoryFiles:
    own = [pa.field("_lsn", pa.int64()), pa.field("_seq", pa.int32())]
    if mode == "history":
        own += [pa.field("valid_from", UTC_MICROS), pa.field("valid_to", UTC_MICROS)]
    return MemoryFiles(pa.schema([*world.schema.arrow, *own]), world.random.choice([1, 2, 100]), "k")


def apply(world: World, files: MemoryFiles, mode: str, *, split: bool) -> None:
    changes, rows, truncated = world.batch()
    names = {name: name for name in world.schema.names}
    target = Target(world.schema, names, files, files.listed(), mode, truncated, NOW)
    parts = [GivenRows(world.arrow(changes), world.arrow(rows))]
    if split and truncated is None:
        parts = [GivenRows(world.arrow(changes), []), *(GivenRows([], world.arrow([row])) for row in rows)]
    done = [write_part(TablePart(target, part, alone=len(parts) == 1)) for part in parts]
    masks: dict[str, list[bytes]] = {}
    for one in done:
        for name, mask in one.replaced.items():
            masks.setdefault(name, []).append(mask)
    if masks:
        done.append(rewrite(target, masks))
    files.commit([f for one in done for f in one.added], [n for one in done for n in one.removed])


@pytest.fixture
def _compacting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "SMALL_FILES", 3)
    monkeypatch.setattr(write, "SLICED_ROWS", 3)


@pytest.mark.usefixtures("_compacting")
@pytest.mark.parametrize("split", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_the_table_has_the_rows_of_the_source_after_every_batch(kind: str, split: bool) -> None:
    for seed in range(20):
        world = World(kind, seed)
        files = files_for(world, "current")
        for number in range(6):
            apply(world, files, "current", split=split)
            found = {r["j"]: (r["a"], shown(r["b"]), (r["_lsn"], r["_seq"])) for r in files.rows()}
            assert len(found) == len(files.rows()), f"seed {seed}, batch {number}: a key is there twice"
            wanted = {key: (row["a"], shown(row["b"]), row["order"]) for key, row in world.state.items()}
            assert found == wanted, f"seed {seed}, batch {number}"


@pytest.mark.parametrize("split", [False, True], ids=["whole", "parts"])
def test_the_table_has_every_version_after_every_batch(split: bool) -> None:
    for seed in range(40):
        world = World("int", seed)
        files = files_for(world, "history")
        for number in range(6):
            apply(world, files, "history", split=split)
            found = [
                (r["j"], r["a"], shown(r["b"]), micros(r["valid_from"]), micros(r["valid_to"])) for r in files.rows()
            ]
            wanted = [(v["id"], v["a"], shown(v["b"]), v["from"], v["to"]) for v in world.versions]
            assert sorted(found, key=str) == sorted(wanted, key=str), f"seed {seed}, batch {number}"


def test_a_row_is_never_replaced_by_an_older_state() -> None:
    world = World("int", 1)
    files = files_for(world, "current")
    names = {name: name for name in world.schema.names}
    row = {"seq": 1, "unchanged": None, "b": 1.0, "at": 1}
    newer = [{**row, "op": "create", "lsn": 9, "id": k, "a": "newer"} for k in range(3)]
    older = [
        {**row, "op": "update", "lsn": 8, "seq": 7, "id": 0, "a": "older"},
        {**row, "op": "delete", "lsn": 9, "seq": 0, "id": 1, "a": None},
        {**row, "op": "update", "lsn": 9, "seq": 1, "id": 2, "a": "the same"},
        {**row, "op": "create", "lsn": 8, "id": 3, "a": "beside"},
    ]
    for events in (newer, older):
        target = Target(world.schema, names, files, files.listed(), "current", None, NOW)
        done = write_part(TablePart(target, GivenRows(world.arrow(events), []), alone=True))
        files.commit(done.added, done.removed)
    assert sorted((r["j"], r["a"]) for r in files.rows()) == [
        (0, "newer"),
        (1, "newer"),
        (2, "newer"),
        (3, "beside"),
    ]


def test_nothing_is_kept_of_a_row_that_a_truncate_took() -> None:
    world = World("int", 1)
    files = files_for(world, "current")
    names = {name: name for name in world.schema.names}
    row = {"seq": 0, "b": 1.0, "at": 1, "unchanged": None}
    read = {**row, "op": "read", "lsn": 9, "seq": DUMP_SEQ, "id": 1, "a": None, "unchanged": ["a"]}
    for changes, rows, truncated in (
        ([{**row, "op": "create", "lsn": 5, "id": 1, "a": "old"}], [], None),
        ([{**row, "op": "truncate", "lsn": 5, "seq": 3, "id": None, "a": None}], [read], (5, 3)),
    ):
        target = Target(world.schema, names, files, files.listed(), "current", truncated, NOW)
        done = write_part(TablePart(target, GivenRows(world.arrow(changes), world.arrow(rows)), alone=True))
        files.commit(done.added, done.removed)
    assert [(r["j"], r["a"], r["b"]) for r in files.rows()] == [(1, None, 1.0)]


def test_only_files_that_may_have_a_key_are_read() -> None:
    world = World("int", 1)
    files = files_for(world, "current")
    files._rows = 10
    names = {name: name for name in world.schema.names}

    def event(op: str, lsn: int, key: int) -> dict[str, Any]:
        return {"op": op, "lsn": lsn, "seq": 0, "id": key, "unchanged": None, "a": "x", "b": 1.0, "at": lsn}

    def write_events(*events: dict[str, Any]) -> None:
        world.key = lambda k: k
        target = Target(world.schema, names, files, files.listed(), "current", None, NOW)
        done = write_part(TablePart(target, GivenRows(world.arrow(events), []), alone=True))
        files.commit(done.added, done.removed)

    write_events(*(event("create", 1 + k, k) for k in range(50)))
    assert (len(files.kept), files.reads) == (5, 0)
    write_events(event("update", 100, 25))
    assert files.reads == 2, "the keys of one file, and then the file"
    assert len(files.kept) == 6, "the new row is in a file of its own, because a file here has ten rows at most"


def test_a_truncate_removes_old_files_without_reading_them() -> None:
    world = World("int", 1)
    files = files_for(world, "current")
    names = {name: name for name in world.schema.names}
    row = {"seq": 0, "unchanged": None, "a": "x", "b": 1.0, "at": 1}
    for batch, truncated in (
        ([{**row, "op": "create", "lsn": 1, "id": k} for k in range(6)], None),
        ([{**row, "op": "truncate", "lsn": 9, "id": None}], (9, 0)),
    ):
        target = Target(world.schema, names, files, files.listed(), "current", truncated, NOW)
        done = write_part(TablePart(target, GivenRows(world.arrow(batch), []), alone=True))
        files.commit(done.added, done.removed)
    assert (files.rows(), files.reads) == ([], 0)


def test_columns_that_the_batch_does_not_have_are_kept() -> None:
    world = World("int", 1)
    schema = pa.schema([*world.schema.arrow, ("_lsn", pa.int64()), ("_seq", pa.int32()), ("theirs", pa.string())])
    files = MemoryFiles(schema, 10, "k")
    files.kept["old"] = pa.Table.from_pylist(
        [{"k": n, "j": n, "a": "old", "b": 0.0, "_lsn": 1, "_seq": 0, "theirs": f"t{n}"} for n in range(3)], schema
    )
    names = {name: name for name in world.schema.names if name != "a"}
    target = Target(world.schema, names, files, files.listed(), "current", None, NOW)
    base = {"seq": 0, "unchanged": None, "a": "new", "b": 2.0, "at": 1}
    events = [{**base, "op": "update", "lsn": 5, "id": 1}, {**base, "op": "create", "lsn": 6, "id": 4}]
    done = write_part(TablePart(target, GivenRows(world.arrow(events), []), alone=True))
    files.commit(done.added, done.removed)
    found = {r["j"]: (r["a"], r["b"], r["theirs"]) for r in files.rows()}
    assert found == {
        0: ("old", 0.0, "t0"), 1: ("old", 2.0, "t1"), 2: ("old", 0.0, "t2"), 4: (None, 2.0, None)
    }  # fmt: skip


def test_the_net_effect_says_what_the_batch_does_not_have() -> None:
    world = World("int", 3)
    base = {"seq": 0, "a": None, "b": None, "at": 1}
    events = [
        {**base, "op": "update", "lsn": 1, "id": 1, "a": "x", "unchanged": ["b"]},
        {**base, "op": "update", "lsn": 2, "id": 1, "b": 2.0, "unchanged": ["a"]},
        {**base, "op": "update", "lsn": 3, "id": 2, "b": 3.0, "unchanged": ["a"]},
        {**base, "op": "delete", "lsn": 4, "id": 3, "unchanged": None},
        {**base, "op": "create", "lsn": 5, "id": 3, "a": "new", "unchanged": None},
        {**base, "op": "update", "lsn": 6, "id": 3, "unchanged": ["a", "b"]},
    ]
    net = net_changes(world.arrow(events), world.schema, None)
    assert [(r["j"], r["_op"], r["a"], r["b"]) for r in net.rows.to_pylist()] == [
        (1, "update", "x", 2.0),
        (2, "update", None, 3.0),
        (3, "update", "new", None),
    ]
    assert {name: np.flatnonzero(mask).tolist() for name, mask in net.missing.items()} == {"a": [1]}
    assert net.whole.tolist() == [False, False, True]
