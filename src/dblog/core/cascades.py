"""Foreign keys that act: rules that change rows of a child table when a row of its parent changes.

Some databases run these rules without a record in their log (`sources.mysql.foreign_keys`). Then the log has *cascade
events* in place of the changed rows: "the rows of this table that refer to these values were deleted, or refer to those
values now". A target that has the rows applies the rule to them (`sinks.sql.cascades`).

The cascade events of a foreign key are a table of their own in the log, whose name only this module reads. Its schema
has the rule, and all rules that the rule can set off: a deleted child may itself be a parent.

`ambiguous` and `stale` say what cascades mean for a dump that runs beside them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc

from dblog.core.schema import Column, TableName, TableSchema

CASCADE, SET_NULL = "cascade", "set null"
"""The actions of a foreign key that change rows."""
DELETED = "deleted"
"""The column of cascade events that says whether the parent was deleted. Otherwise its referenced columns changed."""
_MARK = "\0"
"""Separates the parts of a cascade table's name. No database allows it in a name."""


@dataclass(frozen=True)
class ForeignKey:
    """A foreign key that acts."""

    name: str
    child: TableName
    columns: tuple[str, ...]
    """Columns of the child."""
    parent: TableName
    referenced: tuple[str, ...]
    """The columns of the parent that `columns` refer to, in the same order."""
    on_delete: str = ""
    """`CASCADE`, `SET_NULL`, or empty if it does not act."""
    on_update: str = ""

    def action(self, *, deleted: bool) -> str:
        """What happens to child rows when their parent is deleted, or gets other values."""
        return self.on_delete if deleted else self.on_update


@dataclass(frozen=True)
class Rules:
    """A foreign key, and those that it can set off."""

    first: ForeignKey
    others: tuple[ForeignKey, ...]
    """The foreign keys whose parents the first one changes, directly or through others of them. Without the first."""
    schemas: tuple[TableSchema, ...]
    """The schemas of all children."""

    @cached_property
    def keys(self) -> tuple[ForeignKey, ...]:
        return (self.first, *self.others)

    @cached_property
    def tables(self) -> frozenset[TableName]:
        """All children: the tables that may change."""
        return frozenset(key.child for key in self.keys)

    @cached_property
    def through(self) -> frozenset[TableName]:
        """The tables that are child and parent: their rows decide which other rows change."""
        return self.tables & {key.parent for key in self.keys}

    def below(self, table: TableName) -> frozenset[TableName]:
        """The tables that change because rows of a table do. The table itself is one of them if it refers to itself."""
        return frozenset(key.child for key in reached(table, self.keys))

    def needed(self) -> dict[TableName, frozenset[str]]:
        """By table, the columns that a target needs to apply the rules."""
        found: dict[TableName, set[str]] = {}
        for key in self.keys:
            found.setdefault(key.child, set()).update(key.columns)
            if key.parent in self.tables:
                found.setdefault(key.parent, set()).update(key.referenced)
        return {table: frozenset(columns) for table, columns in found.items()}


def reached(table: TableName, keys: Iterable[ForeignKey]) -> list[ForeignKey]:
    """The foreign keys that a change of the table's rows can set off, in the order of their names."""
    by_parent: dict[TableName, list[ForeignKey]] = {}
    for key in sorted(keys, key=lambda key: (key.child, key.name)):
        by_parent.setdefault(key.parent, []).append(key)
    found: dict[ForeignKey, None] = {}
    new = [table]
    while new:
        mine = [key for key in by_parent.get(new.pop(), ()) if key not in found]
        found |= dict.fromkeys(mine)
        new += [key.child for key in mine]
    return list(found)


@dataclass(frozen=True)
class Reach:
    """What an event may do to tables."""

    removed: frozenset[TableName]
    """The tables whose rows it may delete."""
    moved: frozenset[TableName]
    """The tables in which it may change columns that others refer to, or key columns."""
    rekeyed: frozenset[TableName]
    """The tables in which it may change key columns."""


def reach(rules: Rules, *, deleted: bool) -> Reach:
    """What an event of the first foreign key may do: the parent was `deleted`, or its referenced columns changed."""
    removed: set[TableName] = set()
    moved: set[TableName] = set()
    rekeyed: set[TableName] = set()
    keys = {schema.table: set(schema.key) for schema in rules.schemas}
    seen: set[tuple[ForeignKey, bool]] = set()
    new = [(rules.first, deleted)]
    while new:
        key, gone = new.pop()
        action = key.action(deleted=gone)
        if (key, gone) in seen or not action:
            continue
        seen.add((key, gone))
        following = [k for k in rules.keys if k.parent == key.child]
        if gone and action == CASCADE:
            removed.add(key.child)
            new += [(k, True) for k in following]
            continue
        hit = [k for k in following if set(key.columns) & set(k.referenced)]
        if set(key.columns) & keys[key.child]:
            rekeyed.add(key.child)
        if hit or key.child in rekeyed:
            moved.add(key.child)
        new += [(k, False) for k in hit]
    return Reach(frozenset(removed), frozenset(moved), frozenset(rekeyed))


def rules_of(first: ForeignKey, keys: Collection[ForeignKey], schemas: Mapping[TableName, TableSchema]) -> Rules:
    """The rules that an event of the first foreign key needs, among all `keys`."""
    others = tuple(key for key in reached(first.child, keys) if key != first)
    children = dict.fromkeys([first.child, *(key.child for key in others)])
    return Rules(first, others, tuple(schemas[child] for child in children))


# -- the table of cascade events -----------------------------------------------------------------------------------


def old_name(number: int) -> str:
    """The column of cascade events with the old value of a referenced column."""
    return f"old_{number}"


def new_name(number: int) -> str:
    """The column with the new value; null if the parent was deleted."""
    return f"new_{number}"


def cascade_schema(rules: Rules, types: Sequence[Column]) -> TableSchema:
    """The schema of a foreign key's cascade events. `types` are the parent's referenced columns."""
    columns = [Column(DELETED, "boolean", pa.bool_())]
    for name in (old_name, new_name):
        columns += [Column(name(number), c.type, c.arrow) for number, c in enumerate(types)]
    text = to_text(rules)
    mark = hashlib.sha256(text.encode()).hexdigest()[:16]
    child = rules.first.child
    table = TableName(child.schema, _MARK.join((child.name, rules.first.name, mark)))
    return TableSchema(table, tuple(columns), (), cascade=text)


def child_of(table: TableName) -> TableName | None:
    """The child table of a table of cascade events; None for any other table."""
    name, mark, _ = table.name.partition(_MARK)
    return TableName(table.schema, name) if mark else None


def to_text(rules: Rules) -> str:
    """The rules as a text, which is always the same for the same rules."""
    data = {
        "first": asdict(rules.first),
        "others": [asdict(key) for key in rules.others],
        "schemas": [_schema_data(schema) for schema in rules.schemas],
    }
    return json.dumps(data, sort_keys=True)


@lru_cache(maxsize=1000)
def from_text(text: str) -> Rules:
    """The rules that `to_text` wrote."""
    data = json.loads(text)
    others = tuple(_key(key) for key in data["others"])
    return Rules(_key(data["first"]), others, tuple(map(_schema, data["schemas"])))


def _key(data: Mapping[str, Any]) -> ForeignKey:
    return ForeignKey(
        data["name"],
        TableName(*data["child"]),
        tuple(data["columns"]),
        TableName(*data["parent"]),
        tuple(data["referenced"]),
        data["on_delete"],
        data["on_update"],
    )


def _schema_data(schema: TableSchema) -> dict[str, Any]:
    types = base64.b64encode(schema.arrow.serialize()).decode()
    return {"table": schema.table, "types": [c.type for c in schema.columns], "arrow": types, "key": schema.key}


def _schema(data: Mapping[str, Any]) -> TableSchema:
    fields = ipc.read_schema(pa.py_buffer(base64.b64decode(data["arrow"])))
    columns = tuple(Column(f.name, kind, f.type) for f, kind in zip(fields, data["types"], strict=True))
    return TableSchema(TableName(*data["table"]), columns, tuple(data["key"]))


# -- cascades and dumps --------------------------------------------------------------------------------------------


def ambiguous(events: Iterable[tuple[int, pa.RecordBatch]]) -> bool:
    """Whether rows that were read while these cascades happened cannot be told from rows read before them.

    A row that was read after a cascade gets it applied once more. That does nothing, because no row refers to the old
    values any more, except if a later cascade gave rows these values again: a parent with the value 3 got the value 4,
    and then another one got the value 3. `events` has batches of cascade events, in any order, each with the number of
    referenced columns. Values of all columns are compared with each other: it is enough that two are equal.
    """
    olds: dict[Any, tuple[int, int]] = {}
    news: dict[Any, tuple[int, int]] = {}
    for width, batch in events:
        places = list(zip(batch.column("_lsn").to_pylist(), batch.column("_seq").to_pylist(), strict=True))
        for number in range(width):
            old, new = (batch.column(name(number)).to_pylist() for name in (old_name, new_name))
            for place, value, after in zip(places, old, new, strict=True):
                olds[str(value)] = min(place, olds.get(str(value), place))
                if after is not None and after != value:
                    news[str(after)] = max(place, news.get(str(after), place))
    return any(olds[value] < place for value, place in news.items() if value in olds)


def stale(rules: Iterable[Rules], incomplete: Collection[TableName]) -> set[TableName]:
    """The tables whose rows cannot be trusted after a cascade, while the `incomplete` tables are still being dumped: a
    row that the target does not have yet was deleted, and with it rows that refer to it."""
    return {table for rule in rules for gap in rule.through if gap in incomplete for table in rule.below(gap)}
