"""From events to runs: transactions, positions, ordinals, watermarks, and what a table map holds for."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog.core.event import Op
from dblog.core.schema import TableName, TableSchema
from dblog.databases.mysql.flavor import MARIADB
from dblog.databases.mysql.gtid import GtidPosition
from dblog.errors import DecodeError, PositionLost
from dblog.sources.base import Run
from dblog.sources.mysql.codecs import table_schema
from dblog.sources.mysql.column_types import Code
from dblog.sources.mysql.decoder import Decoder
from dblog.sources.mysql.events import Type, position
from dblog.sources.mysql.statements import Definition
from dblog.sources.mysql.tablemap import TableMap
from tests.unit.sources.mysql.build import Field, number, short, varchar
from tests.unit.sources.mysql.log import WHEN, Log

WATERMARK = TableName("dblog", "watermark")
COLUMNS = [number("id", Code.int, nullable=False), varchar("v")]
TOKENS = [number("id", Code.int, nullable=False), varchar("token")]
INSERT, UPDATE, DELETE = 23, 24, 25


class Shop:
    """All tables of `shop` but those named `other...` are captured; `known` are in the catalog."""

    def __init__(self, known: dict[TableName, TableSchema] | None = None) -> None:
        self.known = known or {}
        self.asked: list[TableName] = []
        self.checked: list[Definition] = []

    def captured(self, table: TableName) -> bool:
        return table.schema == "shop" and not table.name.startswith("other")

    def schema(self, mapped: TableMap) -> TableSchema:
        self.asked.append(mapped.table)
        return table_schema(mapped, MARIADB)

    def met(self, table: TableName) -> bool:
        return True

    def latest(self, table: TableName) -> TableSchema | None:
        return self.known.get(table)

    def check(self, said: Definition) -> None:
        self.checked.append(said)

    def prepared(self, name: str, before: int) -> list[TableName] | None:
        return None


def decoder(tables: Shop | None = None, begin: int = 0, *, before: bool = False) -> Decoder:
    return Decoder(tables or Shop(), MARIADB, begin, watermark=WATERMARK, before=before)


def row(key: int, value: str | None = "x") -> list[bytes | None]:
    return [struct.pack("<i", key), None if value is None else short(value.encode())]


def told(runs: Sequence[Run]) -> list[tuple[Any, ...]]:
    """Table, operation, position, ordinal and key of every change, in the order of their ordinals."""
    found = []
    for run in runs:
        for schema, batch in run.changes:
            names = ["_op", "_lsn", "_seq", "id"]
            for op, lsn, seq, key in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                found.append((schema.table.name, Op(op).name, lsn, seq, key))
    return sorted(found, key=lambda change: change[2:4])


def transaction(log: Log, *keys: int, table: int = 77, name: str = "t", fields: Sequence[Field] = COLUMNS) -> int:
    """Insert some rows; where it began."""
    begin = log.begin(len(log.events))
    log.map(fields, name, table)
    log.rows(INSERT, *map(row, keys), table=table)
    log.commit()
    return begin


def watermark(log: Log, token: str) -> int:
    log.begin()
    log.map(TOKENS, "watermark", 5, "dblog")
    log.rows(UPDATE, row(1, "old"), row(1, token), table=5)
    return log.commit()


def test_a_transaction_is_at_the_position_where_it_begins_and_ends_behind_its_commit() -> None:
    log = Log(3)
    first = log.begin(41, when=WHEN)
    log.map(COLUMNS)
    log.rows(INSERT, row(1), row(2))
    log.rows(UPDATE, row(1), row(1, "y"), row(2), row(7))
    log.rows(DELETE, row(7))
    end = log.commit()
    (run,) = decoder().feed(log.packets())
    assert told([run]) == [
        ("t", "create", first, 0, 1),
        ("t", "create", first, 2, 2),
        ("t", "update", first, 4, 1),
        ("t", "delete", first, 6, 2),
        ("t", "create", first, 7, 7),
        ("t", "delete", first, 8, 7),
    ]
    batch = run.changes[0][1]
    assert set(batch.column("_txid").to_pylist()) == {41}
    assert batch.column("_committed_at").cast(pa.int64()).to_pylist() == [WHEN * 1_000_000] * 6
    assert run.position == end
    assert (run.commits.numbers.tolist(), run.commits.rows.tolist()) == ([41], [5])
    assert run.nbytes == run.commits.nbytes[0] == sum(map(len, log.events[2:]))
    assert run.committed_at == WHEN * 1_000_000


def test_mysqls_transactions_have_the_time_and_number_of_their_gtid() -> None:
    log = Log()
    begin = log.mysql_begin(12, micros=1_700_000_000_123_456)
    log.query("BEGIN")
    log.map(COLUMNS)
    log.rows(30, row(1))
    log.query("SAVEPOINT a")
    log.rows(30, row(2))
    end = log.commit()
    (run,) = decoder().feed(log.packets())
    assert [change[1:] for change in told([run])] == [("create", begin, 0, 1), ("create", begin, 2, 2)]
    assert run.commits.numbers.tolist() == [12]
    assert (run.position, run.committed_at) == (end, 1_700_000_000_123_456)


def test_a_replica_of_mysql_says_when_its_primary_committed() -> None:
    log = Log()
    log.mysql_begin(12, micros=1_700_000_000_123_456, first=1_600_000_000_654_321)
    log.query("BEGIN")
    log.map(COLUMNS)
    log.rows(30, row(1))
    log.commit()
    (run,) = decoder().feed(log.packets())
    assert run.committed_at == 1_600_000_000_654_321


def test_an_engine_without_transactions_commits_with_a_statement() -> None:
    log = Log()
    log.begin()
    log.map(COLUMNS)
    log.rows(INSERT, row(1))
    end = log.query("COMMIT")
    (run,) = decoder().feed(log.packets())
    assert (run.position, len(told([run]))) == (end, 1)


@pytest.mark.parametrize("mysql", [False, True])
def test_a_definition_is_a_transaction_without_rows(mysql: bool) -> None:
    log = Log()
    transaction(log, 1)
    log.mysql_begin() if mysql else log.begin(statement=True)
    second = log.query("ALTER TABLE t ADD w int")
    wider = [*COLUMNS, number("w", Code.int)]
    log.begin()
    log.map(wider, table=78)
    log.rows(INSERT, [*row(2), struct.pack("<i", 5)], table=78)
    log.commit()
    (run,) = decoder().feed(log.packets())
    assert run.commits.positions[1] == second
    assert run.commits.rows.tolist() == [1, 1, 2]
    assert [schema.names for schema, _ in run.changes] == [("id", "v"), ("id", "v", "w")]


@pytest.mark.parametrize("mysql", [False, True])
def test_a_table_that_is_created_with_its_rows_is_one_transaction(mysql: bool) -> None:
    log = Log()
    if mysql:
        log.mysql_begin()
        log.query("BEGIN")
    else:
        log.begin()
    log.query("CREATE TABLE `t` (`id` int, `v` varchar(200))")
    log.map(COLUMNS)
    log.rows(INSERT, row(1))
    end = log.commit()
    (run,) = decoder().feed(log.packets())
    assert run.commits.positions.tolist() == [end]


def test_a_truncate_is_a_change_of_a_captured_table() -> None:
    log = Log()
    transaction(log, 1)
    schema = decoder().feed(log.packets())[0].changes[0][0]
    first = log.begin(statement=True)
    log.query("TRUNCATE TABLE t")
    log.begin(statement=True)
    log.query("TRUNCATE TABLE other")
    log.begin(statement=True)
    log.query("TRUNCATE TABLE `shop`.`unseen`")
    log.begin(statement=True)
    log.query("TRUNCATE TABLE dropped")  # captured by its name, but there is no such table any more
    known = TableSchema(TableName("shop", "unseen"), schema.columns, schema.key)
    (run,) = decoder(Shop({known.table: known})).feed(log.packets())
    emptied = [change for change in told([run]) if change[1] == "truncate"]
    assert [(name, seq, key) for name, _, _, seq, key in emptied] == [("t", 0, None), ("unseen", 0, None)]
    assert emptied[0][2] == first
    assert run.commits.rows.tolist() == [1, 2, 2, 3, 3]


def test_ordinals_count_the_changes_of_all_tables() -> None:
    log = Log()
    log.begin()
    log.map(COLUMNS, "a", 1)
    log.rows(INSERT, row(1), row(2), table=1)
    log.map(COLUMNS, "b", 2)
    log.rows(INSERT, row(3), table=2)
    log.map(COLUMNS, "a", 1)
    log.rows(DELETE, row(1), table=1)
    log.commit()
    runs = decoder().feed(log.packets())
    assert [(name, seq, key) for name, _, _, seq, key in told(runs)] == [
        ("a", 0, 1),
        ("a", 2, 2),
        ("b", 4, 3),
        ("a", 6, 1),
    ]


def test_a_table_that_is_opened_again_stays_in_order() -> None:
    log = Log()
    for table, key in ((1, 10), (2, 11), (1, 12), (2, 13)):
        transaction(log, key, table=table)
    (run,) = decoder().feed(log.packets())
    ((_, batch),) = run.changes
    assert batch.column("id").to_pylist() == [10, 11, 12, 13]


def test_a_table_that_is_not_captured_is_not_read() -> None:
    log = Log()
    transaction(log, 1, name="other", table=3)
    transaction(log, 2)
    tables = Shop()
    (run,) = decoder(tables).feed(log.packets())
    assert [change[4] for change in told([run])] == [2]
    assert tables.asked == [TableName("shop", "t")]
    assert run.commits.rows.tolist() == [0, 1]


def test_a_watermark_ends_its_run() -> None:
    log = Log()
    transaction(log, 1)
    low = watermark(log, "low")
    transaction(log, 2)
    high = watermark(log, "high")
    transaction(log, 3)
    runs = decoder().feed(log.packets())
    assert [run.token for run in runs] == ["low", "high", None]
    assert [run.position for run in runs] == [low, high, log.position]
    assert [[change[4] for change in told([run])] for run in runs] == [[1], [2], [3]]
    assert [run.commits.rows.tolist() for run in runs] == [[1, 1], [1, 1], [1]]
    assert sum(run.nbytes for run in runs) == sum(map(len, log.events[2:]))


def test_a_watermark_that_is_deleted_is_none() -> None:
    log = Log()
    log.begin()
    log.map(TOKENS, "watermark", 5, "dblog")
    log.rows(DELETE, row(1, "gone"), table=5)
    log.commit()
    assert [run.token for run in decoder().feed(log.packets())] == [None]


def test_the_old_rows_are_there_when_asked_for() -> None:
    log = Log()
    log.begin()
    log.map(COLUMNS)
    log.rows(UPDATE, row(1, "old"), row(1, "new"))
    log.commit()
    watermark(log, "w")
    (run,) = decoder(before=True).feed(log.packets())
    assert run.changes[0][1].column("_before").to_pylist() == [{"id": 1, "v": "old"}]


# --- parts ----------------------------------------------------------------------------------------------------------


def varied() -> Log:
    """A log with something of everything."""
    log = Log()
    transaction(log, 1, 2)
    watermark(log, "a")
    log.mysql_begin(5)
    log.query("BEGIN")
    log.map(COLUMNS)
    log.rows(INSERT, row(3), row(4))
    log.map(COLUMNS, "u", 8)
    log.rows(INSERT, row(5), table=8)
    log.rows(UPDATE, row(3), row(6))
    log.rows(INSERT, row(9), table=8)
    log.query("COMMIT")
    log.begin(statement=True)
    log.query("TRUNCATE TABLE t")
    log.enter(2)
    log.begin(11)
    log.map(TOKENS, "watermark", 5, "dblog")
    log.rows(UPDATE, row(1, "old"), row(1, "b"), table=5)
    log.map(COLUMNS, "other", 4)
    log.rows(INSERT, row(1), table=4)
    log.map(COLUMNS)
    log.rows(INSERT, row(7))
    log.commit()
    return log


VARIED = varied()


def commits(runs: Sequence[Run]) -> list[tuple[int, int]]:
    return [
        pair for run in runs for pair in zip(run.commits.positions.tolist(), run.commits.numbers.tolist(), strict=True)
    ]


@given(st.lists(st.integers(0, len(VARIED.events)), max_size=8))
def test_nothing_depends_on_where_the_packets_are_cut(cuts: list[int]) -> None:
    whole = decoder().feed(VARIED.packets())
    places = sorted({0, *cuts, len(VARIED.events)})
    reading = decoder()
    runs = [run for a, b in itertools.pairwise(places) for run in reading.feed(VARIED.packets(a, b))]
    assert told(runs) == told(whole)
    assert commits(runs) == commits(whole)
    assert [run.token for run in runs if run.token] == ["a", "b"]
    assert sum(run.nbytes for run in runs) == sum(run.nbytes for run in whole)
    assert reading.position == VARIED.position
    assert not reading.inside


def test_every_commit_is_a_place_to_begin_at() -> None:
    whole = decoder().feed(VARIED.packets())
    catalog = {schema.table: schema for run in whole for schema, _ in run.changes}
    second = next(n for n, made in enumerate(VARIED.events) if made.endswith(b"binlog.000002"))
    for end, _ in commits(whole):
        runs = decoder(Shop(catalog), end).feed(VARIED.packets(0 if end < position(2, 0) else second))
        assert told(runs) == [change for change in told(whole) if change[2] >= end]
        assert commits(runs) == [pair for pair in commits(whole) if pair[0] > end]


def test_a_transaction_that_is_still_arriving_has_no_position() -> None:
    log = Log()
    begin = log.begin()
    log.map(COLUMNS)
    log.rows(INSERT, row(1))
    reading = decoder()
    (part,) = reading.feed(log.packets())
    assert (part.position, part.nbytes) == (None, sum(map(len, log.events[2:])))
    assert reading.inside
    assert told([part]) == [("t", "create", begin, 0, 1)]
    seen = len(log.events)
    log.rows(INSERT, row(2))
    end = log.commit()
    (rest,) = reading.feed(log.packets(seen))
    assert told([rest]) == [("t", "create", begin, 2, 2)]
    assert rest.position == end


def test_a_transaction_that_a_crash_cut_short_never_happened() -> None:
    log = Log()
    transaction(log, 1)
    log.begin()
    log.map(COLUMNS)
    log.rows(INSERT, row(2))
    short_of = len(log.events)
    log.enter(2)
    transaction(log, 3)
    runs = decoder().feed(log.packets())
    assert [change[4] for change in told(runs)] == [1, 3]
    reading = decoder()
    reading.feed(log.packets(0, short_of))  # too late: a part of it was given away
    with pytest.raises(DecodeError, match="does not end"):
        reading.feed(log.packets(short_of))


# --- what is wrong --------------------------------------------------------------------------------------------------


def broken(log: Log) -> pytest.ExceptionInfo[DecodeError]:
    with pytest.raises(DecodeError) as failure:
        decoder().feed(log.packets())
    return failure


def test_rows_outside_a_transaction_are_an_error() -> None:
    log = Log()
    log.map(COLUMNS)
    log.rows(INSERT, row(1))
    assert "outside a transaction" in str(broken(log).value)


def test_begins_and_commits_alternate() -> None:
    log = Log()
    log.begin()
    log.begin()
    log.commit()
    assert "do not alternate" in str(broken(log).value)
    log = Log()
    log.commit()
    assert "do not alternate" in str(broken(log).value)
    log = Log()
    log.query("CREATE TABLE t (id int)")
    assert "do not alternate" in str(broken(log).value)


@pytest.mark.parametrize("table", [77, 99])
def test_a_table_map_holds_for_its_own_transaction_and_table(table: int) -> None:
    log = Log()
    transaction(log, 1)
    log.begin()
    if table == 99:
        log.map(COLUMNS)
    log.rows(INSERT, row(1), table=table)
    log.commit()
    assert f"rows of table {table}, which it has not described" in str(broken(log).value)


def test_a_map_of_an_earlier_call_holds_for_the_transaction_that_goes_on_and_no_other() -> None:
    log = Log()
    log.begin()
    log.map(COLUMNS)
    log.rows(INSERT, row(1))
    seen = len(log.events)
    log.commit()
    log.begin()
    log.rows(INSERT, row(2))
    reading = decoder()
    reading.feed(log.packets(0, seen))
    with pytest.raises(DecodeError, match="has not described"):
        reading.feed(log.packets(seen))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (17, "LOAD DATA"),
        (0, "an event of type 0"),
        (20, "an event of type 20"),
        (43, "an event of type 43"),
        (200, "an event of type 200"),
        (255, "an event of type 255"),
    ],
)
def test_a_type_that_is_not_known_is_an_error(kind: int, message: str) -> None:
    log = Log()
    log.add(kind, b"body", flags=0x80)  # even one that the server says may be ignored
    with pytest.raises(DecodeError, match=message):
        decoder().feed(log.packets())


def test_an_incident_is_a_lost_position() -> None:
    log = Log()
    transaction(log, 1)
    log.begin(99)
    log.add(Type.incident, b"\1\0\0")
    with pytest.raises(PositionLost, match="has lost changes"):
        decoder().feed(log.packets())


def test_a_statement_instead_of_rows_is_an_error() -> None:
    log = Log()
    log.begin()
    log.query("INSERT INTO t VALUES (1)")
    log.commit()
    assert "instead of the changed rows" in str(broken(log).value)


def test_transactions_are_named_by_their_gtids() -> None:
    log = Log()
    log.begin(5, statement=True)
    log.query("CREATE TABLE x (id int)")
    transaction(log, 1)
    (run,) = decoder().feed(log.packets())
    assert run.commits.origins.tolist() == ["0-1", "0-1"]
    assert run.commits.numbers.tolist()[0] == 5


def test_what_has_been_delivered_is_passed_over_in_any_portions() -> None:
    log = Log()
    for key in (1, 2, 3):
        log.begin(key)
        log.map(COLUMNS)
        log.rows(INSERT, row(key))
        log.commit()
    log.begin(4, statement=True)
    log.query("TRUNCATE TABLE t")
    for step in (1, 2, 3, 100):
        gtids = GtidPosition.parse("0-1-2").delivered()
        reader = Decoder(Shop(), MARIADB, 0, watermark=WATERMARK, delivered=gtids)
        runs = [r for at in range(0, len(log.events), step) for r in reader.feed(log.packets(at, at + step))]
        assert [(op, key) for _, op, _, _, key in told(runs)] == [("create", 3), ("truncate", None)]
        # the place goes on where it was
        assert [o for r in runs for o in r.commits.origins.tolist() if o] == ["0-1", "0-1"]


def with_another_servers(*, ours: bool) -> Log:
    """A log in which a transaction of another server lies in front of one that was delivered."""
    log = Log()
    log.begin(1)
    log.map(COLUMNS)
    log.rows(INSERT, row(1))
    log.commit()
    log.begin(2, server=9)
    log.map(COLUMNS, name="t" if ours else "other")
    log.rows(INSERT, row(2))
    log.commit()
    log.begin(2)
    log.map(COLUMNS)
    log.rows(INSERT, row(3))
    log.commit()
    log.begin(3, server=9)
    log.map(COLUMNS)
    log.rows(INSERT, row(4))
    log.commit()
    return log


@pytest.mark.parametrize("step", [1, 3, 100])
def test_only_captured_changes_of_another_server_in_front_of_delivered_ones_matter(step: int) -> None:
    for ours in (False, True):
        log = with_another_servers(ours=ours)
        gtids = GtidPosition.parse("0-1-2", "0-1-2").delivered()
        reader = Decoder(Shop(), MARIADB, 0, watermark=WATERMARK, delivered=gtids)
        runs, passing = [], []
        with pytest.raises(PositionLost, match="0-9-2") if ours else nullcontext():
            for at in range(0, len(log.events), step):
                runs += reader.feed(log.packets(at, at + step))
                passing.append(reader.passing)
        if not ours:
            assert [(op, key) for _, op, _, _, key in told(runs)] == [("create", 4)]
            assert [o for r in runs for o in r.commits.origins.tolist() if o] == ["+0-9", "0-9"]
            assert not reader.passing
            assert passing == sorted(passing, reverse=True)
            if step == 1:  # the last of the delivered transactions has ended
                assert passing.count(False) == 1 + 4


def test_positions_go_on_behind_those_of_another_server() -> None:
    log = Log(2)
    begin = transaction(log, 1)
    (run,) = Decoder(Shop(), MARIADB, 0, watermark=WATERMARK, shift=100).feed(log.packets())
    assert told([run])[0][2] == begin + (100 << 40)


# --- what is passed over, and XA ------------------------------------------------------------------------------------

KEYLESS = [number("id", Code.int), varchar("v")]


def portions(reader: Decoder, log: Log, step: int) -> list[Run]:
    """The runs of a log that arrives in portions."""
    runs = [r for at in range(0, len(log.events), step) for r in reader.feed(log.packets(at, at + step))]
    assert not reader.inside
    return runs


def delivered(log: Log, upto: int, *, step: int = 1000) -> list[Run]:
    """The runs of a stream that has delivered the transactions up to this number."""
    gtids = GtidPosition.parse(f"0-1-{upto}").delivered()
    return portions(Decoder(Shop(), MARIADB, 0, watermark=WATERMARK, delivered=gtids), log, step)


def xa_prepare(log: Log, name: bytes = b"x", *, one_phase: bool = False) -> None:
    log.add(38, struct.pack("<BiII", one_phase, 1, len(name), 0) + name)


def xa_start(log: Log, name: bytes = b"x", *, mysql: bool = False) -> None:
    """An XA transaction begins, which has the number of its event."""
    if mysql:
        log.mysql_begin(len(log.events))
        log.query(f"XA START X'{name.hex()}',X'',1")
    else:
        log.begin(len(log.events))


@pytest.mark.parametrize("step", [1, 2, 5, 1000])
def test_what_was_delivered_is_not_read_whatever_it_is(step: int) -> None:
    log = Log()
    log.begin(1)
    log.query("INSERT INTO t VALUES (1)")
    log.commit()
    log.begin(2)
    log.map([*KEYLESS[:1], Field("o", 99)], table=3)
    log.rows(INSERT, row(1), table=4)
    log.add(17, b"LOAD DATA")
    log.add(200, b"something new")
    log.query("FROBNICATE t")
    log.query("ROLLBACK TO `a`")
    log.query("ROLLBACK")
    log.begin(3)
    log.map(COLUMNS)
    log.rows(INSERT, row(1))
    log.query("XA END X'78',X'',1")
    xa_prepare(log)
    log.begin(4)
    log.query("XA ROLLBACK X'78',X'',1")
    log.begin(5, statement=True)
    log.query("ALTER TABLE t ADD FOREIGN KEY (v) REFERENCES p (v) ON DELETE CASCADE")
    log.begin(6)
    log.add(26, b"\1\0\0")
    log.begin(7)
    log.map(COLUMNS)
    log.rows(INSERT, row(7))
    log.commit()
    assert [change[4] for change in told(delivered(log, 6, step=step))] == [7]


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("mysql", [False, True])
def test_an_xa_transaction_on_other_tables_is_passed_over(mysql: bool, step: int) -> None:
    log = Log()
    xa_start(log, mysql=mysql)
    log.map(COLUMNS, "other", 3)
    log.rows(INSERT, row(1), table=3)
    log.query("XA END X'78',X'',1")
    xa_prepare(log)
    transaction(log, 2)
    log.mysql_begin(50) if mysql else log.begin(50)
    log.query("XA COMMIT X'78',X'',1")
    transaction(log, 3)
    runs = portions(decoder(), log, step)
    assert [change[4] for change in told(runs)] == [2, 3]
    assert len(commits(runs)) == 4


def test_an_xa_transaction_that_commits_in_one_phase_is_one_like_any_other() -> None:
    log = Log()
    xa_start(log, mysql=True)
    log.map(COLUMNS)
    log.rows(INSERT, row(1))
    log.query("XA END X'78',X'',1")
    xa_prepare(log, one_phase=True)
    transaction(log, 2)
    assert [change[4] for change in told(decoder().feed(log.packets()))] == [1, 2]


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize("name", ["t", "watermark"])
def test_an_xa_transaction_on_a_captured_table_is_an_error(name: str, step: int) -> None:
    log = Log()
    xa_start(log)
    log.map(COLUMNS, name, schema="dblog" if name == "watermark" else "shop")
    log.query("XA END X'78',X'',1")
    xa_prepare(log)
    with pytest.raises(DecodeError, match=rf"XA transaction that changes \w+\.{name}"):
        portions(decoder(), log, step)


@pytest.mark.parametrize("table", ["t", "other"])
def test_an_xa_transaction_may_be_prepared_before_the_place_and_committed_after_it(table: str) -> None:
    log = Log()
    log.begin(1)
    log.map(COLUMNS, table)
    log.rows(INSERT, row(1))
    log.query("XA END X'78',X'',1")
    xa_prepare(log)
    log.begin(2)
    log.query("XA COMMIT X'78',X'',1")
    if table == "other":
        assert told(delivered(log, 1)) == []
    else:
        with pytest.raises(PositionLost, match=r"changes shop\.t and was prepared before"):
            delivered(log, 1)
    assert told(delivered(log, 2)) == []


def test_an_xa_transaction_whose_rows_cannot_be_found_is_a_lost_position() -> None:
    log = Log()
    log.begin(1)
    log.query("XA COMMIT X'78',X'',1")
    with pytest.raises(PositionLost, match="its tables are unknown"):
        decoder().feed(log.packets())


@pytest.mark.parametrize("name", ["t", "other"])
def test_what_is_rolled_back_matters_only_in_captured_tables(name: str) -> None:
    log = Log()
    log.begin(1)
    log.map(COLUMNS, name)
    log.rows(INSERT, row(1))
    log.query("ROLLBACK TO `a`")
    log.commit()
    if name == "other":
        assert told(decoder().feed(log.packets())) == []
    else:
        assert "rolled back" in str(broken(log).value)


@pytest.mark.parametrize("step", [1, 1000])
def test_a_table_that_came_by_a_rename_is_dumped_again_when_it_is_mended(step: int) -> None:
    log = Log()
    transaction(log, 1)
    mended = "ALTER TABLE t DROP FOREIGN KEY c"
    for gtid, text in enumerate((mended, "RENAME TABLE u TO t", "ALTER TABLE t ADD c int", mended), 50):
        log.begin(gtid, statement=True)
        log.query(text)
    tables = Shop()
    runs = portions(decoder(tables), log, step)
    assert [(op, key) for name, op, _, _, key in told(runs) if name == "t"] == [
        ("create", 1),
        ("truncate", None),
        ("truncate", None),
    ]
    replaced = [str(table) for run in runs for table in run.replaced]
    assert replaced == ["shop.t", "shop.t"]
    assert [d.table.name for d in tables.checked] == ["t"] * 4
