"""The URL of a state store in ZooKeeper: `zookeeper://user:password@a:2181,b,c/path?ssl_ca=...`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from dblog.errors import ConfigError

PORT = 2181
"""The default port of a server."""
PARAMETERS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_mode")
SSL_MODES = ("DISABLED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")

_WRITE = "write it as zookeeper://user:password@host:2181,host,host/path; percent-encode special characters"


@dataclass(frozen=True)
class Address:
    """Where the servers are, how to log in, and the path of the store's root node. `str` shows no secret."""

    hosts: tuple[str, ...]
    """Host and port of each server."""
    path: str
    user: str = ""
    password: str = field(default="", repr=False)
    parameters: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str:
        return dict(self.parameters).get(name, "")

    def __str__(self) -> str:
        login = quote(self.user, safe="") + (":***" if self.password else "")
        query = "&".join(f"{name}={quote(value, safe='/')}" for name, value in self.parameters)
        servers = ",".join(self.hosts)
        return f"zookeeper://{login + '@' if login else ''}{servers}{quote(self.path)}" + (f"?{query}" if query else "")

    @property
    def ssl_mode(self) -> str:
        """The mode in the URL. Without it, `ssl_ca` implies VERIFY_IDENTITY and `ssl_cert` implies REQUIRED."""
        usual = "VERIFY_IDENTITY" if self.get("ssl_ca") else "REQUIRED" if self.get("ssl_cert") else "DISABLED"
        return self.get("ssl_mode").upper() or usual

    @property
    def encryption(self) -> dict[str, Any]:
        """The client's arguments for TLS."""
        if self.ssl_mode == "DISABLED":
            return {}
        return {
            "use_ssl": True,
            "verify_certs": self.ssl_mode.startswith("VERIFY"),
            "check_hostname": self.ssl_mode == "VERIFY_IDENTITY",
            "ca": self.get("ssl_ca") or None,
            "certfile": self.get("ssl_cert") or None,
            # a certificate's file may have its key too
            "keyfile": self.get("ssl_key") or self.get("ssl_cert") or None,
        }


def parse(url: str) -> Address:
    """Read the URL. Raises ConfigError, which shows no part that may be a secret."""
    rest, _, query = url.partition("://")[2].partition("?")
    authority, slash, path = rest.partition("/")
    login, _, servers = authority.rpartition("@")
    if re.search(r"%(?![0-9A-Fa-f]{2})", url) or "#" in url or "@" in path or "@" in query:
        raise ConfigError("the state store's URL cannot be parsed", hint=_WRITE)
    user, _, password = (unquote(each) for each in login.partition(":"))
    try:
        given = tuple(sorted(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))))
    except ValueError:
        raise ConfigError("the state store's URL cannot be parsed", hint=_WRITE) from None
    if not servers or not slash or not path.strip("/"):
        raise ConfigError("the state store's URL has no server or no path", hint=_WRITE)
    parts = unquote(path).strip("/").split("/")
    if not all(parts) or {".", "..", "zookeeper"} & set(parts):
        raise ConfigError(f"the state store's URL has the path {path!r}, which ZooKeeper does not allow", hint=_WRITE)
    found = Address(tuple(map(_host, servers.split(","))), "/" + "/".join(parts), user, password, given)
    _validate(found)
    return found


def _host(text: str) -> str:
    host, port = text, str(PORT)
    if named := re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(?::(.*))?", text):
        host, port = named[1], named[2] or port
    if not host or not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
        # not echoed: a '/' or '@' in an unencoded password puts a piece of the password here
        raise ConfigError("the state store's URL has a server that is not HOST or HOST:PORT", hint=_WRITE)
    return f"{host}:{port}"


def _validate(found: Address) -> None:
    for name, _ in found.parameters:
        if name not in PARAMETERS:
            known = f"the parameters are {', '.join(PARAMETERS)}"
            raise ConfigError(f"the state store's URL has an unknown parameter: {name!r}", hint=known)
    if found.ssl_mode not in SSL_MODES:
        allowed = ", ".join(SSL_MODES)
        raise ConfigError(
            f"the state store's URL has ssl_mode={found.get('ssl_mode')!r}, which is not one of {allowed}",
            hint="correct ssl_mode in the URL",
        )
    if bool(found.user) != bool(found.password):
        raise ConfigError("the state store's URL has a user without a password, or the reverse", hint=_WRITE)
    for name in ("ssl_ca", "ssl_cert", "ssl_key"):
        if found.get(name) and not Path(found.get(name)).is_file():
            raise ConfigError(
                f"the state store's URL names a file that does not exist: {name}={found.get(name)!r}",
                hint="copy the file to this machine, or correct the URL",
            )
