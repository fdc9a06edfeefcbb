"""Connections to PostgreSQL: the `url` option, the settings of every session, and the translation of errors.

Every session has the same settings (`SESSION`), because a dump row and a log row must give the same text for the same
value. They are sent as start-up `options`. So they also work on replication connections, which have no `SET`, and they
override `ALTER ROLE ... SET` and `ALTER DATABASE ... SET`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias
from urllib.parse import quote

import psycopg2
import psycopg2.extensions
import psycopg2.extras

from dblog.core.masking import without_secrets
from dblog.errors import (
    ConfigError,
    ConnectionLost,
    DBLogError,
    PositionLost,
    PreconditionFailed,
    SchemaChanged,
    SourceError,
    TableLocked,
    TableUnreadable,
)

Connection: TypeAlias = psycopg2.extensions.connection

SESSION = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": "",
    "standard_conforming_strings": "on",
    # A policy that hides rows from the dump but not from the log must be an error, never a silent filter.
    "row_security": "off",
}
REPLICATION = {"logical_decoding_work_mem": "256MB"}
"""Settings of replication sessions. The server decodes transactions of up to 256 MB in memory: up to twice as fast as
writing them to disk above its default of 64 MB."""

DEFAULTS = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    # TCP sends no keep-alives while our own data is unacknowledged. Without this limit (in milliseconds) a dead network
    # is noticed after 15 minutes only.
    "tcp_user_timeout": "60000",
}

SECRETS = frozenset({"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"})
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
SESSION_ATTRS = ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")

_ENCODE = "percent-encode special characters in names and passwords, e.g. %40 for '@', %2F for '/', %25 for '%'"


@dataclass(frozen=True, repr=False)
class Address:
    """Where a database is and how to log in, as libpq's parameters. `str` and `repr` do not show the secrets."""

    parameters: tuple[tuple[str, str], ...]

    def get(self, name: str, default: str = "") -> str:
        return dict(self.parameters).get(name, default)

    @property
    def database(self) -> str:
        """The database's name; empty when a `service` names it."""
        return self.get("dbname")

    @property
    def endpoint(self) -> tuple[str, str, str]:
        return self.get("host"), self.get("port"), self.database

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple((self.get("host") or self.get("hostaddr")).split(","))

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(value for name, value in self.parameters if name in SECRETS and value)

    @cached_property
    def masked(self) -> str:
        """The address as a URL in which every secret is `***`."""
        rest = {name: value for name, value in self.parameters if name not in {"user", "dbname", "password"}}
        in_url = "host" in rest and not any(host.startswith(("/", "@")) for host in self.hosts)
        authority = ""
        if in_url:
            ports = rest.pop("port", "").split(",")
            ports = ports * len(self.hosts) if len(ports) == 1 else ports
            hosts = [f"[{host}]" if ":" in host else quote(host) for host in self.hosts]
            authority = ",".join(f"{h}:{p}" if p else h for h, p in zip(hosts, ports, strict=True))
            del rest["host"]
        user = quote(self.get("user"), safe="")
        login = f"{user}:***@" if self.get("password") else f"{user}@" if user else ""
        query = "&".join(f"{k}={'***' if k in SECRETS else quote(v, safe='/,')}" for k, v in rest.items())
        return f"postgresql://{login}{authority}/{quote(self.database, safe='')}" + (f"?{query}" if query else "")

    def __str__(self) -> str:
        return self.masked

    def __repr__(self) -> str:
        return f"Address({self.masked!r})"


def parse(url: str) -> Address:
    """Read a `postgresql://` or `postgres://` URL with any of libpq's parameters. Raises ConfigError."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise ConfigError(
            "option 'url' is not a PostgreSQL URL: it must start with 'postgresql://'",
            hint="write it as postgresql://user:password@host:5432/database?sslmode=require",
        )
    path = url.split("://", 1)[1].split("?", 1)[0].partition("/")[2]
    if "@" in path:  # libpq would parse a part of the password as the host, and show it in its error
        raise ConfigError("option 'url' has an '@' after the first '/' of its address", hint=_ENCODE)
    try:
        found = {k: v for k, v in psycopg2.extensions.parse_dsn(url).items() if v is not None}
    except psycopg2.ProgrammingError as exc:
        # libpq's message may quote the URL or a piece of the password: only a parameter's name is repeated.
        name = re.search(r'invalid URI query parameter: "(\w+)"', str(exc))
        if name and "@" not in url.partition("?")[2]:
            unknown = f"option 'url' has an unknown parameter: {name[1]!r}"
            raise ConfigError(unknown, hint="see 'Parameter Key Words' in the libpq documentation") from None
        raise ConfigError("option 'url' cannot be parsed as a PostgreSQL URL", hint=_ENCODE) from None
    _validate(found)
    return Address(tuple(sorted(found.items())))


def _validate(found: dict[str, str]) -> None:
    if not found.get("dbname") and not found.get("service"):
        raise ConfigError("option 'url' has no database", hint="append it: postgresql://host/database")
    if "replication" in found:
        raise ConfigError("option 'url' sets 'replication'", hint="remove it: DBLog opens such connections itself")
    ports = found.get("port", "").split(",")
    if not all(p == "" or (p.isascii() and p.isdigit() and 0 < int(p) < 65536) for p in ports):
        # not echoed: a '/' in an unencoded password puts a piece of the password here
        raise ConfigError("option 'url' has a port that is not a number from 1 to 65535", hint=_ENCODE)
    hosts = (found.get("host") or found.get("hostaddr", "")).split(",")
    if len(ports) not in (1, len(hosts)):
        raise ConfigError(
            f"option 'url' has {len(ports)} ports for {len(hosts)} hosts", hint="give one port or one each"
        )
    for name, allowed in (("sslmode", SSL_MODES), ("target_session_attrs", SESSION_ATTRS)):
        if name in found and found[name] not in allowed:
            raise ConfigError(
                f"option 'url' has {name}={found[name]!r}, which is not one of {', '.join(allowed)}",
                hint=f"correct {name} in the URL",
            )
    timeout = found.get("connect_timeout", "0")
    if not re.fullmatch(r"-?[0-9]+", timeout):
        raise ConfigError(f"option 'url' has connect_timeout={timeout!r}", hint="give a whole number of seconds")


def connect(
    url: str | Address, *, replication: bool = False, autocommit: bool = True, application_name: str = "dblog"
) -> Connection:
    """Open a session with our settings; with `replication`, a logical replication one. Raises SourceError.

    The URL overrides our defaults (time-outs, keep-alives, application name), but not `SESSION`. With several hosts
    libpq tries one after the other, and takes the first that is the primary.
    """
    address = parse(url) if isinstance(url, str) else url
    given = dict(address.parameters)
    settings = SESSION | REPLICATION if replication else SESSION
    parameters: dict[str, Any] = DEFAULTS | {"application_name": application_name} | given
    if len(address.hosts) > 1:
        # Not "read-write": a role that is read-only by default would find no server.
        parameters.setdefault("target_session_attrs", "primary")
    parameters["client_encoding"] = "UTF8"
    # The last -c of a name counts, so ours come after the user's.
    parameters["options"] = " ".join([given.get("options", ""), *(_option(k, v) for k, v in settings.items())]).strip()
    if replication:
        parameters["connection_factory"] = psycopg2.extras.LogicalReplicationConnection
    with translating(f"connecting to {address.masked}", secrets=address.secrets):
        connection = psycopg2.connect(**parameters)
        if not replication:  # such a connection has no transactions, and the attribute cannot be set
            connection.autocommit = True
        if connection.get_parameter_status("server_encoding") == "SQL_ASCII":
            _take_bytes(connection)
        if not replication:
            connection.autocommit = autocommit
    return connection


def _take_bytes(connection: Connection) -> None:
    """Have the server send text as it is stored. It would refuse to send text that is not valid in UTF-8. The driver is
    not told, and still reads and writes UTF-8."""
    with connection.cursor() as cursor:
        cursor.execute("set client_encoding = 'SQL_ASCII'")


def connect_beside(connection: Connection, *, application_name: str, replication: bool = False) -> Connection:
    """Open another session with the same database of the same server, as the same user; with `replication`, a logical
    replication one. Raises SourceError."""
    info = connection.info
    parameters = {k: v for k, v in info.dsn_parameters.items() if k != "replication"}
    parameters |= {"password": info.password or "", "application_name": application_name}
    factory = psycopg2.extras.LogicalReplicationConnection if replication else None
    if "," in parameters.get("host", ""):  # of several hosts, the one that the session is connected to
        parameters |= {"host": info.host, "port": str(info.port), "target_session_attrs": "any"}
        parameters.pop("hostaddr", None)
    with translating("connecting once more", secrets=[connection.info.password or "\0"]):
        beside = psycopg2.connect(connection_factory=factory, **parameters)
        if not replication:
            beside.autocommit = True
    return beside


def _option(name: str, value: str) -> str:
    """One `-c name=value` for libpq's `options`. The server splits these at spaces without a backslash before them."""
    return f"-c {name}=" + re.sub(r"([\\\s])", r"\\\1", value)


def identifier(*names: str) -> str:
    """Names quoted and joined with dots, for SQL that is shown or cannot take parameters."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """Text as a SQL string. A backslash needs no escape: every session has `standard_conforming_strings` on."""
    return "'" + text.replace("'", "''") + "'"


class ServerError(Exception):
    """An error message that our own code received, where the driver does not read."""

    def __init__(self, state: str, text: str, detail: str, function: str) -> None:
        super().__init__(text)
        self.state = state
        self.text = text
        self.detail = detail
        self.function = function

    @staticmethod
    def of(exc: psycopg2.Error) -> ServerError:
        """The same for an error of the driver."""
        diag = exc.diag
        text = diag.message_primary or str(exc) or type(exc).__name__
        return ServerError(exc.pgcode or "", text, diag.message_detail or "", diag.source_function or "")


@contextmanager
def translating(doing: str, *, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Raise the driver's errors of the body as ours. `doing` is a phrase like "reading public.orders"."""
    try:
        yield
    except (psycopg2.Error, ServerError) as exc:
        secrets = tuple(secrets)
        leaks = any(secret in str(exc) for secret in secrets)
        raise translate(exc, doing, secrets=secrets) from (None if leaks else exc)
    except UnicodeDecodeError as exc:  # in a database whose encoding is SQL_ASCII
        raise TableUnreadable(f"{doing} failed: text is not valid in UTF-8", hint="correct it in the source") from exc


# Refused connections: a pattern of the message and the hint to show. The driver gives no SQLSTATE for these, so the
# server's English text decides. A message that no pattern matches counts as a broken connection.
_REFUSED = {
    r"unsupported (options )?startup parameter|bouncer|no such database: ": (
        "this looks like a connection pooler such as PgBouncer, which does not support session settings and "
        "replication: put the PostgreSQL server's own host and port into the URL"
    ),
    r"unrecognized configuration parameter|invalid value for parameter|requires a value": (
        "check `options` in the URL; servers older than 13 are not supported"
    ),
    r"permission denied to start WAL sender|must be superuser or replication role": "run ALTER ROLE ... REPLICATION",
    r"max_wal_senders": "raise max_wal_senders (needs a restart) or stop a replication client",
    r"too many (clients|connections)|connection slots are reserved": (
        "raise max_connections or the role's CONNECTION LIMIT, or close other sessions"
    ),
    r"pg_hba\.conf": (
        "allow this client, user and database in pg_hba.conf and reload; 'no encryption' in the message means that the "
        "server requires sslmode=require"
    ),
    r"authentication (failed|method)|no password supplied|not permitted to log in|role .* does not exist": (
        "check user and password in the URL, the password file and pg_hba.conf"
    ),
    r"database .* does not exist|permission denied for database": "check the database's name and CONNECT on it",
    r"not support SSL|certificate|private key|does not match host name|CRL file": (
        "check sslmode, sslrootcert, sslcert and sslkey in the URL"
    ),
    r"definition of service|service file": "check the service's name and PGSERVICEFILE",
    r"invalid (integer )?value|invalid \w+ value": "check the parameters in the URL",
}

# The server's C functions that raise 55000 or 42704 for a slot. Their names are never translated, unlike the message.
_SLOT_FUNCTIONS = re.compile(r"ReplicationSlot|CreateDecodingContext|LogicalReplication|slot|SlotInvalidation", re.I)


def translate(exc: psycopg2.Error | ServerError, doing: str, *, secrets: Iterable[str] = ()) -> DBLogError:
    """Translate an error of the server or the driver into one of ours, by SQLSTATE. Its text has no secrets."""
    error = exc if isinstance(exc, ServerError) else ServerError.of(exc)
    kind, hint = _meaning(error) if error.state else _meaning_without_state(exc)
    return kind(f"{doing} failed: {_scrub(_text(error), secrets)}", hint=hint)


def _meaning(error: ServerError) -> tuple[type[SourceError], str | None]:
    state, function = error.state, error.function
    match state:
        case "57P01" | "57P02" | "57P03" | "57P05" | "25P03":
            return ConnectionLost, "the server ended the session; dblog connects again when the server runs"
        case "55P03":
            return TableLocked, "another session holds a lock (see pg_locks); dblog tries again"
        case "55006":
            return ConnectionLost, "another session reads this slot: stop it, or set another slot for this pipeline"
        case "55000" if "recovery is in progress" in error.text:
            return ConnectionLost, "the server is a standby now; dblog connects again when it finds the primary"
        case "55000" if "wal_level" in error.text:
            return PreconditionFailed, "set wal_level = logical and restart the server"
        case "55000" if "was not created in this database" in error.text:
            return PreconditionFailed, "a slot belongs to one database: choose another slot name for this database"
        case "58P01":
            return PositionLost, "the server has removed log that is still needed: drop the slot, start with a new dump"
        case "55000" if _SLOT_FUNCTIONS.search(function):
            return PositionLost, "the slot is unusable: drop it, raise max_slot_wal_keep_size, start with a new dump"
        case "42704" if "ublication" in function:
            return PreconditionFailed, "the publication is missing: changes since it was dropped are lost; dump again"
        case "42704" if _SLOT_FUNCTIONS.search(function):
            return (
                PositionLost,
                "the slot and its log do not exist any more: start with a new checkpoint and a new dump",
            )
        case "42501":
            return PreconditionFailed, "grant what is missing; 'dblog check' prints the statements"
        case "53300" | "53400":
            return PreconditionFailed, "raise max_connections, max_wal_senders or max_replication_slots, or free some"
        case "25006":
            return PreconditionFailed, "this is a standby or a read-only session: connect to the primary"
        case "42P01" | "42703" | "3F000":
            return SchemaChanged, "the table was dropped, renamed or altered: restart the query to use its new schema"
        case "53100" | "53200" | "58030":
            return SourceError, "the server has no disk space or memory left: free some there"
        case "57014":
            return SourceError, "a time-out or an operator cancelled the statement: see statement_timeout of the role"
    match state[:2]:
        case "08":
            return ConnectionLost, "check the network and the server's log"
        case "28":
            return PreconditionFailed, "check user and password in the URL, the password file and pg_hba.conf"
    return SourceError, None


def _meaning_without_state(exc: Exception) -> tuple[type[SourceError], str | None]:
    """The driver's own errors: refused and broken connections, and misuse of the driver."""
    text = str(exc)
    if isinstance(exc, psycopg2.OperationalError):
        # Of several hosts, libpq tries the next one after a broken connection, and stops at one that refuses us. So the
        # last message counts.
        last = text[max(0, text.rfind("connection to server ")) :]
        for pattern, hint in _REFUSED.items():
            if re.search(pattern, last, re.IGNORECASE):
                return PreconditionFailed, hint
        return ConnectionLost, "check that the server runs and can be reached from here"
    # When a walsender ends, libpq has no message: "error with status PGRES_COPY_BOTH and no message ..."
    broken = (
        r"no message from the libpq|closed|connection|EOF detected|could not (receive|send)|SSL |no COPY in progress"
    )
    if isinstance(exc, psycopg2.InterfaceError | psycopg2.DatabaseError) and re.search(broken, text):
        return ConnectionLost, "check the network and the server's log; wal_sender_timeout ends silent sessions"
    return SourceError, None


def _text(error: ServerError) -> str:
    """The server's message. Its detail is added only if it is about the server: other details may contain rows of
    users."""
    text = error.text
    if error.state[:2] in {"08", "28", "53", "55", "57", "42"} and error.detail:
        text = f"{text} ({error.detail})"
    return re.sub(r"\s+", " ", re.sub(r"\b(FATAL|ERROR|PANIC): +", "", text)).strip()


def _scrub(text: str, secrets: Iterable[str]) -> str:
    text = without_secrets(text, secrets)
    text = re.sub(r"(?i)\b(\w*password|secret)(\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", r"\1\2***", text)
    return re.sub(r"(postgres(?:ql)?://[^\s:/@]*):[^\s@]*@", r"\1:***@", text)
