"""`dblog slots` and `dblog tables --url` against real servers."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from dblog.databases.postgres.connect import connect
from dblog.errors import SourceError
from dblog.sources.postgres.slots import drop_slot, read_slots
from dblog.state.pipeline import Pipeline
from dblog.state.store import Store
from tests.cli.conftest import STATUS
from tests.cli.program import dblog, document
from tests.conftest import Database

pytestmark = pytest.mark.server


def slot(database: Database, name: str, plugin: str = "pgoutput") -> None:
    database.execute("select pg_create_logical_replication_slot(%s, %s)", [name, plugin])


def slots(database: Database) -> set[str]:
    return {name for (name,) in database.execute("select slot_name from pg_replication_slots")}


@pytest.fixture
def names(database: Database) -> tuple[str, str]:
    """A slot of ours and one of somebody else's. Their names are unique: all databases of a server share them."""
    ours, other = f"dblog_{database.name}", f"z_{database.name}"
    database.execute(f"create table t (id int primary key); create publication {ours} for table t")
    slot(database, ours)
    slot(database, other, "test_decoding") if _decodes(database) else slot(database, other)
    return ours, other


def _decodes(database: Database) -> bool:
    return bool(database.execute("select 1 from pg_available_extensions where name = 'test_decoding'"))


def test_the_list_tells_ours_from_others(database: Database, names: tuple[str, str], place: str) -> None:
    ours, other = names
    head, *lines = dblog("slots", "--url", database.url).stdout.splitlines()
    assert head.split()[:2] == ["SLOT", "OURS"]
    assert re.match(rf"{ours} +yes +pgoutput +nobody +reserved +\S+ [KM]?i?B +no limit", lines[0])
    assert re.match(rf"{other} +no ", lines[1])
    again = dblog("slots", "list", "--url", database.url).stdout.splitlines()[0]
    assert again.split() == head.split()  # columns grow with what the slots keep


def test_json_has_the_same_and_a_reader(database: Database, names: tuple[str, str], store: Store) -> None:
    ours, other = names
    pipeline = Pipeline(store, "shop")
    pipeline.open()
    pipeline.say({**STATUS, "slot": other})
    found = {s["name"]: s for s in document("slots", "list", "--url", database.url)}
    assert {n: (s["ours"], s["pipeline"], s["active"]) for n, s in found.items()} == {
        ours: (True, None, False),
        other: (True, "shop", False),
    }
    assert found[ours]["retained_bytes"] >= 0
    assert found[ours]["wal_status"] == "reserved"


def test_slots_of_other_databases_are_not_listed(database: Database, names: tuple[str, str], place: str) -> None:
    elsewhere = database.server.url("postgres")
    assert not set(names) & {s["name"] for s in document("slots", "--url", elsewhere)}


def test_ours_is_dropped_with_its_publication(database: Database, names: tuple[str, str], place: str) -> None:
    ours, other = names
    result = dblog("slots", "drop", ours, "--url", database.url, "--yes")
    assert result.stdout == f"dropped slot {ours} and publication {ours}\n"
    assert other in slots(database)
    assert ours not in slots(database)
    assert database.execute("select count(*) from pg_publication") == [(0,)]


def test_another_publication_is_dropped_where_that_is_its_own(
    database: Database, names: tuple[str, str], place: str
) -> None:
    ours, _ = names
    database.execute('create publication "Odd one" for table t')
    dropped = document("slots", "drop", ours, "--url", database.url, "--yes", "--publication", "Odd one")
    assert dropped == {"dropped": ours, "publication": "Odd one"}
    assert database.execute("select pubname from pg_publication") == [(ours,)]


def test_one_of_somebody_elses_stays(database: Database, names: tuple[str, str], place: str) -> None:
    result = dblog("slots", "drop", names[1], "--url", database.url, "--yes", code=1)
    assert "does not belong to dblog" in result.stderr
    assert names[1] in slots(database)


def test_one_that_the_state_store_knows_is_ours_unless_its_pipeline_runs(
    database: Database, names: tuple[str, str], store: Store
) -> None:
    pipeline = Pipeline(store, "shop")
    pipeline.open()
    pipeline.say({**STATUS, "slot": names[1]})
    result = dblog("slots", "drop", names[1], "--url", database.url, "--yes", code=1)
    assert "belongs to pipeline 'shop', which runs" in result.stderr
    pipeline.say({**STATUS, "slot": names[1], "state": "stopped"})
    assert dblog("slots", "drop", names[1], "--url", database.url, "--yes").stdout == f"dropped slot {names[1]}\n"
    assert names[1] not in slots(database)


def test_one_that_is_read_stays_with_its_publication(database: Database, names: tuple[str, str], place: str) -> None:
    ours, _ = names
    reader = connect(database.url, replication=True)
    try:
        reader.cursor().start_replication_expert(
            f"START_REPLICATION SLOT {ours} LOGICAL 0/0 (proto_version '1', publication_names '{ours}')"
        )
        (row,) = [line for line in dblog("slots", "--url", database.url).stdout.splitlines() if ours in line]
        assert re.search(r" pid \d+ ", row)
        result = dblog("slots", "drop", ours, "--url", database.url, "--yes", code=1)
    finally:
        reader.close()
    assert "is read by the server's process" in result.stderr
    assert ours in slots(database)
    assert database.execute("select count(*) from pg_publication") == [(1,)]


def test_the_slot_goes_before_its_publication(
    database: Database, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot that somebody begins to read just now keeps its publication."""
    ours, _ = names
    connection = connect(database.url)
    reader = connect(database.url, replication=True)
    look = read_slots(connection)
    assert not any(s.active for s in look)
    monkeypatch.setattr("dblog.sources.postgres.slots.read_slots", lambda _: look)
    reader.cursor().start_replication_expert(
        f"START_REPLICATION SLOT {ours} LOGICAL 0/0 (proto_version '1', publication_names '{ours}')"
    )
    try:
        with pytest.raises(SourceError):
            drop_slot(connection, ours, ours)
    finally:
        reader.close()
        connection.close()
    assert database.execute("select count(*) from pg_publication") == [(1,)]


def test_one_that_is_not_there(database: Database, place: str) -> None:
    result = dblog("slots", "drop", "dblog_nowhere", "--url", database.url, "--yes", code=3)
    assert "there is no replication slot 'dblog_nowhere' in this database" in result.stderr


def test_it_asks_unless_told_not_to(database: Database, names: tuple[str, str], place: str) -> None:
    result = dblog("slots", "drop", names[0], "--url", database.url, code=2)
    assert "add --yes" in result.stderr
    assert names[0] in slots(database)


@pytest.mark.parametrize(("answer", "code", "gone"), [("n\n", 1, False), ("y\n", 0, True)])
def test_the_answer_counts(
    database: Database,
    names: tuple[str, str],
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int,
    gone: bool,
) -> None:
    monkeypatch.setattr("dblog.cli.slots.sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    result = dblog("slots", "drop", names[0], "--url", database.url, stdin=answer, code=code)
    assert f"drop replication slot '{names[0]}' of database '{database.name}'?" in result.stderr
    assert (names[0] not in slots(database)) == gone


def test_a_database_must_be_named(place: str) -> None:
    assert "no database is named" in dblog("slots", code=2).stderr
    dblog("slots", "list", code=2)


def test_tables_straight_from_the_database(database: Database, place: str) -> None:
    database.execute("""
        create table big (id bigint, part text, n numeric(10, 2), primary key (part, id));
        insert into big select i, 'a', i from generate_series(1, 1000) i;
        create table parted (id int primary key) partition by range (id);
        create table parted_1 partition of parted for values from (0) to (100);
        create table parted_2 partition of parted for values from (100) to (200);
        insert into parted select generate_series(0, 149);
        create table uncounted (id int primary key);
        analyze big; analyze parted_1; analyze parted_2;
    """)
    found = document("tables", "--url", database.url, "--tables", "public.*")
    assert {name: of["rows"] for name, of in found.items()} == {
        "public.big": 1000,
        "public.parted": 150,
        "public.uncounted": 0,
    }
    assert found["public.big"]["key"] == ["part", "id"]
    assert found["public.big"]["columns"] == [["id", "bigint"], ["part", "text"], ["n", "numeric(10,2)"]]
    secret = database.url.split(":")[2].split("@")[0]
    shown = dblog("tables", "--url", database.url, "--tables", "public.*")
    assert re.search(r"public\.big +~1,000 +part, id +id bigint, part text, n numeric\(10,2\)", shown.stdout)
    assert secret not in shown.output


def test_tables_that_are_not_there(database: Database, place: str) -> None:
    assert (
        "no table in the database matches"
        in dblog("tables", "--url", database.url, "--tables", "sales.*", code=2).stderr
    )
    assert document("tables", "--url", database.url, "--tables", "sales.orders") == {}


def test_no_folder_is_needed_for_what_the_database_knows(database: Database, tmp_path: Path, place: str) -> None:
    """The state store is opened only where its word is asked for."""
    database.execute("create table t (id int primary key)")
    dblog("tables", "--url", database.url, "--tables", "public.t", "--state", tmp_path / "absent" / "state.db")
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(
    "command", [["slots"], ["slots", "list"], ["slots", "drop", "dblog_shop", "--yes"], ["slots", "drop", "x"]]
)
def test_mysql_has_no_slots(command: list[str], place: str) -> None:
    result = dblog(*command, "--url", "mysql://app:secret@127.0.0.1/shop", code=2)
    assert "MySQL and MariaDB have no replication slots" in result.stderr
    assert "secret" not in result.stderr
