"""Every check of the preflight on real servers: found, named, and cured by the fix it shows."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from dblog.core.schema import TableName
from dblog.databases.postgres.connect import connect, identifier, literal, translating
from dblog.errors import PositionLost, PreconditionFailed
from dblog.sources.base import Wait
from dblog.sources.postgres import preflight
from dblog.sources.postgres.deferrable import WHY
from dblog.sources.postgres.preflight import Problem, Setup, admin_sql, check, prepare
from dblog.sources.problems import NO_KEY
from dblog.testing.postgres_server import PostgresServer

pytestmark = pytest.mark.server

ORDERS = TableName("public", "orders")
ODD = TableName('my "odd" schéma', "it's a t.able % ")


@pytest.fixture
def setup() -> Setup:
    return Setup(slot=f"slot_{uuid.uuid4().hex[:12]}", publication="feed", tables=(ORDERS,), fresh=True)


@pytest.fixture
def admin(database: Any) -> Iterator[Any]:
    database.execute("CREATE TABLE public.orders (id int PRIMARY KEY, item text)")
    connection = connect(database.url)
    yield connection
    connection.close()


@pytest.fixture
def role(database: Any, admin: Any) -> Iterator[str]:
    """A role that may log in and nothing else."""
    name = f'reader "{uuid.uuid4().hex[:8]}"'
    quoted = identifier(name)
    run(admin, f"CREATE ROLE {quoted} LOGIN PASSWORD 'let me in'; REVOKE ALL ON SCHEMA public FROM PUBLIC")
    yield name
    run(admin, f"DROP OWNED BY {quoted} CASCADE")
    for pid, *_ in run(admin, "SELECT pid FROM pg_stat_activity WHERE usename = %s", name):
        run(admin, "SELECT pg_terminate_backend(%s)", pid)
    run(admin, f"DROP ROLE {quoted}")


@pytest.fixture
def as_role(database: Any, role: str) -> Iterator[Callable[[], Any]]:
    opened: list[Any] = []

    def open_one(**options: Any) -> Any:
        opened.append(connect(database.server.url(database.name, role, "let me in"), **options))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


def run(connection: Any, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters or None)
        return cursor.fetchall() if cursor.description else []


def fatal(problems: list[Problem]) -> list[Problem]:
    return [p for p in problems if p.fatal]


def the_problem(connection: Any, setup: Setup) -> Problem:
    """The only problem besides what `prepare` would create by itself."""
    (problem,) = [p for p in check(connection, setup) if not p.creatable]
    return problem


def replace(setup: Setup, **changes: Any) -> Setup:
    return Setup(**{**vars(setup), **changes})


def changes(connection: Any, setup: Setup, seconds: float = 5.0) -> bytes:
    """The kinds of the messages that the slot sends: B R I C ..."""
    cursor = connection.cursor()
    names = literal(identifier(setup.publication))
    # The driver's own start_replication() garbles names that are not ASCII.
    cursor.start_replication_expert(
        f"START_REPLICATION SLOT {setup.slot} LOGICAL 0/0 (proto_version '1', publication_names {names})"
    )
    kinds, deadline = b"", time.monotonic() + seconds
    while not kinds.endswith(b"C") and time.monotonic() < deadline:
        message = cursor.read_message()
        kinds += message.payload[:1] if message else b""
        time.sleep(0 if message else 0.01)
    return kinds


# --- the whole way --------------------------------------------------------------------------------------------------


def test_an_empty_server_has_no_fatal_problem_and_check_creates_nothing(admin: Any, setup: Setup) -> None:
    found = check(admin, setup)
    assert [p.creatable for p in found] == [True, True, True]
    assert fatal(found) == []
    assert check(admin, setup) == found


def test_prepare_creates_what_is_missing_and_nothing_is_left_to_report(admin: Any, setup: Setup) -> None:
    prepare(admin, setup)
    assert check(admin, setup) == []
    assert run(admin, "SELECT * FROM dblog.watermark") == [(1, "")]
    members = run(admin, "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = 'feed' ORDER BY 1")
    assert members == [("dblog", "watermark"), ("public", "orders")]
    (flags,) = run(admin, "SELECT puballtables, pubviaroot, pubtruncate FROM pg_publication")
    assert flags == (False, True, True)


def test_prepare_again_changes_nothing(admin: Any, setup: Setup) -> None:
    prepare(admin, setup)
    state = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
    before = run(admin, state, setup.slot)
    prepare(admin, setup)
    prepare(admin, replace(setup, fresh=False))
    assert run(admin, state, setup.slot) == before


def test_the_first_change_after_prepare_arrives(database: Any, admin: Any, setup: Setup) -> None:
    prepare(admin, setup)
    run(admin, "INSERT INTO public.orders VALUES (1, 'tea')")
    stream = connect(database.url, replication=True)
    try:
        assert changes(stream, setup) == b"BRIC"
    finally:
        stream.close()


def test_a_missing_table_is_added_to_a_publication_of_ours(admin: Any, setup: Setup) -> None:
    prepare(admin, setup)
    run(admin, "CREATE TABLE public.more (id int PRIMARY KEY)")
    wider = replace(setup, tables=(ORDERS, TableName("public", "more")), fresh=False)
    (problem,) = check(admin, wider)
    assert (problem.creatable, problem.fix) == (True, 'ALTER PUBLICATION "feed" ADD TABLE "public"."more";')
    prepare(admin, wider)
    assert check(admin, wider) == []


def test_pipelines_that_start_together_do_not_trip_over_each_other(database: Any, admin: Any, setup: Setup) -> None:
    failures: list[Exception] = []

    def start(number: int) -> None:
        connection = connect(database.url)
        try:
            prepare(connection, replace(setup, slot=f"{setup.slot}_{number}", publication=f"feed {number}"))
        except Exception as exc:
            failures.append(exc)
        finally:
            connection.close()

    threads = [threading.Thread(target=start, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert run(admin, "SELECT count(*) FROM pg_publication") == [(4,)]


def test_odd_names_are_quoted_everywhere(database: Any, admin: Any, setup: Setup, as_role: Any, role: str) -> None:
    schema, table = identifier(ODD.schema), identifier(*ODD)
    run(admin, f'CREATE SCHEMA {schema}; CREATE TABLE {table} ("a b" int PRIMARY KEY, "c""d" text)')
    odd = replace(setup, publication="fe\"ed 'ü.%s", tables=(ODD, ORDERS))
    run(admin, admin_sql(odd, role))
    reader = as_role()
    prepare(reader, odd)
    assert check(reader, odd) == []
    run(admin, f"REVOKE SELECT ON {table} FROM {identifier(role)}")
    problem = the_problem(reader, odd)
    assert repr(str(ODD)) in problem.what
    run(admin, problem.fix)
    assert check(reader, odd) == []
    run(admin, f"INSERT INTO {table} VALUES (1, 'x')")
    assert changes(as_role(replication=True), odd) == b"BRIC"


# --- refusal --------------------------------------------------------------------------------------------------------


def test_every_problem_is_in_one_report_and_nothing_was_created(admin: Any, setup: Setup) -> None:
    run(admin, "CREATE TABLE public.keyless (x int); CREATE VIEW public.look AS SELECT 1 AS one")
    run(admin, "CREATE UNLOGGED TABLE public.fleeting (id int PRIMARY KEY)")
    names = ("keyless", "look", "fleeting", "nowhere")
    bad = replace(setup, tables=(ORDERS, *(TableName("public", n) for n in names)), slot="Not A Slot")
    with pytest.raises(PreconditionFailed) as failure:
        prepare(admin, bad)
    report = str(failure.value)
    assert "5 problems" in report
    for phrase in ("'public.keyless' has no primary key", "'public.look' is a view", "'public.fleeting' is unlogged"):
        assert f"- {phrase}" in report or f"- table {phrase}" in report
    assert "- table 'public.nowhere' does not exist" in report
    assert "- 'Not A Slot' is not a valid slot name" in report
    assert report.count("\n  fix: ") == 5
    assert run(admin, "SELECT count(*) FROM pg_publication") == [(0,)]
    assert run(admin, "SELECT count(*) FROM pg_namespace WHERE nspname = 'dblog'") == [(0,)]


TABLE_PROBLEMS = {
    "no primary key": (
        "ALTER TABLE public.orders DROP CONSTRAINT orders_pkey",
        f"table 'public.orders' has {NO_KEY}",
        "ALTER TABLE public.orders ADD PRIMARY KEY (id)",
    ),
    "replica identity nothing": (
        "ALTER TABLE public.orders REPLICA IDENTITY NOTHING",
        "the replica identity of 'public.orders' does not contain its primary key",
        None,
    ),
    "replica identity index without the key": (
        "ALTER TABLE public.orders ALTER item SET NOT NULL, ADD CONSTRAINT u UNIQUE (item);"
        "ALTER TABLE public.orders REPLICA IDENTITY USING INDEX u",
        "the replica identity of 'public.orders' does not contain its primary key",
        None,
    ),
    "unlogged": (
        "ALTER TABLE public.orders SET UNLOGGED",
        "table 'public.orders' is unlogged: the log has no changes of it",
        None,
    ),
    "deferrable key": (
        "ALTER TABLE public.orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id) DEFERRABLE",
        f"the primary key of 'public.orders' is deferrable: {WHY}",
        None,
    ),
    "deferrable key with a full replica identity": (
        "ALTER TABLE public.orders DROP CONSTRAINT orders_pkey, REPLICA IDENTITY FULL,"
        'ADD CONSTRAINT "its own" PRIMARY KEY (id) INCLUDE (item) DEFERRABLE INITIALLY DEFERRED',
        f"the primary key of 'public.orders' is deferrable: {WHY}",
        None,
    ),
    "inheritance": (
        "CREATE TABLE public.child () INHERITS (public.orders)",
        "table 'public.orders' has children by inheritance: a select reads their rows, but the log has them apart",
        "DROP TABLE public.child",
    ),
}


@pytest.mark.parametrize("case", TABLE_PROBLEMS)
def test_a_table_that_cannot_be_captured_is_named_and_the_fix_cures_it(admin: Any, setup: Setup, case: str) -> None:
    spoil, what, cure = TABLE_PROBLEMS[case]
    run(admin, spoil)
    problem = the_problem(admin, setup)
    assert (problem.what, problem.fatal) == (what, True)
    run(admin, cure or problem.fix)
    prepare(admin, setup)
    assert check(admin, setup) == []


@pytest.mark.parametrize("identity", ["FULL", "USING INDEX pair"], ids=["full", "an index that holds the primary key"])
def test_a_replica_identity_that_holds_the_key_is_fine(admin: Any, setup: Setup, identity: str) -> None:
    run(admin, "ALTER TABLE public.orders ALTER item SET NOT NULL, ADD CONSTRAINT pair UNIQUE (item, id)")
    run(admin, f"ALTER TABLE public.orders REPLICA IDENTITY {identity}")
    prepare(admin, setup)
    assert check(admin, setup) == []


def test_columns_included_in_the_identity_index_do_not_count_as_held(admin: Any, setup: Setup) -> None:
    run(admin, "ALTER TABLE public.orders ALTER item SET NOT NULL")
    run(admin, "CREATE UNIQUE INDEX u ON public.orders (item) INCLUDE (id)")
    run(admin, "ALTER TABLE public.orders REPLICA IDENTITY USING INDEX u")
    assert "does not contain its primary key" in the_problem(admin, setup).what


@pytest.mark.parametrize(
    ("create", "what"),
    [
        ("CREATE VIEW public.odd AS SELECT 1 AS id", "'public.odd' is a view"),
        ("CREATE MATERIALIZED VIEW public.odd AS SELECT 1 AS id", "'public.odd' is a materialized view"),
        ("CREATE SEQUENCE public.odd", "'public.odd' is a sequence"),
        (
            "CREATE FOREIGN DATA WRAPPER none; CREATE SERVER far FOREIGN DATA WRAPPER none;"
            "CREATE FOREIGN TABLE public.odd (id int) SERVER far",
            "'public.odd' is a foreign table",
        ),
    ],
)
def test_what_has_no_log_is_refused(admin: Any, setup: Setup, create: str, what: str) -> None:
    run(admin, create)
    problem = the_problem(admin, replace(setup, tables=(ORDERS, TableName("public", "odd"))))
    assert problem.what == f"{what}: the log has no changes of it"
    assert problem.fatal


def test_a_temporary_table_is_refused(admin: Any, setup: Setup) -> None:
    run(admin, "CREATE TEMPORARY TABLE mine (id int PRIMARY KEY)")
    ((schema,),) = run(admin, "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = 'mine'")
    assert "is temporary" in the_problem(admin, replace(setup, tables=(TableName(schema, "mine"),))).what


def test_generated_columns_are_only_a_warning(admin: Any, setup: Setup) -> None:
    run(admin, "ALTER TABLE public.orders ADD twice int GENERATED ALWAYS AS (id * 2) STORED")
    prepare(admin, setup)
    (problem,) = check(admin, setup)
    assert not problem.fatal
    assert problem.what == "generated columns of 'public.orders' are not in the log and are not captured: twice"


def test_a_generated_primary_key_is_refused(admin: Any, setup: Setup) -> None:
    run(admin, "CREATE TABLE public.g (x int, id int GENERATED ALWAYS AS (x + 1) STORED PRIMARY KEY)")
    (problem,) = fatal(check(admin, replace(setup, tables=(TableName("public", "g"),))))
    assert problem.what == "the primary key of 'public.g' is generated, so the log lacks it"


def test_the_watermark_table_cannot_be_captured(admin: Any, setup: Setup) -> None:
    problem = the_problem(admin, replace(setup, tables=(ORDERS, preflight.WATERMARK)))
    assert problem.what == "the watermark table 'dblog.watermark' cannot be captured"
    assert problem.fatal


def test_a_table_named_twice_is_published_once(admin: Any, setup: Setup) -> None:
    twice = replace(setup, tables=(ORDERS, ORDERS))
    prepare(admin, twice)
    assert check(admin, twice) == []


# --- partitions -----------------------------------------------------------------------------------------------------

PARTITIONED = """
    CREATE TABLE public.parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
    CREATE TABLE public.low PARTITION OF public.parts FOR VALUES FROM (0) TO (10);
    CREATE TABLE public.high PARTITION OF public.parts FOR VALUES FROM (10) TO (20);
"""
PARTS, LOW = TableName("public", "parts"), TableName("public", "low")


def test_a_partitioned_table_is_captured_under_its_own_name(database: Any, admin: Any, setup: Setup) -> None:
    run(admin, PARTITIONED)
    setup = replace(setup, tables=(PARTS,))
    prepare(admin, setup)
    assert check(admin, setup) == []
    ((members,),) = run(admin, "SELECT array_agg(tablename::text ORDER BY 1) FROM pg_publication_tables")
    assert members == ["parts", "watermark"]


def test_a_partition_beside_its_table_is_refused(admin: Any, setup: Setup) -> None:
    run(admin, PARTITIONED)
    problem = the_problem(admin, replace(setup, tables=(PARTS, LOW)))
    assert problem.what == "'public.low' is a partition of 'public.parts': its rows would be captured twice"


def test_a_partition_that_the_publication_carries_as_its_table_is_refused(admin: Any, setup: Setup) -> None:
    run(admin, PARTITIONED)
    prepare(admin, replace(setup, tables=(PARTS,)))
    found = fatal(check(admin, replace(setup, tables=(LOW,))))
    assert "publication 'feed' publishes changes of 'public.low' as those of 'public.parts'" in [p.what for p in found]


def test_a_publication_that_names_the_partitions_is_refused_and_the_fix_cures_it(admin: Any, setup: Setup) -> None:
    run(admin, PARTITIONED)
    setup = replace(setup, tables=(PARTS,))
    run(admin, admin_sql(setup, "postgres"))
    run(admin, "ALTER PUBLICATION feed SET (publish_via_partition_root = false)")
    (problem,) = fatal(check(admin, setup))
    assert problem.what == "publication 'feed' publishes the partitions of 'public.parts', not the table"
    run(admin, problem.fix)
    prepare(admin, setup)
    assert check(admin, setup) == []


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        ("ALTER TABLE public.low REPLICA IDENTITY NOTHING", "the replica identity of 'public.low' does not contain"),
        ("ALTER TABLE public.low SET UNLOGGED", "partition 'public.low' of 'public.parts' is unlogged"),
    ],
)
def test_one_bad_partition_is_found(admin: Any, setup: Setup, spoil: str, what: str) -> None:
    run(admin, PARTITIONED)
    run(admin, spoil)
    setup = replace(setup, tables=(PARTS,))
    problem = the_problem(admin, setup)
    assert problem.what.startswith(what)
    run(admin, problem.fix)
    assert fatal(check(admin, setup)) == []


@pytest.mark.parametrize("which", ["the table", "a partition"])
def test_a_deferrable_key_under_partitions_is_found_and_the_fix_cures_it(admin: Any, setup: Setup, which: str) -> None:
    setup = replace(setup, tables=(PARTS,))
    if which == "the table":
        run(admin, PARTITIONED.replace("PRIMARY KEY", "PRIMARY KEY DEFERRABLE"))
        named = "public.parts"
    else:  # a level further down, and with a foreign key that would keep it from being detached
        run(admin, PARTITIONED)
        run(admin, "CREATE TABLE public.top (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        run(admin, 'CREATE TABLE public."A leaf" (id int PRIMARY KEY DEFERRABLE)')
        run(admin, 'ALTER TABLE public.top ATTACH PARTITION public."A leaf" FOR VALUES FROM (20) TO (25)')
        run(admin, "ALTER TABLE public.parts ATTACH PARTITION public.top FOR VALUES FROM (20) TO (30)")
        run(admin, "INSERT INTO public.parts VALUES (22)")
        run(admin, 'CREATE TABLE public.refers (part int CONSTRAINT "to parts" REFERENCES public.parts)')
        run(admin, "INSERT INTO public.refers VALUES (22)")
        named = "public.A leaf"
    problem = the_problem(admin, setup)
    assert (problem.what, problem.fatal) == (f"the primary key of {named!r} is deferrable: {WHY}", True)
    run(admin, problem.fix)
    prepare(admin, setup)
    assert check(admin, setup) == []
    if which == "a partition":
        with pytest.raises(psycopg2.errors.ForeignKeyViolation):
            run(admin, "DELETE FROM public.parts WHERE id = 22")


# --- publication ----------------------------------------------------------------------------------------------------


def test_a_publication_that_leaves_out_verbs_is_refused_and_the_fix_cures_it(admin: Any, setup: Setup) -> None:
    prepare(admin, setup)
    run(admin, "ALTER PUBLICATION feed SET (publish = 'insert, delete')")
    (problem,) = check(admin, setup)
    assert (problem.what, problem.fatal) == ("publication 'feed' does not publish update, truncate", True)
    run(admin, problem.fix)
    assert check(admin, setup) == []


@pytest.mark.parametrize(
    ("limit", "kind"), [("(id, item) ", "a column list"), ("", "a row filter")], ids=["columns", "rows"]
)
def test_a_publication_that_shows_only_a_part_is_refused(admin: Any, setup: Setup, limit: str, kind: str) -> None:
    prepare(admin, setup)
    where = "" if limit else "WHERE (id > 5)"
    run(admin, f"ALTER PUBLICATION feed SET TABLE dblog.watermark, public.orders {limit}{where}")
    (problem,) = check(admin, setup)
    assert problem.what == f"publication 'feed' has {kind} on 'public.orders': the log would be incomplete"
    run(admin, problem.fix)
    assert check(admin, setup) == []


def test_a_publication_of_all_tables_is_used_with_a_warning(admin: Any, setup: Setup) -> None:
    run(admin, "CREATE TABLE public.other (id int PRIMARY KEY); CREATE PUBLICATION feed FOR ALL TABLES")
    prepare(admin, setup)
    (problem,) = check(admin, setup)
    assert not problem.fatal
    assert "has 1 more tables" in problem.what


# --- slot -----------------------------------------------------------------------------------------------------------


def test_a_slot_without_its_publication_has_lost_changes(admin: Any, setup: Setup) -> None:
    prepare(admin, setup)
    run(admin, "DROP PUBLICATION feed")
    with pytest.raises(PreconditionFailed, match="exists, but its publication 'feed' does not: changes were lost"):
        prepare(admin, setup)
    with pytest.raises(PositionLost):
        prepare(admin, replace(setup, fresh=False))
    assert run(admin, "SELECT count(*) FROM pg_publication") == [(0,)]


def test_a_missing_slot_is_a_lost_position_once_there_is_a_checkpoint(admin: Any, setup: Setup) -> None:
    with pytest.raises(PositionLost, match="does not exist, but a checkpoint needs its log"):
        prepare(admin, replace(setup, fresh=False))
    assert run(admin, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", setup.slot) == [(0,)]


def test_a_slot_of_another_kind_is_refused(admin: Any, setup: Setup) -> None:
    run(admin, "SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", setup.slot)
    run(admin, admin_sql(setup, "postgres"))
    assert the_problem(admin, setup).what == (
        f"slot {setup.slot!r} is logical, plugin 'test_decoding', not a permanent pgoutput slot"
    )
    run(admin, "SELECT pg_drop_replication_slot(%s)", setup.slot)
    run(admin, "SELECT pg_create_physical_replication_slot(%s)", setup.slot)
    assert "is physical" in the_problem(admin, setup).what
    run(admin, "SELECT pg_drop_replication_slot(%s)", setup.slot)
    run(admin, "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', true)", setup.slot)
    assert "is temporary logical" in " ".join(p.what for p in check(admin, setup))


def test_a_slot_of_another_database_is_refused(database: Any, admin: Any, setup: Setup) -> None:
    elsewhere = connect(database.server.url("postgres"))
    try:
        run(elsewhere, "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", setup.slot)
        run(admin, admin_sql(setup, "postgres"))
        assert the_problem(admin, setup).what == f"slot {setup.slot!r} belongs to database 'postgres'"
    finally:
        run(elsewhere, "SELECT pg_drop_replication_slot(%s)", setup.slot)
        elsewhere.close()


def test_a_slot_in_use_names_its_reader(database: Any, admin: Any, setup: Setup) -> None:
    prepare(admin, setup)
    stream = connect(database.url, replication=True, application_name="the other one")
    try:
        changes(stream, setup, seconds=0)
        pid = stream.info.backend_pid
        with pytest.raises(PreconditionFailed) as failure:
            prepare(admin, setup, patience=0)
        holder = f"pid {pid} (application 'the other one', client 127.0.0.1)"
        assert f"slot {setup.slot!r} is read by {holder}" in str(failure.value)
    finally:
        stream.close()


def test_a_predecessor_that_is_about_to_end_is_waited_for(database: Any, admin: Any, setup: Setup) -> None:
    prepare(admin, setup)
    stream = connect(database.url, replication=True)
    changes(stream, setup, seconds=0)
    timer = threading.Timer(1.0, stream.close)
    timer.start()
    try:
        prepare(admin, setup, patience=20)
    finally:
        timer.join()


def test_an_open_transaction_that_holds_up_the_slot_is_named(database: Any, admin: Any, setup: Setup) -> None:
    writer = database.connect(autocommit=False)
    run(writer, "INSERT INTO public.orders VALUES (7)")
    with pytest.raises(PreconditionFailed, match=rf"pid {writer.info.backend_pid} \(\w+, \d+ s, idle in transaction: "):
        prepare(admin, setup, wait=Wait(patience=1))
    assert run(admin, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", setup.slot) == [(0,)]
    writer.rollback()
    assert run(admin, "SHOW statement_timeout") == [("0",)]
    prepare(admin, setup)
    assert check(admin, setup) == []


# --- least privilege ------------------------------------------------------------------------------------------------


def test_the_administrators_script_is_enough(database: Any, admin: Any, setup: Setup, as_role: Any, role: str) -> None:
    run(admin, admin_sql(setup, role))
    reader = as_role()
    (problem,) = check(reader, setup)
    assert problem.what == f"slot {setup.slot!r} does not exist"
    assert problem.creatable
    prepare(reader, setup)
    assert check(reader, setup) == []
    run(reader, "UPDATE dblog.watermark SET token = 'low' WHERE id = 1")
    assert run(reader, "SELECT * FROM public.orders") == []
    assert changes(as_role(replication=True), setup) == b"BRUC"


LEAST = {
    "replication": ("ALTER ROLE {role} NOREPLICATION", "may not read the log (no REPLICATION)"),
    "select": ("REVOKE SELECT ON public.orders FROM {role}", "lacks rights on 'public.orders': SELECT"),
    "columns": (
        "REVOKE SELECT ON public.orders FROM {role}; GRANT SELECT (id) ON public.orders TO {role}",
        "lacks rights on 'public.orders': SELECT (\"item\")",
    ),
    "usage": (
        "REVOKE USAGE ON SCHEMA public FROM {role}",
        "lacks rights on 'public.orders': USAGE on schema 'public'",
    ),
    "watermark usage": (
        "REVOKE USAGE ON SCHEMA dblog FROM {role}",
        "lacks rights on 'dblog.watermark': USAGE on schema 'dblog'",
    ),
    "watermark select": ("REVOKE SELECT ON dblog.watermark FROM {role}", "lacks rights on 'dblog.watermark': SELECT"),
    "watermark update": ("REVOKE UPDATE ON dblog.watermark FROM {role}", "lacks rights on 'dblog.watermark': UPDATE"),
    "watermark row": ("DELETE FROM dblog.watermark", "the watermark table 'dblog.watermark' has no row"),
    "publication": ("DROP PUBLICATION feed", "publication 'feed' does not exist"),
    "member": ("ALTER PUBLICATION feed DROP TABLE public.orders", "publication 'feed' does not have 'public.orders'"),
    "row security": (
        "ALTER TABLE public.orders ENABLE ROW LEVEL SECURITY",
        "row level security hides rows of 'public.orders' from role",
    ),
    "read only": (
        "ALTER ROLE {role} SET default_transaction_read_only = on",
        "is read-only by default, so watermarks cannot be written",
    ),
}


@pytest.mark.parametrize("right", LEAST)
def test_one_missing_right_is_reported_alone_and_its_fix_restores_it(
    admin: Any, setup: Setup, as_role: Any, role: str, right: str
) -> None:
    spoil, what = LEAST[right]
    run(admin, admin_sql(setup, role))
    run(admin, spoil.format(role=identifier(role)))
    (problem,) = fatal(check(as_role(), setup))
    assert problem.what.endswith(what) or f"{what} " in problem.what
    with pytest.raises(PreconditionFailed, match="1 problem:"):
        prepare(as_role(), setup)
    run(admin, problem.fix)
    prepare(as_role(), setup)
    assert check(as_role(), setup) == []


def test_a_bare_role_gets_the_statements_an_administrator_must_run(
    admin: Any, setup: Setup, as_role: Any, role: str
) -> None:
    problems = fatal(check(as_role(), setup))
    for problem in problems:
        run(admin, problem.fix)
    reader = as_role()
    prepare(reader, setup)
    assert check(reader, setup) == []


def test_an_owner_who_is_no_superuser_sets_up_everything(
    database: Any, admin: Any, setup: Setup, as_role: Any, role: str
) -> None:
    q = identifier(role)
    run(admin, f'ALTER ROLE {q} REPLICATION; GRANT CREATE ON DATABASE "{database.name}" TO {q}')
    run(admin, f"ALTER TABLE public.orders OWNER TO {q}; GRANT USAGE ON SCHEMA public TO {q}")
    reader = as_role()
    prepare(reader, setup)
    assert check(reader, setup) == []


def test_another_table_of_the_watermarks_name_is_refused(admin: Any, setup: Setup) -> None:
    run(admin, "CREATE SCHEMA dblog; CREATE TABLE dblog.watermark (id int PRIMARY KEY, other text)")
    first, *_ = fatal(check(admin, setup))
    assert first.what == "'dblog.watermark' does not have the form of a watermark table"


# --- servers that are not set up ------------------------------------------------------------------------------------


@pytest.fixture
def install(postgres: PostgresServer) -> Path:
    return postgres.bin.parent


def test_a_server_with_too_small_limits_and_no_logical_log(install: Path, setup: Setup) -> None:
    limits = {"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "1", "fsync": "off"}
    with PostgresServer(install, settings=limits) as server:
        connection = connect(server.url())
        run(connection, "CREATE TABLE public.orders (id int PRIMARY KEY)")
        run(connection, "SELECT pg_create_physical_replication_slot('taken', true)")
        physical = psycopg2.connect(server.url(), connection_factory=psycopg2.extras.PhysicalReplicationConnection)
        physical.cursor().start_replication(slot_name="taken", start_lsn=0)
        deadline = time.monotonic() + 10
        while not run(connection, "SELECT 1 FROM pg_stat_replication") and time.monotonic() < deadline:
            time.sleep(0.02)
        found = [p.what for p in fatal(check(connection, setup))]
        assert found == [
            "wal_level is 'replica', so the log cannot be decoded",
            "all 1 replication slots are in use (max_replication_slots)",
            "all 1 wal senders are in use (max_wal_senders)",
        ]
        with pytest.raises(PreconditionFailed, match="3 problems"):
            prepare(connection, setup)
        physical.close()
        connection.close()


def test_a_slot_whose_log_was_removed_is_lost(install: Path, setup: Setup) -> None:
    small = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "1GB", "fsync": "off"}
    with PostgresServer(install, settings=small) as server:
        connection = connect(server.url())
        run(connection, "CREATE TABLE public.orders (id int PRIMARY KEY)")
        prepare(connection, setup)
        for _ in range(6):
            run(connection, "SELECT pg_logical_emit_message(false, '', 'x')")
            run(connection, "SELECT pg_switch_wal()")
        (warning,) = check(connection, setup)
        assert not warning.fatal
        assert warning.what.startswith(f"slot {setup.slot!r} will soon be lost")
        run(connection, "CHECKPOINT")
        (problem,) = check(connection, setup)
        assert problem.what.startswith(f"slot {setup.slot!r} is lost")
        assert ("(wal_removed)" in problem.what) == (connection.server_version >= 170000)
        with pytest.raises(PositionLost, match="is lost"):
            prepare(connection, replace(setup, fresh=False))
        with pytest.raises(PreconditionFailed, match="is lost"):
            prepare(connection, setup)
        stream = connect(server.url(), replication=True)
        with pytest.raises(PositionLost), translating("opening the log"):
            changes(stream, setup)
        stream.close()
        run(connection, problem.fix)
        prepare(connection, setup)
        assert check(connection, setup) == []
        connection.close()


def test_a_standby_is_refused(install: Path, setup: Setup) -> None:
    with PostgresServer(install, settings={"fsync": "off"}) as server:
        connection = connect(server.url())
        run(connection, "CREATE TABLE public.orders (id int PRIMARY KEY)")
        connection.close()
        server.kill()
        (server.data / "standby.signal").touch()
        account: dict[str, Any] = (
            {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        )
        options = [f"--port={server.port}", "--unix_socket_directories=", "--wal_level=logical", "--max_wal_senders=20"]
        with server.log.open("ab") as log:
            command = [server.bin / "postgres", "-D", server.data, *options, "--max_connections=100"]
            standby = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **account)
        try:
            deadline = time.monotonic() + 20
            while True:
                try:
                    connection = connect(server.url())
                    break
                except Exception:
                    assert time.monotonic() < deadline, server.log.read_text()[-1000:]
                    time.sleep(0.1)
            assert [p.what for p in fatal(check(connection, setup))] == ["the server is a standby"]
            with pytest.raises(PreconditionFailed, match="connect to the primary"):
                prepare(connection, setup)
            connection.close()
        finally:
            standby.terminate()
            standby.wait(20)


def test_sql_ascii_is_a_warning(database: Any, admin: Any, setup: Setup) -> None:
    name = f"ascii_{uuid.uuid4().hex[:8]}"
    run(admin, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'")
    connection = connect(database.server.url(name))
    try:
        run(connection, "CREATE TABLE public.orders (id int PRIMARY KEY)")
        problem = the_problem(connection, setup)
        assert "SQL_ASCII" in problem.what
        assert not problem.fatal
    finally:
        connection.close()
        run(admin, f"DROP DATABASE {name}")
