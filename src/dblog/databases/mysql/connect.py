"""Connections to MySQL and MariaDB: the `url` option, the settings of every session, and the translation of errors.

The driver is PyMySQL. It does the handshake, authentication, TLS and the statements of the control side; the log and
the chunks are read from the connection's socket by our own code.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from weakref import WeakKeyDictionary

import pymysql.connections
import pymysql.err

from dblog.core.masking import without_secrets
from dblog.databases.mysql.flavor import MYSQL, Flavor, flavor_of
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


class Connection(pymysql.connections.Connection):  # type: ignore[misc]  # the driver has no types
    """A session. Without certificate options it checks no certificates.

    The driver would still load the system's trusted certificates for each session, which takes longer than the rest of
    the connection."""

    def _create_ssl_ctx(self, given: ssl.SSLContext | dict[str, Any]) -> ssl.SSLContext:
        return given if isinstance(given, ssl.SSLContext) else _trusting()


SESSION = {
    "time_zone": "'+00:00'",
    # No mode that changes what a select returns (PAD_CHAR_TO_FULL_LENGTH) or how our statements are read (ANSI_QUOTES).
    "sql_mode": "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "sql_select_limit": "18446744073709551615",
}
"""Settings of every session, so that a dump row and a log row give the same text for the same value."""
CONNECT_SECONDS = 10
"""How long a connection may take to open, in seconds, unless `connect_timeout` in the URL says otherwise."""
PORT = 3306
"""The default port."""

SCHEMES = ("mysql", "mariadb")
SSL_MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
_WITHOUT_FILES = ("DISABLED", "PREFERRED")
"""Modes that check no certificate: `ssl_ca` and `ssl_cert` would have no effect."""
PARAMETERS = ("connect_timeout", "socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_mode")

_ENCODE = "percent-encode special characters in names and passwords, e.g. %40 for '@', %2F for '/', %25 for '%'"


@dataclass(frozen=True, repr=False)
class Address:
    """Where a server is and how to log in. `str` and `repr` do not show the password."""

    scheme: str
    host: str
    port: int
    user: str
    password: str
    database: str
    """The default database; may be empty."""
    parameters: tuple[tuple[str, str], ...] = ()

    def get(self, name: str, default: str = "") -> str:
        return dict(self.parameters).get(name, default)

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.password,) if self.password else ()

    @property
    def endpoint(self) -> tuple[str, str, str]:
        return self.host, str(self.port), self.database

    @property
    def ssl_mode(self) -> str:
        """The mode in the URL. Without it, `ssl_ca` implies VERIFY_CA and `ssl_cert` implies REQUIRED."""
        usual = "VERIFY_CA" if self.get("ssl_ca") else "REQUIRED" if self.get("ssl_cert") else "PREFERRED"
        return self.get("ssl_mode", usual).upper()

    @cached_property
    def masked(self) -> str:
        """The address as a URL in which the password is `***`."""
        login = quote(self.user, safe="") + (":***" if self.password else "")
        host = f"[{self.host}]" if ":" in self.host else quote(self.host)
        query = "&".join(f"{name}={quote(value, safe='/')}" for name, value in self.parameters)
        authority = (f"{login}@" if login else "") + host + (f":{self.port}" if self.port != PORT else "")
        return f"{self.scheme}://{authority}/{quote(self.database, safe='')}" + (f"?{query}" if query else "")

    def __str__(self) -> str:
        return self.masked

    def __repr__(self) -> str:
        return f"Address({self.masked!r})"


def parse(url: str) -> Address:
    """Read a `mysql://` or `mariadb://` URL. Raises ConfigError."""
    scheme, separator, rest = url.partition("://")
    if scheme not in SCHEMES or not separator:
        raise ConfigError(
            "option 'url' is not a URL of MySQL or MariaDB: it must start with 'mysql://' or 'mariadb://'",
            hint="write it as mysql://user:password@host:3306/database?ssl_mode=REQUIRED",
        )
    authority, _, query = rest.partition("?")
    if "@" in authority.partition("/")[2] or "@" in query:  # a part of the password would be parsed as something else
        raise ConfigError("option 'url' has an '@' after the first '/' of its address", hint=_ENCODE)
    if re.search(r"%(?![0-9A-Fa-f]{2})", url) or "#" in url:
        raise ConfigError("option 'url' cannot be parsed", hint=_ENCODE)
    try:
        parts = urlsplit(url)
        host, user, password = parts.hostname or "", parts.username or "", parts.password or ""
        given = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:  # its message may quote a piece of the password
        raise ConfigError("option 'url' cannot be parsed", hint=_ENCODE) from None
    found = Address(
        scheme,
        unquote(host),
        _port(parts.netloc.rpartition("@")[2]),
        unquote(user),
        unquote(password),
        unquote(parts.path.removeprefix("/")),
        tuple(sorted(given)),
    )
    _validate(found)
    return found


def _port(authority: str) -> int:
    text = re.sub(r"^(\[.*\]|[^:]*)", "", authority).removeprefix(":")
    if not text:
        return PORT
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        # not echoed: a '/' in an unencoded password puts a piece of the password here
        raise ConfigError("option 'url' has a port that is not a number from 1 to 65535", hint=_ENCODE)
    return int(text)


def _validate(found: Address) -> None:
    names = [name for name, _ in found.parameters]
    for name in names:
        known = f"the parameters are {', '.join(PARAMETERS)}"
        if name not in PARAMETERS:
            raise ConfigError(f"option 'url' has an unknown parameter: {name!r}", hint=known)
        if names.count(name) > 1:
            raise ConfigError(f"option 'url' has parameter {name!r} twice", hint=known)
    if not found.host and not found.get("socket"):
        raise ConfigError("option 'url' has no host", hint="write it as mysql://user:password@host:3306/database")
    if "," in found.host:
        raise ConfigError("option 'url' has several hosts", hint="name one: log positions belong to one server")
    if not found.user:
        raise ConfigError("option 'url' has no user", hint="write it as mysql://user:password@host:3306/database")
    if found.ssl_mode not in SSL_MODES:
        raise ConfigError(
            f"option 'url' has ssl_mode={found.get('ssl_mode')!r}, which is not one of {', '.join(SSL_MODES)}",
            hint="correct ssl_mode in the URL",
        )
    if found.ssl_mode.startswith("VERIFY") and not found.get("ssl_ca"):
        raise ConfigError(
            f"option 'url' has ssl_mode={found.ssl_mode} without ssl_ca", hint="set ssl_ca to the authority's file"
        )
    if found.ssl_mode in _WITHOUT_FILES and (found.get("ssl_ca") or found.get("ssl_cert")):
        raise ConfigError(
            f"option 'url' has ssl_mode={found.ssl_mode}, which does not use ssl_ca and ssl_cert",
            hint="set ssl_mode to REQUIRED, VERIFY_CA or VERIFY_IDENTITY, or leave out the files",
        )
    if found.get("ssl_key") and not found.get("ssl_cert"):
        raise ConfigError("option 'url' has ssl_key without ssl_cert", hint="set ssl_cert to the certificate's file")
    timeout = found.get("connect_timeout", "1")
    if not re.fullmatch(r"[1-9][0-9]{0,4}", timeout):
        raise ConfigError(f"option 'url' has connect_timeout={timeout!r}", hint="give a whole number of seconds")


def connect(
    url: str | Address, *, program: str = "dblog", client_flag: int = 0, patience: float | None = None
) -> Connection:
    """Open a session with our settings, in which every statement commits by itself. `client_flag` has capabilities that
    the server may use beside the driver's. `patience` limits how long a call waits for the server, in seconds. Raises
    SourceError."""
    address = parse(url) if isinstance(url, str) else url
    options: dict[str, Any] = {"unix_socket": address.get("socket")} if address.get("socket") else {}
    with translating(f"connecting to {address.masked}", secrets=address.secrets):
        if address.ssl_mode == "DISABLED" or address.get("socket"):
            options["ssl_disabled"] = True
        elif address.ssl_mode != "PREFERRED":  # which is what the driver does by itself
            options["ssl"] = _encryption(address)
        return Connection(
            host=address.host or None,
            port=address.port,
            user=address.user,
            password=address.password.encode(),
            database=address.database or None,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=int(address.get("connect_timeout", str(CONNECT_SECONDS))),
            init_command="set session " + ", ".join(f"{name} = {value}" for name, value in SESSION.items()),
            program_name=program,
            client_flag=client_flag,
            read_timeout=patience,
            write_timeout=patience,
            **options,
        )


def _trusting() -> ssl.SSLContext:
    """TLS that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _encryption(address: Address) -> ssl.SSLContext:
    context = _trusting()
    if address.ssl_mode.startswith("VERIFY"):
        context.verify_mode = ssl.CERT_REQUIRED
        context.check_hostname = address.ssl_mode == "VERIFY_IDENTITY"
    files = {name: address.get(name) for name in ("ssl_ca", "ssl_cert", "ssl_key")}
    try:
        if files["ssl_ca"]:
            context.load_verify_locations(files["ssl_ca"])
        if files["ssl_cert"]:
            context.load_cert_chain(files["ssl_cert"], files["ssl_key"] or None)
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(f"{name}={value!r}" for name, value in files.items() if value)
        raise ConfigError(f"option 'url' names files for TLS that cannot be read ({named}): {error}") from error
    return context


@dataclass(frozen=True)
class Server:
    """The kind and version of a server."""

    flavor: Flavor
    version: tuple[int, int, int]

    @property
    def log_status(self) -> str:
        """The statement that returns the end of the log."""
        renamed = self.flavor is MYSQL and self.version >= (8, 2, 0)
        return "show binary log status" if renamed else "show master status"


_SERVERS: WeakKeyDictionary[Connection, Server] = WeakKeyDictionary()


def server(connection: Connection) -> Server:
    """The server's kind and version, by a query: in the handshake a proxy or an old MariaDB may report another
    version."""
    if connection not in _SERVERS:
        with translating("asking for the version"), connection.cursor() as cursor:
            cursor.execute("select version()")
            _SERVERS[connection] = read_version(cursor.fetchone()[0])
    return _SERVERS[connection]


def read_version(text: str) -> Server:
    """The kind and version in the server's `version()`, like "10.11.6-MariaDB-0+deb12u1-log" or "8.4.0"."""
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    if numbers is None:
        raise PreconditionFailed(f"the server's version cannot be parsed: {text!r}")
    major, minor, patch = map(int, numbers.groups())
    return Server(flavor_of(text), (major, minor, patch))


def identifier(*names: str) -> str:
    """Names quoted and joined with dots."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


class ServerError(Exception):
    """An error packet that our own code received, where the driver does not read."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.number = number
        self.text = text


@contextmanager
def translating(doing: str, *, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Raise the driver's errors of the body as ours. `doing` is a phrase like "reading shop.orders"."""
    try:
        yield
    except (pymysql.err.MySQLError, ServerError, OSError) as exc:
        secrets = tuple(secrets)
        leaks = any(secret in str(exc) for secret in secrets)
        raise translate(exc, doing, secrets=secrets) from (None if leaks else exc)


_CHECK_TLS = "check ssl_mode, ssl_ca, ssl_cert and ssl_key in the URL, and that the server offers TLS"
_LOST = {1053, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 3169, 4031}
_LOGIN = {1045, 1130, 1129, 1251, 1275, 1524, 1698, 1820, 1862, 2054, 2059, 2061, 3118, 3955, 4151}
RIGHTS = {1044, 1142, 1143, 1211, 1227, 1370, 3530}
_LIMITS = {1040, 1203, 1226}
_READ_ONLY = {1290, 1792, 1836}
GONE = {1051, 1054, 1072, 1109, 1146, 1412, 1932}
_RESOURCES = {1021, 1037, 1038, 1041, 1114, 3019, 1030}
_CANCELLED = {1317, 1969, 3024}

# The server answers every problem with a log position with error 1236, so its text decides. It is English on every
# server.
_SAME_READER = r"same server_uuid/server_id|same server.id"
_NO_LOG = r"binary log is not open|server id was not set|not configured"


def translate(exc: Exception, doing: str, *, secrets: Iterable[str] = ()) -> DBLogError:
    """Translate an error of the server or the driver into one of ours, by its number. Its text has no secrets."""
    number, text = _read(exc)
    kind, hint = _meaning_of_tls(exc) or _meaning(number, text)
    shown = f" ({number})" if number else ""
    return kind(f"{doing} failed: {_scrub(text, secrets)}{shown}", hint=hint)


def _read(exc: Exception) -> tuple[int, str]:
    if isinstance(exc, OSError):
        return 2013, str(exc) or type(exc).__name__
    number, text = (*exc.args, "", "")[:2]
    if not isinstance(number, int):
        return 0, str(exc) or type(exc).__name__
    # The driver's InterfaceError(0, "") means that the connection is closed.
    return (number, str(text)) if number or text else (2006, "the connection is closed")


def _meaning_of_tls(exc: Exception) -> tuple[type[SourceError], str] | None:
    cause = getattr(exc, "original_exception", exc)
    if isinstance(cause, ssl.SSLCertVerificationError) or (
        isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    ):
        return PreconditionFailed, _CHECK_TLS
    return None


def _meaning(number: int, text: str) -> tuple[type[SourceError], str | None]:
    if number == 4052 or (number == 1236 and re.search(_SAME_READER, text, re.I)):
        return PreconditionFailed, "another reader has the same server id: stop it, or set another serverId here"
    if number == 1381 or (number == 1236 and re.search(_NO_LOG, text, re.I)):
        return PreconditionFailed, "set log_bin and server_id and restart the server"
    if number in (1236, 1373, 1220):
        return PositionLost, (
            "the server no longer has this position in its log: start with a new checkpoint and a new dump; unless the "
            "log was reset, raise binlog_expire_logs_seconds (expire_logs_days), which keeps it for longer"
        )
    if number in _LOST:
        return ConnectionLost, "check that the server runs and can be reached from here"
    if number in (2026, 3159):
        return PreconditionFailed, _CHECK_TLS
    if number in _LOGIN:
        return PreconditionFailed, (
            "check user and password in the URL, from which hosts the user may connect, and whether it must use TLS"
        )
    if number in RIGHTS:
        return PreconditionFailed, "grant what is missing; 'dblog check' prints the statements"
    if number == 1049:
        return PreconditionFailed, "check the database's name in the URL"
    if number in _LIMITS:
        return PreconditionFailed, "raise max_connections or the user's limits, or close other sessions"
    if number in _READ_ONLY:
        return PreconditionFailed, "this is a replica or a read-only server: connect to the primary"
    if number in (1205, 1213, 3572):
        return TableLocked, "another session holds a lock (see SHOW PROCESSLIST); dblog tries again"
    if number in GONE:
        return SchemaChanged, "the table was dropped, renamed or altered: restart the query to use its new schema"
    if number in _RESOURCES:
        return SourceError, "the server has no disk space or memory left: free some there"
    if number in _CANCELLED:
        return SourceError, "a time-out or an operator cancelled the statement: see max_statement_time"
    return SourceError, None


def _scrub(text: str, secrets: Iterable[str]) -> str:
    text = without_secrets(text, secrets)
    text = re.sub(r"(?i)\b(\w*password|secret)(\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", r"\1\2***", text)
    return re.sub(r"((?:mysql|mariadb)://[^\s:/@]*):[^\s@]*@", r"\1:***@", text)
