"""The `url` option, the session every connection gets, and the meaning of the driver's errors."""

from __future__ import annotations

import pickle
import time
from typing import Any
from urllib.parse import quote

import psycopg2
import pytest

from dblog.databases.postgres.connect import SESSION, connect, parse, translate, translating
from dblog.errors import (
    ConfigError,
    ConnectionLost,
    DBLogError,
    PositionLost,
    PreconditionFailed,
    SchemaChanged,
    SourceError,
)

SECRET = "hunter2/@:%"
ENCODED = quote(SECRET, safe="")


# --- the url --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_url_is_read_into_libpqs_parameters(scheme: str) -> None:
    address = parse(f"{scheme}://me:{ENCODED}@db.example:6432/shop?sslmode=verify-full&sslrootcert=/ca.pem")
    assert dict(address.parameters) == {
        "user": "me",
        "password": SECRET,
        "host": "db.example",
        "port": "6432",
        "dbname": "shop",
        "sslmode": "verify-full",
        "sslrootcert": "/ca.pem",
    }


@pytest.mark.parametrize("name", ["my shop", 'sh"op', "a.b", "größe", "50%", "it's", "a/b", "a@b", "x?y=z"])
def test_odd_database_and_user_names_survive(name: str) -> None:
    address = parse(f"postgresql://{quote(name, safe='')}@h/{quote(name, safe='')}")
    assert (address.database, address.get("user")) == (name, name)
    assert parse(address.masked) == address


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{ENCODED}@h/d",
        f"postgresql://me@h/d?password={ENCODED}",
        f"postgresql://h/d?user=me&password={ENCODED}&sslpassword={ENCODED}",
        f"postgresql:///d?host=/run/postgresql&password={ENCODED}",
        f"postgresql://me:{ENCODED}@[::1]:5432,other:5433/d",
    ],
)
def test_an_address_never_shows_its_secrets(url: str) -> None:
    address = parse(url)
    for shown in (str(address), repr(address), f"{address}", address.masked, repr([address])):
        assert "hunter2" not in shown
        assert "***" in shown or "me@" in shown or "host=" in shown
    assert SECRET in address.secrets


def test_an_address_is_a_value_that_pickles() -> None:
    address = parse("postgresql://me:pw@h/d")
    assert pickle.loads(pickle.dumps(address)) == address == parse("postgres://me:pw@h/d")


def test_several_hosts_are_kept_and_shown() -> None:
    address = parse("postgresql://a:1,b:2/d")
    assert address.hosts == ("a", "b")
    assert address.masked == "postgresql://a:1,b:2/d"
    assert parse("postgresql://a,b/d?port=7").masked == "postgresql://a:7,b:7/d"


def test_a_service_may_name_the_database() -> None:
    assert parse("postgresql:///?service=shop").get("service") == "shop"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://h/d", "must start with 'postgresql://'"),
        ("host=h dbname=d password=hunter2", "must start with 'postgresql://'"),
        ("postgresql://me:hunter2@h", "has no database"),
        ("postgresql://me:hunter2@h/?sslmode=require", "has no database"),
        ("postgresql://me:hunter2@h/d?colour=red", "unknown parameter: 'colour'"),
        ("postgresql://me:hunter2@h/d?sslmode=maybe", "sslmode='maybe', which is not one of disable, allow"),
        ("postgresql://me:hunter2@h/d?target_session_attrs=any-one", "target_session_attrs='any-one'"),
        ("postgresql://me:hunter2@h/d?connect_timeout=soon", "connect_timeout='soon'"),
        ("postgresql://me:hunter2@h/d?replication=database", "sets 'replication'"),
        ("postgresql://me:hunter2@h:99999/d", "a port that is not a number from 1 to 65535"),
        ("postgresql://me:hunter2@a,b,c:1/d?port=1,2", "2 ports for 3 hosts"),
        ("postgresql://me:hunter2%zz@h/d", "cannot be parsed"),
        ("postgresql://me:hunter2@[::1/d", "cannot be parsed"),
        # the '/' of an unencoded password ends the address for libpq
        ("postgresql://me:hunter2/more@h/d", "an '@' after the first '/'"),
        ("postgresql://me:hunter2/d", "a port that is not a number"),
        ("postgresql://me:5/x?hunter2=1@h/d", "cannot be parsed"),
    ],
)
def test_a_bad_url_is_refused_early_without_its_password(url: str, message: str) -> None:
    with pytest.raises(ConfigError) as failure:
        parse(url)
    assert message in str(failure.value)
    assert "option 'url'" in str(failure.value)
    assert "hunter2" not in str(failure.value)
    assert failure.value.hint
    assert failure.value.__cause__ is None


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg2.OperationalError("server closed the connection unexpectedly"), ConnectionLost),
        (psycopg2.OperationalError('connection to server at "h" failed: Connection refused'), ConnectionLost),
        (psycopg2.OperationalError("FATAL:  the database system is starting up"), ConnectionLost),
        (psycopg2.OperationalError("session is read-only"), ConnectionLost),
        (psycopg2.DatabaseError("error with status PGRES_COPY_BOTH and no message from the libpq"), ConnectionLost),
        (psycopg2.InterfaceError("connection already closed"), ConnectionLost),
        (
            psycopg2.OperationalError("FATAL:  unsupported startup parameter in options: search_path"),
            PreconditionFailed,
        ),
        (psycopg2.OperationalError('FATAL:  password authentication failed for user "x"'), PreconditionFailed),
        (psycopg2.OperationalError('FATAL:  no pg_hba.conf entry for host "h"'), PreconditionFailed),
        (psycopg2.OperationalError("FATAL:  sorry, too many clients already"), PreconditionFailed),
        (psycopg2.OperationalError("SSL error: certificate verify failed"), PreconditionFailed),
        (psycopg2.ProgrammingError("no results to fetch"), SourceError),
    ],
)
def test_errors_without_a_state_are_told_apart_by_their_text(error: psycopg2.Error, kind: type[DBLogError]) -> None:
    translated = translate(error, "reading")
    assert type(translated) is kind
    assert translated.message.startswith("reading failed: ")
    assert "FATAL" not in translated.message


def test_a_pooler_gets_the_hint_to_connect_directly() -> None:
    error = psycopg2.OperationalError("FATAL:  unsupported startup parameter in options: search_path")
    assert "put the PostgreSQL server's own host and port into the URL" in str(translate(error, "connecting"))


def test_a_secret_in_the_drivers_message_is_not_repeated() -> None:
    noisy = f"no luck with postgresql://me:{SECRET}@h/d password='{SECRET}' password=hunter2 and {SECRET}"
    with pytest.raises(ConnectionLost) as failure, translating("connecting", secrets=[SECRET]):
        raise psycopg2.OperationalError(noisy)
    assert "hunter2" not in str(failure.value)
    assert failure.value.__cause__ is None
    unknown = psycopg2.OperationalError("no luck with postgresql://me:hunter2@h/d password='hunter2' password=hunter2")
    assert "hunter2" not in str(translate(unknown, "connecting"))


def test_other_exceptions_pass_untouched() -> None:
    with pytest.raises(KeyError), translating("reading"):
        raise KeyError("x")


# --- with a server --------------------------------------------------------------------------------------------------


def run(connection: Any, sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else None


def read_for(cursor: Any, seconds: float) -> None:
    for _ in range(int(seconds / 0.02)):
        cursor.read_message()
        time.sleep(0.02)


@pytest.mark.server
@pytest.mark.parametrize("replication", [False, True])
def test_every_session_speaks_one_dialect_whatever_role_database_and_url_say(database: Any, replication: bool) -> None:
    for setting in (
        "TimeZone = 'Asia/Tokyo'",
        "DateStyle = 'SQL, DMY'",
        "bytea_output = 'escape'",
        "search_path = 'x'",
    ):
        database.execute(f'ALTER DATABASE "{database.name}" SET {setting}')
    options = quote(r"-c IntervalStyle=postgres -c DateStyle=German,\ DMY -c work_mem=7MB", safe="")
    connection = connect(f"{database.url}?options={options}", replication=replication, application_name="me")
    try:
        shown = {name: run(connection, f"SHOW {name}")[0][0] for name in SESSION}
        assert shown.pop("DateStyle").startswith("ISO")
        assert shown == {name: value for name, value in SESSION.items() if name != "DateStyle"}
        assert run(connection, "SHOW client_encoding") == [("UTF8",)]
        assert run(connection, "SHOW application_name") == [("me",)]
        assert run(connection, "SHOW work_mem") == [("7MB",)]
        assert run(connection, "SHOW logical_decoding_work_mem") == [("256MB" if replication else "64MB",)]
        assert "password=xxx" in connection.dsn
    finally:
        connection.close()


@pytest.mark.server
def test_autocommit_is_the_default_and_can_be_left_out(database: Any) -> None:
    for autocommit in (True, False):
        connection = connect(database.url, autocommit=autocommit)
        assert connection.autocommit is autocommit
        connection.close()


@pytest.mark.server
def test_the_first_writable_of_several_hosts_is_taken(database: Any) -> None:
    address = parse(database.url)
    url = database.url.replace(f"@127.0.0.1:{address.get('port')}", f"@127.0.0.1:1,127.0.0.1:{address.get('port')}")
    assert url != database.url
    connection = connect(url)
    assert "target_session_attrs=primary" in connection.dsn
    connection.close()


@pytest.mark.server
@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"database": "no such"}, PreconditionFailed, 'database "no such" does not exist'),
        ({"user": "nobody", "password": "hunter2"}, PreconditionFailed, "authentication failed"),
        ({"password": "hunter2"}, PreconditionFailed, "authentication failed"),
    ],
)
def test_a_refused_login_says_why(postgres: Any, change: dict[str, str], kind: type[DBLogError], message: str) -> None:
    with pytest.raises(kind, match=message) as failure:
        connect(postgres.url(**change))
    assert not failure.value.retryable
    assert "hunter2" not in str(failure.value)


@pytest.mark.server
def test_a_server_that_does_not_answer_is_a_lost_connection(postgres: Any) -> None:
    with pytest.raises(ConnectionLost) as failure:
        connect(postgres.url().replace(f":{postgres.port}/", ":1/"))
    assert failure.value.retryable


@pytest.mark.server
@pytest.mark.parametrize("sql", ["SELECT * FROM public.gone", "SELECT gone FROM public.t", "SELECT * FROM gone.t"])
def test_a_missing_table_or_column_is_a_changed_schema(database: Any, sql: str) -> None:
    database.execute("CREATE TABLE public.t (id int)")
    with pytest.raises(SchemaChanged, match="reading t failed: "), translating("reading t"):
        run(database.connect(), sql)


@pytest.mark.server
def test_a_session_that_the_server_ends_is_a_lost_connection_and_stays_one(database: Any) -> None:
    connection, stream = connect(database.url), connect(database.url, replication=True)
    run(connection, "SELECT pg_create_logical_replication_slot('ended', 'pgoutput')")
    cursor = stream.cursor()
    cursor.start_replication(slot_name="ended", options={"proto_version": "1", "publication_names": "none"})
    other = connect(database.url, replication=True)
    with pytest.raises(ConnectionLost, match="is active for PID"), translating("reading the log"):
        other.cursor().start_replication(slot_name="ended", options={"proto_version": "1", "publication_names": "p"})
    other.close()
    database.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 'ended'")
    for _ in range(2):
        with pytest.raises(ConnectionLost), translating("reading the log"):
            read_for(cursor, seconds=5)
    database.execute(f"SELECT pg_terminate_backend({connection.info.backend_pid})")
    for _ in range(2):
        with pytest.raises(ConnectionLost), translating("selecting"):
            run(connection, "SELECT 1")


@pytest.mark.server
def test_a_missing_slot_is_a_lost_position(database: Any) -> None:
    stream = connect(database.url, replication=True)
    with pytest.raises(PositionLost, match='replication slot "gone" does not exist'), translating("opening the log"):
        stream.cursor().start_replication(slot_name="gone", options={"proto_version": "1", "publication_names": "p"})
    stream.close()


@pytest.mark.server
@pytest.mark.parametrize("postgres", ["pg15"], indirect=True)  # PostgreSQL 18 sends nothing instead
def test_a_missing_publication_is_a_failed_precondition(database: Any) -> None:
    database.execute("SELECT pg_create_logical_replication_slot('unpublished', 'pgoutput')")
    database.execute("CREATE TABLE public.t (id int); INSERT INTO public.t VALUES (1)")
    stream = connect(database.url, replication=True)
    cursor = stream.cursor()
    cursor.start_replication(slot_name="unpublished", options={"proto_version": "1", "publication_names": "p"})
    with pytest.raises(PreconditionFailed, match='publication "p" does not exist'), translating("reading the log"):
        read_for(cursor, seconds=5)
    stream.close()


@pytest.mark.server
def test_the_rights_and_limits_of_the_server_are_preconditions(database: Any) -> None:
    admin = database.connect()
    role = f"limited_{database.name}"
    run(admin, f"CREATE ROLE {role} LOGIN PASSWORD 'pw' CONNECTION LIMIT 1; CREATE TABLE public.t (id int)")
    url = database.server.url(database.name, role, "pw")
    connection = connect(url)
    try:
        with pytest.raises(PreconditionFailed, match="permission denied for table t"), translating("reading t"):
            run(connection, "SELECT * FROM public.t")
        with pytest.raises(PreconditionFailed, match="too many connections"):
            connect(url)
        run(connection, "SET default_transaction_read_only = on")
        with pytest.raises(PreconditionFailed, match="read-only"), translating("writing"):
            run(connection, "CREATE TABLE public.u ()")
        connection.close()
        for _ in range(50):  # the server needs a moment to notice
            if not run(admin, f"SELECT 1 FROM pg_stat_activity WHERE usename = '{role}'"):
                break
            time.sleep(0.05)
        with pytest.raises(PreconditionFailed, match=r"ALTER ROLE \.\.\. REPLICATION"):
            connect(url, replication=True)
    finally:
        run(admin, f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.server
def test_row_level_security_is_an_error_and_not_a_filter(database: Any) -> None:
    role = f"guarded_{database.name}"
    database.execute("CREATE TABLE public.t (id int); ALTER TABLE public.t ENABLE ROW LEVEL SECURITY")
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'; GRANT SELECT ON public.t TO {role}")
    database.execute(f"GRANT USAGE ON SCHEMA public TO {role}")
    connection = connect(database.server.url(database.name, role, "pw"))
    try:
        with pytest.raises(PreconditionFailed, match="row-level security"), translating("reading t"):
            run(connection, "SELECT * FROM public.t")
    finally:
        connection.close()
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
