"""The `url` option, the session every connection gets, and the meaning of errors."""

from __future__ import annotations

import pickle
import ssl
from typing import Any
from urllib.parse import quote

import pymysql.err
import pytest

from dblog.databases.mysql.connect import (
    Address,
    ServerError,
    connect,
    identifier,
    parse,
    read_version,
    server,
    translate,
    translating,
)
from dblog.errors import (
    ConfigError,
    ConnectionLost,
    DBLogError,
    PositionLost,
    PreconditionFailed,
    SchemaChanged,
    SourceError,
    TableLocked,
)

SECRET = "hunter2/@:%"
ENCODED = quote(SECRET, safe="")


# --- the url --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
def test_a_url_is_read_into_its_parts(scheme: str) -> None:
    address = parse(f"{scheme}://me:{ENCODED}@db.example:3307/shop?ssl_mode=verify_identity&ssl_ca=/ca.pem")
    parameters = (("ssl_ca", "/ca.pem"), ("ssl_mode", "verify_identity"))
    assert address == Address(scheme, "db.example", 3307, "me", SECRET, "shop", parameters)
    assert address.ssl_mode == "VERIFY_IDENTITY"


@pytest.mark.parametrize("name", ["my shop", 'sh"op', "a.b", "größe", "50%", "it's", "a/b", "a@b", "x?y=z", "a:b#c"])
def test_odd_database_and_user_names_survive(name: str) -> None:
    address = parse(f"mysql://{quote(name, safe='')}@h/{quote(name, safe='')}")
    assert (address.database, address.user) == (name, name)
    assert parse(address.masked) == address


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mysql://me@h", "mysql://me@h/"),
        ("mysql://me@h:3306/d", "mysql://me@h/d"),
        ("mysql://me@h:1/d", "mysql://me@h:1/d"),
        ("mariadb://me:pw@[::1]:3307/d?ssl_mode=DISABLED", "mariadb://me:***@[::1]:3307/d?ssl_mode=DISABLED"),
        ("mysql://me:pw@/d?socket=/run/mysqld/s", "mysql://me:***@/d?socket=/run/mysqld/s"),
    ],
)
def test_an_address_shows_itself_without_its_password(url: str, shown: str) -> None:
    address = parse(url)
    for made in (str(address), f"{address}", address.masked):
        assert made == shown
    assert repr(address) == f"Address({shown!r})"


def test_an_address_is_a_value_that_pickles_and_knows_its_secrets() -> None:
    address = parse(f"mysql://me:{ENCODED}@h/d")
    assert pickle.loads(pickle.dumps(address)) == address
    assert address.secrets == (SECRET,)
    assert parse("mysql://me@h/d").secrets == ()


@pytest.mark.parametrize(
    ("query", "mode"),
    [
        ("", "PREFERRED"),
        ("?ssl_ca=/c", "VERIFY_CA"),
        ("?ssl_cert=/c", "REQUIRED"),
        ("?ssl_ca=/c&ssl_mode=required", "REQUIRED"),
    ],
)
def test_an_authority_is_asked_unless_the_mode_says_otherwise(query: str, mode: str) -> None:
    assert parse(f"mysql://me@h/d{query}").ssl_mode == mode


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://h/d", "must start with 'mysql://' or 'mariadb://'"),
        ("mysql:me:hunter2@h", "must start with 'mysql://' or 'mariadb://'"),
        ("mysql://me:hunter2@/d", "has no host"),
        ("mysql://h/d", "has no user"),
        ("mysql://me:hunter2@a,b/d", "has several hosts"),
        ("mysql://me:hunter2@h/d?colour=red", "an unknown parameter: 'colour'"),
        ("mysql://me:hunter2@h/d?ssl_ca=/a&ssl_ca=/b", "parameter 'ssl_ca' twice"),
        ("mysql://me:hunter2@h/d?ssl_mode=maybe", "ssl_mode='maybe', which is not one of DISABLED, PREFERRED"),
        ("mysql://me:hunter2@h/d?ssl_mode=VERIFY_CA", "ssl_mode=VERIFY_CA without ssl_ca"),
        ("mysql://me:hunter2@h/d?ssl_ca=/c&ssl_mode=PREFERRED", "ssl_mode=PREFERRED, which does not use ssl_ca"),
        ("mysql://me:hunter2@h/d?ssl_key=/k", "ssl_key without ssl_cert"),
        ("mysql://me:hunter2@h/d?connect_timeout=soon", "connect_timeout='soon'"),
        ("mysql://me:hunter2@h/d?nothing", "cannot be parsed"),
        ("mysql://me:hunter2@h:99999/d", "a port that is not a number from 1 to 65535"),
        ("mysql://me:hunter2@h:x/d", "a port that is not a number from 1 to 65535"),
        ("mysql://me:hunter2%zz@h/d", "cannot be parsed"),
        ("mysql://me:hunter2@[::1/d", "cannot be parsed"),
        ("mysql://me:hunter2#@h/d", "cannot be parsed"),
        # the '/' of an unencoded password ends the address
        ("mysql://me:hunter2/more@h/d", "an '@' after the first '/'"),
        ("mysql://me:hunter2/d", "a port that is not a number"),
        ("mysql://me:5/x?hunter2=1@h/d", "an '@' after the first '/'"),
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


def test_files_for_tls_that_are_missing_are_named(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"ssl_ca='.*gone\.pem'"):
        connect(f"mysql://me:hunter2@127.0.0.1:1/d?ssl_ca={tmp_path}/gone.pem")


# --- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("10.11.6-MariaDB-0+deb12u1-log", "MariaDB", (10, 11, 6)),
        ("11.8.2-MariaDB", "MariaDB", (11, 8, 2)),
        ("8.4.0", "MySQL", (8, 4, 0)),
        ("8.0.36-0ubuntu0.22.04.1", "MySQL", (8, 0, 36)),
    ],
)
def test_the_version_tells_the_family(text: str, name: str, version: tuple[int, int, int]) -> None:
    found = read_version(text)
    assert (found.flavor.name, found.version) == (name, version)


def test_a_version_that_is_none_is_a_failed_precondition() -> None:
    with pytest.raises(PreconditionFailed, match="'vitess'"):
        read_version("vitess")


# --- errors ---------------------------------------------------------------------------------------------------------

SAME = "A slave with the same server_uuid/server_id as this slave has connected to the master"
REPLICA = "A replica with the same server_uuid/server_id as this replica has connected to the source"


@pytest.mark.parametrize(
    ("number", "text", "kind"),
    [
        (2003, "Can't connect to MySQL server on 'h'", ConnectionLost),
        (2006, "MySQL server has gone away", ConnectionLost),
        (2013, "Lost connection to MySQL server during query", ConnectionLost),
        (1053, "Server shutdown in progress", ConnectionLost),
        (1927, "Connection was killed", ConnectionLost),
        (0, "", ConnectionLost),
        (1045, "Access denied for user 'x'@'h'", PreconditionFailed),
        (1049, "Unknown database 'd'", PreconditionFailed),
        (1227, "you need (at least one of) the REPLICATION SLAVE privilege(s)", PreconditionFailed),
        (1142, "SELECT command denied to user", PreconditionFailed),
        (1040, "Too many connections", PreconditionFailed),
        (1290, "The MariaDB server is running with the --read-only option", PreconditionFailed),
        (4052, SAME, PreconditionFailed),
        (1236, REPLICA, PreconditionFailed),
        (1236, "Binary log is not open", PreconditionFailed),
        (1236, "Could not find first log file name in binary log index file", PositionLost),
        (1236, "Client requested master to start replication from impossible position", PositionLost),
        (1205, "Lock wait timeout exceeded", TableLocked),
        (1146, "Table 'd.t' doesn't exist", SchemaChanged),
        (1054, "Unknown column 'c'", SchemaChanged),
        (1064, "You have an error in your SQL syntax", SourceError),
        (1021, "Disk full", SourceError),
    ],
)
@pytest.mark.parametrize("source", [pymysql.err.OperationalError, ServerError])
def test_errors_are_told_apart_by_their_number(source: Any, number: int, text: str, kind: type[DBLogError]) -> None:
    translated = translate(source(number, text), "reading")
    assert type(translated) is kind
    assert translated.message.startswith("reading failed: ")
    assert text in translated.message
    if kind not in (SourceError,):
        assert translated.hint


def test_a_certificate_that_is_not_trusted_is_a_precondition_and_a_broken_connection_is_not() -> None:
    def refused(cause: Exception) -> DBLogError:
        error = pymysql.err.OperationalError(2003, f"Can't connect to MySQL server on 'h' ({cause})")
        error.original_exception = cause
        return translate(error, "connecting")

    assert type(refused(ssl.SSLCertVerificationError("self-signed certificate"))) is PreconditionFailed
    assert type(refused(ssl.SSLError("wrong version number"))) is PreconditionFailed
    assert type(refused(ssl.SSLEOFError("EOF occurred"))) is ConnectionLost
    assert type(refused(ConnectionRefusedError("refused"))) is ConnectionLost


def test_a_secret_in_the_drivers_message_is_not_repeated() -> None:
    noisy = f"no luck with mysql://me:{SECRET}@h/d password='{SECRET}' password=hunter2 and {SECRET}"
    with pytest.raises(ConnectionLost) as failure, translating("connecting", secrets=[SECRET]):
        raise pymysql.err.OperationalError(2003, noisy)
    assert "hunter2" not in str(failure.value)
    assert failure.value.__cause__ is None
    unknown = pymysql.err.OperationalError(2003, "no luck with mysql://me:hunter2@h/d password='hunter2'")
    assert "hunter2" not in str(translate(unknown, "connecting"))


def test_other_exceptions_pass_untouched() -> None:
    with pytest.raises(KeyError), translating("reading"):
        raise KeyError("x")


def test_names_are_quoted() -> None:
    assert identifier("a`b", "t") == "`a``b`.`t`"


# --- with a server --------------------------------------------------------------------------------------------------


def ask(connection: Any, sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


@pytest.mark.server
def test_every_session_speaks_one_dialect_whatever_the_server_says(mysql_database: Any) -> None:
    before = mysql_database.execute("select @@global.time_zone, @@global.sql_mode, @@global.sql_select_limit")[0]
    try:
        mysql_database.execute(
            "set global time_zone = '+05:00'",
            "set global sql_mode = 'PAD_CHAR_TO_FULL_LENGTH,ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
            "set global sql_select_limit = 1",
        )
        connection = connect(mysql_database.url)
        shown = ask(connection, "select @@time_zone, @@sql_mode, @@character_set_results, @@autocommit, database()")
        mode = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
        assert shown == (("+00:00", mode, "utf8mb4", 1, mysql_database.name),)
        assert ask(connection, "select 1 union select 2") == ((1,), (2,))
        assert server(connection).flavor is mysql_database.flavor
        connection.close()
    finally:
        zone, mode, limit = before
        mysql_database.execute(
            f"set global time_zone = '{zone}'",
            f"set global sql_mode = '{mode}'",
            f"set global sql_select_limit={limit}",
        )


@pytest.mark.server
@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"database": "no such"}, PreconditionFailed, "Unknown database 'no such'"),
        ({"user": "nobody", "password": "hunter2"}, PreconditionFailed, "Access denied"),
        ({"password": "hunter2"}, PreconditionFailed, "Access denied"),
    ],
)
def test_a_refused_login_says_why(
    mysql_server: Any, change: dict[str, str], kind: type[DBLogError], message: str
) -> None:
    with pytest.raises(kind, match=message) as failure:
        connect(mysql_server.url(**change))
    assert not failure.value.retryable
    assert "hunter2" not in str(failure.value)


@pytest.mark.server
def test_a_server_that_does_not_answer_is_a_lost_connection(mysql_server: Any) -> None:
    with pytest.raises(ConnectionLost) as failure:
        connect(mysql_server.url().replace(f":{mysql_server.port}/", ":1/"))
    assert failure.value.retryable


@pytest.mark.server
@pytest.mark.parametrize("mysql_server", ["mariadb"], indirect=True)
def test_a_server_without_tls_is_refused_where_it_is_demanded(mysql_server: Any) -> None:
    connect(mysql_server.url()).close()
    with pytest.raises(PreconditionFailed, match="SSL is required"):
        connect(mysql_server.url() + "?ssl_mode=REQUIRED")


@pytest.mark.server
@pytest.mark.parametrize(
    ("mysql_server", "mode"),
    [("mariadb", "DISABLED"), ("mysql", "DISABLED"), ("mysql", "PREFERRED"), ("mysql", "REQUIRED")],
    indirect=["mysql_server"],
)
@pytest.mark.parametrize("password", ["pässwörd漢", "", "x" * 200])
def test_a_password_reaches_the_server_with_and_without_tls(mysql_database: Any, mode: str, password: str) -> None:
    """At first MySQL asks for it, under a key of its own or over TLS; then for a proof only."""
    user = f"u{mysql_database.name[-8:]}"
    mysql_database.execute(f"create user {user}@'%' identified by '{password}'")
    try:
        for wrong in (False, True, False):
            url = mysql_database.server.url("", user, password + "x" * wrong) + f"?ssl_mode={mode}"
            if wrong:
                with pytest.raises(PreconditionFailed, match="Access denied"):
                    connect(url)
            else:
                assert ask(connect(url), "select substring_index(user(), '@', 1)") == ((user,),)
    finally:
        mysql_database.execute(f"drop user {user}@'%'")


@pytest.mark.server
def test_a_missing_table_is_a_changed_schema_and_a_killed_session_a_lost_connection(mysql_database: Any) -> None:
    connection = connect(mysql_database.url)
    with pytest.raises(SchemaChanged, match="reading t failed: "), translating("reading t"):
        ask(connection, "select * from gone")
    mysql_database.execute(f"kill {connection.thread_id()}")
    for _ in range(2):
        with pytest.raises(ConnectionLost), translating("reading"):
            ask(connection, "select 1")
