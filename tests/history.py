"""What a stream has delivered, and what must be true of it whatever happened on the way.

    state      the events applied in their order give the source's rows, all columns
    order      per key, `(_lsn, _seq)` strictly grows; a batch that is delivered again repeats itself
    versions   per key, a row's version never goes back, and every version that was seen was once committed

A table that is `audited` supplies the last: a trigger gives each new state of a row a greater number and notes it, in
the same transaction, in a table that the stream does not follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]
METADATA = (
    "_op",
    "_lsn",
    "_seq",
    "_txid",
    "_committed_at",
    "_dump",
    "_schema",
    "_unchanged",
    "_raw_values",
    "_before",
    "_table",
)

AUDIT = """
create schema audit;
create sequence audit.versions;
create table audit.seen (name text, id text, version bigint);
create function audit.stamp() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then  -- an update has its row's lock; two inserts of a key are put in line here
    perform pg_advisory_xact_lock(hashtextextended(new.id::text, 0));
  end if;
  new.version := nextval('audit.versions');
  insert into audit.seen values (tg_table_name, new.id::text, new.version);
  return new;
end $$;
"""


def audited(table: str) -> str:
    """SQL that makes a table with the columns `id` and `version` an audited one, after `AUDIT`."""
    return f"create trigger stamp before insert or update on {table} for each row execute function audit.stamp();"


# The same for a table `t` of MySQL and MariaDB: who puts a row at a key has the lock on the key's row of a gate first.
_GATE = "select id into mine from audit_gate where id = new.id for update;"
MYSQL_AUDIT = (
    "create table audit_gate (id int primary key)",
    "create table audit_seen (id varchar(20), version bigint, primary key (version, id))",
    *(
        f"""create trigger stamp_{event} before {event} on t for each row begin
  declare mine int;
  {gate}
  set new.version = uuid_short();
  insert into audit_seen values (new.id, new.version);
end"""
        for event, gate in {"insert": _GATE, "update": f"if new.id <> old.id then {_GATE} end if;"}.items()
    ),
)


class History:
    """The events of a stream over one table, batch by batch."""

    def __init__(self, key: Sequence[str] = ("id",)) -> None:
        self.key = tuple(key)
        self.batches: dict[int, list[Row]] = {}

    def deliver(self, batch: int, rows: Iterable[Row]) -> None:
        """A batch; delivered again it must be the same."""
        rows = list(rows)
        before = self.batches.setdefault(batch, rows)
        assert before == rows, f"batch {batch} was delivered a second time with other events"

    @property
    def events(self) -> list[Row]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    def of(self, *values: Any) -> list[Row]:
        """The events of one key."""
        return [e for e in self.events if self.key_of(e) == values]

    def ops(self, *values: Any) -> list[str]:
        return [e["_op"] for e in self.of(*values)]

    def count(self, op: str) -> int:
        return sum(e["_op"] == op for e in self.events)

    def key_of(self, event: Row) -> tuple[Any, ...]:
        return tuple(_hashable(event.get(k)) for k in self.key)

    def state(self) -> dict[tuple[Any, ...], Row]:
        """The rows that a sink has which does what the events say."""
        rows: dict[tuple[Any, ...], Row] = {}
        for event in self.events:
            key = self.key_of(event)
            match event["_op"]:
                case "truncate":
                    gone = event.get("_table")
                    rows = {k: row for k, row in rows.items() if gone is not None and gone not in k}
                case "delete":
                    rows.pop(key, None)
                case _:
                    kept = {name: rows.get(key, {}).get(name, MISSING) for name in event["_unchanged"] or ()}
                    rows[key] = {k: v for k, v in event.items() if k not in METADATA} | kept
        return rows

    # -- what must be true -----------------------------------------------------------------------------------

    def check_order(self) -> None:
        last: dict[Any, tuple[int, int]] = {}
        for event in self.events:
            key, at = self.key_of(event), (event["_lsn"], event["_seq"])
            assert last.get(key, (-1, -1)) < at, f"{key} was at {last[key]} and then came {event}"
            last[key] = at

    def stale(self) -> list[tuple[Row, Row]]:
        """Pairs of events of a key, in the order of delivery, whose versions go back."""
        last: dict[Any, Row] = {}
        found = []
        for event in self.events:
            if event["_op"] in ("delete", "truncate"):
                continue
            before = last.get(self.key_of(event))
            if before is not None and before["version"] > event["version"]:
                found.append((before, event))
            last[self.key_of(event)] = event
        return found

    def check_versions(self, audit: Iterable[tuple[str, int]]) -> None:
        existed = {(key, version) for key, version in audit}
        for event in self.events:
            if event["_op"] not in ("delete", "truncate"):
                version = (str(self.key_of(event)[0]), event["version"])
                assert version in existed, f"never committed: {event}"
        assert not self.stale()

    def check_state(self, source: Iterable[Row]) -> None:
        """The state equals the source's rows, column for column."""
        theirs = {tuple(_hashable(row[k]) for k in self.key): row for row in source}
        mine = self.state()
        assert not theirs.keys() - mine.keys(), f"not delivered: {sorted(map(repr, theirs.keys() - mine.keys()))[:10]}"
        assert not mine.keys() - theirs.keys(), f"gone since: {sorted(map(repr, mine.keys() - theirs.keys()))[:10]}"
        different = [(mine[k], theirs[k]) for k in theirs if not _same(mine[k], theirs[k])]
        assert not different, f"delivered, source: {different[:5]}"


class _Missing:
    def __repr__(self) -> str:
        return "<never delivered>"


MISSING = _Missing()
"""The value of a column that no event has carried."""


def _hashable(value: Any) -> Any:
    if isinstance(value, float):  # a NaN is the same key as another, and a negative zero the same as zero
        return "nan" if value != value else value + 0.0
    return tuple(value) if isinstance(value, list) else value


def _same(mine: Row, theirs: Row) -> bool:
    return mine.keys() == theirs.keys() and all(_hashable(mine[k]) == _hashable(theirs[k]) for k in mine)
