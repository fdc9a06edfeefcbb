"""The log of real servers: order, positions that resume at every commit, files, compression, and other readers."""

from __future__ import annotations

import json
import random
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblog.core.event import Op
from dblog.core.schema import TableName, TableSchema
from dblog.databases.mysql.connect import connect, parse, server
from dblog.databases.mysql.flavor import MARIADB, Flavor
from dblog.errors import ConnectionLost, DecodeError, PositionLost, PreconditionFailed
from dblog.sources.base import Run
from dblog.sources.mysql import compressed
from dblog.sources.mysql import partial as partial_updates
from dblog.sources.mysql import stream as module
from dblog.sources.mysql.codecs import table_schema
from dblog.sources.mysql.decoder import Decoder
from dblog.sources.mysql.events import file_and_byte, position
from dblog.sources.mysql.statements import Definition
from dblog.sources.mysql.stream import MySQLLog
from dblog.sources.mysql.tablemap import TableMap
from dblog.testing.mysql_server import MySQLServer
from tests.conftest import EVERY_MYSQL_SERVER, MySQLDatabase, mysql_server_of, started
from tests.proxy import Proxy

pytestmark = pytest.mark.server

Open = Callable[..., MySQLLog]


class Captured:
    """The tables of one database."""

    def __init__(self, database: str, flavor: Flavor) -> None:
        self.database = database
        self.flavor = flavor

    def captured(self, table: TableName) -> bool:
        return table.schema == self.database and not table.name.startswith("watermark")

    def schema(self, mapped: TableMap) -> TableSchema:
        return table_schema(mapped, self.flavor)

    def met(self, table: TableName) -> bool:
        return True

    def latest(self, table: TableName) -> TableSchema | None:
        return None

    def check(self, said: Definition) -> None:
        """Whatever was defined is as it was."""

    def prepared(self, name: str, before: int) -> None:
        """Not a word of it is found in the log."""


@pytest.fixture(params=EVERY_MYSQL_SERVER)
def mysql_server(request: pytest.FixtureRequest, mysql_servers: dict[str, MySQLServer]) -> MySQLServer:
    return started(mysql_servers, request.param)


@pytest.fixture
def database(mysql_database: MySQLDatabase) -> MySQLDatabase:
    mysql_database.execute(
        "create table t (id int primary key, v varchar(2000))",
        "create table watermark (id int primary key, token varchar(36))",
        "insert into watermark values (1, '')",
    )
    return mysql_database


@pytest.fixture
def follow(database: MySQLDatabase) -> Iterator[Open]:
    """Open the log after a position, by default now; closed with the test. Ids are counted, so that no two meet."""
    opened: list[MySQLLog] = []

    def now_or_after(
        after: int | None = None, *, server_id: int | None = None, url: str | None = None, before: bool = False
    ) -> MySQLLog:
        begin = latest(database) if after is None else after
        watermark = TableName(database.name, "watermark")
        tables = Captured(database.name, database.flavor)
        decoder = Decoder(tables, database.flavor, begin, watermark=watermark, before=before)
        follow_id = server_id or 5000 + len(opened) + hash(database.name) % 100_000 * 100
        opened.append(MySQLLog(parse(url or database.url), begin, decoder, server_id=follow_id))
        return opened[-1]

    yield now_or_after
    for log in opened:
        log.close()


def last_file(database: MySQLDatabase) -> tuple[str, int]:
    """The newest file of the log, and where it ends."""
    with closing(connect(database.url)) as connection:
        status = server(connection).log_status
    return database.execute(status)[0][:2]


def latest(database: MySQLDatabase) -> int:
    name, place = last_file(database)
    return position(int(name.rpartition(".")[2]), int(place))


def read_to(log: MySQLLog, token: str, *, seconds: float = 60) -> list[Run]:
    """All runs up to a watermark."""
    runs: list[Run] = []
    deadline = time.monotonic() + seconds
    while not runs or runs[-1].token != token:
        assert time.monotonic() < deadline, f"no {token!r} in {len(runs)} runs"
        for run in log.read(0.2, eager=True):
            runs.append(run)
            if run.token == token:
                break
    return runs


def drain(log: MySQLLog, seconds: float = 20) -> None:
    """Read until something happens."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        log.read(0.2)


def mark(database: MySQLDatabase, token: str) -> None:
    database.execute(f"update watermark set token = '{token}'")


def numbered(count: int) -> str:
    """Some long rows, from 1 on."""
    return ", ".join(f"({n}, repeat('x', 1000))" for n in range(1, count + 1))


def changes(runs: Sequence[Run]) -> list[tuple[Any, ...]]:
    found = []
    for run in runs:
        for schema, batch in run.changes:
            names = ["_lsn", "_seq", "_op", "id"]
            for lsn, seq, op, key in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                found.append((lsn, seq, schema.table.name, Op(op).name, key))
    return found


def commits(runs: Sequence[Run]) -> list[int]:
    return [end for run in runs for end in run.commits.positions.tolist()]


def brief(runs: Sequence[Run]) -> list[tuple[str, int]]:
    return [(op, key) for _, _, _, op, key in sorted(changes(runs))]


def test_changes_come_in_the_order_of_their_commits(database: MySQLDatabase, follow: Open) -> None:
    log = follow()
    one, two = database.connect(autocommit=False), database.connect(autocommit=False)
    with one.cursor() as first, two.cursor() as second:
        first.execute("insert into t values (1, 'a'), (2, 'b')")
        second.execute("insert into t values (3, 'c')")
        two.commit()
        first.execute("update t set id = 4 where id = 1")
        first.execute("savepoint s")
        first.execute("delete from t where id = 2")
        first.execute("rollback to savepoint s")
        one.commit()
        first.execute("insert into t values (5, 'e')")
        one.rollback()
    database.execute("truncate table t")
    mark(database, "end")
    runs = read_to(log, "end")
    assert brief(runs) == [
        ("create", 3),
        ("create", 1),
        ("create", 2),
        ("delete", 1),
        ("create", 4),
        ("truncate", None),
    ]
    seen = changes(runs)
    assert seen == sorted(seen)
    assert commits(runs) == sorted(commits(runs))
    assert len(commits(runs)) == 4
    lsn = [change[0] for change in seen]
    assert lsn[0] < commits(runs)[0] <= lsn[1] == lsn[4] < commits(runs)[1] <= lsn[5] < commits(runs)[2]
    assert log.idle_position == commits(runs)[-1] == latest(database)


def test_the_log_resumes_at_every_commit(database: MySQLDatabase, follow: Open) -> None:
    log = follow()
    for number in range(3):
        database.execute(
            f"insert into t values ({number}, 'x')",
            f"insert into t values ({number + 10}, 'y'), ({number + 20}, 'z')",
            f"create table u{number} (id int primary key) engine = MyISAM",
            f"insert into u{number} values (1), (2)",
            "flush binary logs",
        )
    mark(database, "end")
    whole = read_to(log, "end")
    assert len({file_and_byte(end)[0] for end in commits(whole)}) == 4
    for end in commits(whole)[:-1]:
        rest = read_to(follow(end), "end")
        assert changes(rest) == [change for change in changes(whole) if change[0] >= end]
        assert commits(rest) == [other for other in commits(whole) if other > end]


@pytest.mark.slow
def test_a_huge_transaction_comes_in_parts(
    database: MySQLDatabase, follow: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 1 << 20)
    monkeypatch.setattr(module, "TAKE_BYTES", 1 << 19)
    log = follow()
    database.execute(f"insert into t values {numbered(20000)}")
    mark(database, "end")
    runs = read_to(log, "end")
    parts = [run for run in runs if run.position is None]
    assert len(parts) > 5
    assert max(run.nbytes for run in parts) < 2 << 20
    assert [(seq, key) for _, seq, _, _, key in changes(runs)] == [(2 * n, n + 1) for n in range(20000)]
    assert len({change[0] for change in changes(runs)}) == 1
    assert changes(runs)[0][0] < commits(runs)[0]


@pytest.mark.parametrize("mysql_server", ["mysql"], indirect=True)
def test_a_huge_compressed_transaction_is_read_in_parts(
    database: MySQLDatabase, follow: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed, "PART_BYTES", 1 << 20)
    log = follow()
    database.execute("set binlog_transaction_compression = ON", f"insert into t values {numbered(20000)}")
    mark(database, "end")
    runs = read_to(log, "end")
    assert len([run for run in runs if run.position is None]) > 5
    assert [(seq, key) for _, seq, _, _, key in changes(runs)] == [(2 * n, n + 1) for n in range(20000)]
    assert len({change[0] for change in changes(runs)}) == 1
    assert sum(run.nbytes for run in runs) < 1 << 20


def test_an_event_of_several_packets_is_one(database: MySQLDatabase, follow: Open) -> None:
    database.execute("set global max_allowed_packet = 134217728", "create table big (id int primary key, v longblob)")
    log = follow()
    sizes = [(1 << 24) - 60 + n for n in (0, 20, 40)] + [40 << 20]
    database.execute(*(f"insert into big values ({n}, repeat('x', {size}))" for n, size in enumerate(sizes)))
    mark(database, "end")
    runs = read_to(log, "end")
    values = [value for run in runs for _, batch in run.changes for value in batch.column("v").to_pylist()]
    assert [len(value) for value in values] == sizes
    assert {bytes(set(value)) for value in values} == {b"x"}


@pytest.mark.parametrize("checksum", ["CRC32", "NONE"])
def test_a_compressed_log_says_the_same(database: MySQLDatabase, follow: Open, checksum: str) -> None:
    setting = "log_bin_compress" if database.flavor is MARIADB else "binlog_transaction_compression"
    database.execute(f"set global binlog_checksum = {checksum}")
    try:
        log = follow()
        told = []
        for compress in ("OFF", "ON"):
            database.execute(f"set global {setting} = {compress}")
            database.execute(
                "insert into t values (1, repeat('a', 1500)), (2, null), (3, repeat('b', 700))",
                "update t set v = concat(v, 'c')",
                "update t set id = 9 where id = 3",
                f"create table w{compress} (id int primary key, some_column_with_a_long_name varchar(100))",
                "delete from t",
            )
            mark(database, compress)
            runs = read_to(log, compress)
            told.append([change[1:] for change in changes(runs)])
            told.append([batch.column("v").to_pylist() for run in runs for _, batch in run.changes])
            told.append([len(commits(runs))])
        assert told[:3] == told[3:]
        sizes = [run.nbytes for run in runs]
        assert sum(sizes) < 3000
    finally:
        database.execute(f"set global {setting} = OFF", "set global binlog_checksum = CRC32")


def test_compressed_and_other_changes_keep_their_order(database: MySQLDatabase, follow: Open) -> None:
    setting = "global log_bin_compress" if database.flavor is MARIADB else "session binlog_transaction_compression"
    begin = latest(database)
    try:
        for number in range(0, 40, 2):
            for key, compress in ((number, "ON"), (number + 1, "OFF")):
                database.execute(f"set {setting} = {compress}", f"insert into t values ({key}, repeat('x', 100))")
            mark(database, f"after {number + 1}")
    finally:
        database.execute(f"set {setting} = OFF")
    runs = read_to(follow(begin), "after 39")
    seen = changes(runs)
    assert seen == sorted(seen)
    assert [change[-1] for change in seen] == list(range(40))
    for number, run in enumerate(runs):
        if run.token is not None:  # a run ends with its watermark: what came before is there, and nothing else
            assert run.token == f"after {max(change[-1] for change in changes(runs[: number + 1]))}"


class Documents:
    """Random JSON documents, and random changes of them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def document(self, depth: int = 4) -> Any:
        some = self._random
        if some.random() < depth / 4:
            inner = [self.document(depth - 1) for _ in range(some.randrange(6))]
            return inner if some.random() < 0.3 else {self._key(): value for value in inner}
        scalars = [None, True, 7, -70000, 2**63, 1.5, 1e300, "x" * some.randrange(300), 'é"\\\n漢😀']
        return some.choice(scalars)

    def _key(self) -> str:
        return self._random.choice(["a", "b", "", "a.b", 'q"uo\\te', "é漢", "null"])

    def update(self, columns: Sequence[str]) -> str:
        return ", ".join(f"{column} = {self._changed(column)}" for column in columns)

    def _changed(self, column: str) -> str:
        some = self._random
        if some.random() < 0.1:
            return some.choice(["null", column, "'{}'", "json_array()", "json_array_append(ifnull(x, '[]'), '$', 1)"])
        made = column
        for _ in range(some.choice([1, 1, 2, 4])):
            function = some.choice(["json_set", "json_set", "json_replace", "json_remove"])
            paths = [self._path() for _ in range(some.choice([1, 1, 3]))]
            values = [f", cast('{text(self.document(2))}' as json)" if "move" not in function else "" for _ in paths]
            made = f"{function}({made}{''.join(f', {p}{v}' for p, v in zip(paths, values, strict=True))})"
        return made

    def _path(self) -> str:
        some = self._random
        legs = ""
        for _ in range(some.choice([1, 1, 2, 3])):
            cell = some.choice(["[0]", "[1]", "[2]", "[last]", "[last-1]"])
            legs += cell if some.random() < 0.3 else f'."{text(self._key())[1:-1]}"'
        return f"'${legs}'"


def text(value: Any) -> str:
    """JSON within a literal."""
    return json.dumps(value, ensure_ascii=False).replace("\\", "\\\\").replace("'", "''")


@pytest.mark.parametrize("mysql_server", ["mysql"], indirect=True)
@pytest.mark.parametrize("compression", ["OFF", "ON"])
def test_partial_updates_say_the_same(
    database: MySQLDatabase, follow: Open, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same statements, in one table with and in another without them."""
    seen: Counter[tuple[int, type]] = Counter()
    change = partial_updates._change

    def counted(node: Any, operation: int, *rest: Any) -> None:
        seen[operation, type(rest[0][-1])] += 1
        change(node, operation, *rest)

    monkeypatch.setattr(partial_updates, "_change", counted)
    made = Documents(6)
    columns = ["x", "y", *(f"z{n}" for n in range(8))]
    before = ", ".join(f"{name} json" for name in columns)
    log = follow(before=True)
    one, other = database.connect(), database.connect()
    with one.cursor() as partial, other.cursor() as full:
        partial.execute("set binlog_row_value_options = PARTIAL_JSON")
        for cursor, table in ((partial, "p"), (full, "f")):
            cursor.execute(f"set binlog_transaction_compression = {compression}")
            cursor.execute(f"create table {table} (id int primary key, t text, {before}, n int)")
        values = [[made.document() for _ in columns] for _ in range(30)]
        for number, row in enumerate(values):
            told = ", ".join("null" if value is None else f"'{text(value)}'" for value in row)
            partial.execute(f"insert into p values ({number}, repeat('t', {number * 10}), {told}, {number})")
        full.execute("insert into f select * from p")
        for number in range(150):
            some = made.update(made._random.sample(columns, made._random.choice([1, 1, 2, 5])))
            rows = f"n % {1 + number % 7} = 0"
            also = ", n = n + 1" if number % 5 == 0 else ", id = id + 1000" if number % 11 == 0 else ""
            order = " order by id desc" if "id =" in also else ""
            partial.execute(f"update p set {some}{also} where {rows}{order}")
            full.execute(f"update f set {some}{also} where {rows}{order}")
    mark(database, "end")
    runs = read_to(log, "end")
    told = {name: [] for name in "pf"}
    for schema, batch in (change for run in runs for change in run.changes):
        rows = batch.to_pylist()
        told[schema.table.name] += [
            {k: v for k, v in row.items() if k not in ("_lsn", "_txid", "_committed_at")} for row in rows
        ]
    assert len(told["f"]) > 500
    assert told["p"][30:] == told["f"][30:]
    assert min(seen[operation, leg] for operation in range(3) for leg in (int, str)) > 20


@pytest.mark.parametrize("mysql_server", ["mysql"], indirect=True)
def test_transactions_are_numbered_with_each_kind_of_gtid(database: MySQLDatabase, follow: Open) -> None:
    own = str(uuid.uuid4())
    kinds = {"AUTOMATIC": None, f"{own}:41": 41, "AUTOMATIC:tag": None, f"{own}:a_tag:43": 43, "ANONYMOUS": 0}
    log = follow()
    before = time.time()
    database.execute("set global gtid_mode = ON_PERMISSIVE")
    try:
        for key, kind in enumerate(kinds):
            database.execute(f"set gtid_next = '{kind}'", f"insert into t values ({key}, 'x')")
    finally:
        database.execute("set global gtid_mode = ON")
    after = time.time()
    mark(database, "end")
    runs = read_to(log, "end")
    assert [key for _, key in brief(runs)] == list(range(len(kinds)))
    rows = [row for run in runs for _, batch in run.changes for row in batch.to_pylist()]
    for row, number in zip(rows, kinds.values(), strict=True):
        assert before - 1 < row["_committed_at"].timestamp() < after
        assert row["_txid"] == number if number is not None else row["_txid"] > 0


def test_the_log_goes_on_in_the_next_file(database: MySQLDatabase, follow: Open) -> None:
    log = follow()
    database.execute("insert into t values (1, 'a')", "flush binary logs", "insert into t values (2, 'b')")
    mark(database, "one")
    runs = read_to(log, "one")
    database.execute("flush binary logs", "flush binary logs")
    newest = file_and_byte(commits(runs)[-1])[0] + 2
    deadline = time.monotonic() + 20
    while file_and_byte(log.idle_position)[0] < newest:
        assert log.read(0.1) == []
        assert time.monotonic() < deadline
    assert position(newest, 4) <= log.idle_position <= latest(database)
    database.execute("insert into t values (3, 'c')")
    mark(database, "two")
    assert brief(runs + read_to(log, "two")) == [("create", 1), ("create", 2), ("create", 3)]


def test_a_server_that_was_killed_goes_on_in_the_next_file(database: MySQLDatabase, follow: Open) -> None:
    database.execute("set global innodb_flush_log_at_trx_commit = 1")  # until it starts again
    log = follow()
    database.execute("insert into t values (1, 'a')")
    mark(database, "one")
    before = read_to(log, "one")
    database.server.kill()
    with pytest.raises(ConnectionLost):
        drain(log)
    database.server.start()
    again = follow(commits(before)[-1])
    database.execute("insert into t values (2, 'b')")
    mark(database, "two")
    assert brief(before + read_to(again, "two")) == [("create", 1), ("create", 2)]


def test_heartbeats_tell_that_the_server_is_there(database: MySQLDatabase, follow: Open) -> None:
    log = follow()
    log.read(0.1)
    heard = log.heard
    deadline = time.monotonic() + 10
    while log.heard == heard:
        assert log.read(0.2) == []
        assert time.monotonic() < deadline
    assert log.idle_position == latest(database)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a server shows of itself (`server`), and what somebody else could show for it (`other`)."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("server", "other"):
        made = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *made]
        subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module", params=EVERY_MYSQL_SERVER)
def secure(request: pytest.FixtureRequest, certificates: Path) -> Iterator[MySQLDatabase]:
    files = {"ssl_cert": str(certificates / "server.pem"), "ssl_key": str(certificates / "server.key")}
    with mysql_server_of(request.param, **files) as server:
        yield MySQLDatabase(server, "mysql")


def test_the_log_comes_over_tls(secure: MySQLDatabase, certificates: Path) -> None:
    ca = f"?ssl_ca={certificates}/server.pem&ssl_mode=VERIFY_IDENTITY"
    begin = latest(secure)
    tables = Captured("safe", secure.flavor)
    decoder = Decoder(tables, secure.flavor, begin, watermark=TableName("safe", "watermark"))
    log = MySQLLog(parse(secure.url + ca), begin, decoder, server_id=9)
    secure.execute(
        "create database safe",
        "create table safe.t (id int primary key, v text)",
        "create table safe.watermark (id int primary key, token text)",
        f"insert into safe.t values {numbered(3000)}",
        "insert into safe.watermark values (1, 'end')",
    )
    runs = read_to(log, "end")
    log.close()
    assert [key for _, key in brief(runs)] == list(range(1, 3001))
    assert secure.execute("show status like 'ssl_accepts'")[0][1] != "0"


@pytest.mark.parametrize("mode", ["VERIFY_CA", "VERIFY_IDENTITY"])
def test_somebody_elses_certificate_is_refused(secure: MySQLDatabase, certificates: Path, mode: str) -> None:
    with pytest.raises(PreconditionFailed, match="certificate verify failed"):
        connect(f"{secure.url}?ssl_ca={certificates}/other.pem&ssl_mode={mode}")


@pytest.mark.parametrize(
    ("query", "encrypted"), [("", True), ("?ssl_mode=REQUIRED", True), ("?ssl_mode=DISABLED", False)]
)
def test_a_session_is_encrypted_as_the_url_says(secure: MySQLDatabase, query: str, encrypted: bool) -> None:
    connection = connect(secure.url + query)
    with connection.cursor() as cursor:
        cursor.execute("show session status like 'ssl_cipher'")
        assert bool(cursor.fetchone()[1]) is encrypted
    connection.close()


def test_a_server_that_falls_silent_is_a_lost_connection(
    database: MySQLDatabase, follow: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENCE_SECONDS", 2)
    with Proxy(database.server) as proxy:
        log = follow(url=proxy.through(database.url))
        log.read(0.1)
        proxy.pause()
        with pytest.raises(ConnectionLost, match="silent for 2 s"):
            drain(log)


def test_of_two_readers_with_one_id_the_first_must_go(database: MySQLDatabase, follow: Open) -> None:
    first = follow(server_id=7)
    first.read(0.1)
    second = follow(server_id=7)
    second.read(0.1)
    with pytest.raises(PreconditionFailed, match=r"same server_(uuid/server_)?id") as failure:
        drain(first)
    assert "set another serverId here" in str(failure.value)
    assert not failure.value.retryable
    mark(database, "end")
    assert read_to(second, "end")


def test_log_that_was_purged_is_a_lost_position(database: MySQLDatabase, follow: Open) -> None:
    begin, name = latest(database), last_file(database)[0]
    database.execute("flush binary logs", "flush binary logs")
    newest = last_file(database)[0]
    deadline = time.monotonic() + 20
    while name in [row[0] for row in database.execute("show binary logs")]:
        assert time.monotonic() < deadline  # a file is kept while a reader that has just gone is there
        database.execute(f"purge binary logs to '{newest}'")
        time.sleep(0.1)
    log = follow(begin)
    with pytest.raises(PositionLost, match="Could not find first log file name") as failure:
        log.read(5)
    assert "a new dump" in str(failure.value)


def test_a_place_that_is_not_there_is_a_lost_position(database: MySQLDatabase, follow: Open) -> None:
    log = follow(latest(database) + 1_000_000)
    with pytest.raises(PositionLost, match=r"impossible position|position > file size"):
        log.read(5)
    database.execute("insert into t values (1, 'a')")
    for wrong in (1, 5):  # not where an event begins
        log = follow(latest(database) - wrong)
        with pytest.raises((PositionLost, DecodeError)):
            log.read(5)


def test_a_statement_instead_of_rows_stops_the_log(database: MySQLDatabase, follow: Open) -> None:
    log = follow()
    database.execute("set session binlog_format = STATEMENT", "insert into t values (1, 'secret')")
    with pytest.raises(DecodeError, match="instead of the changed rows") as failure:
        drain(log)
    assert "secret" not in str(failure.value)


def test_an_xa_transaction_stops_the_log(database: MySQLDatabase, follow: Open) -> None:
    log = follow()
    database.execute("xa start 'a'", "insert into t values (1, 'a')", "xa end 'a'", "xa prepare 'a'", "xa commit 'a'")
    with pytest.raises(DecodeError, match=rf"XA transaction that changes {database.name}\.t"):
        drain(log)


def test_a_user_without_the_right_to_read_the_log_is_told_so(database: MySQLDatabase, follow: Open) -> None:
    user = f"u{database.name[-8:]}"
    database.execute(f"create user {user}@'%' identified by 'pw'", f"grant select on {database.name}.* to {user}@'%'")
    try:
        with pytest.raises(PreconditionFailed, match="grant replication slave"):
            follow(url=database.server.url(database.name, user, "pw")).read(5)
    finally:
        database.execute(f"drop user {user}@'%'")
