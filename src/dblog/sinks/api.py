"""An API that takes requests over HTTP, with patience.

A request that gets no answer, or one that says "not now", is repeated with growing delays, or when the answer says it
may be; after some times the API counts as away. Any other answer is the API's last word on the request.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from urllib.parse import SplitResult, urlsplit

from dblog.errors import ConfigError, SinkError, SinkUnreachable

NOT_NOW = frozenset({408, 425, 429})
"""And all from 500 on: the same request may be taken later."""
NOT_SO = frozenset({401, 403, 404, 405, 407})
"""And all below 400: not the events are wrong but the address or the credentials, for every request."""
FIRST_DELAY, LAST_DELAY = 0.25, 15.0
LONGEST_DELAY = 60.0
"""Where the API says when to come back, it is obeyed up to here."""
LONGEST_ANSWER = 10_000
"""Bytes of an answer that are looked at."""


@dataclass(frozen=True)
class Api:
    """Where to post, and how."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    timeout: float
    retries: int

    @property
    def _address(self) -> SplitResult:
        return urlsplit(self.url)

    @property
    def shown(self) -> str:
        """The address without what may be secret in it."""
        return f"{self._address.scheme}://{self._address.hostname}{self._address.path}"

    def check(self) -> None:
        """Raises ConfigError."""
        try:
            at = self._address
            fine = at.scheme in ("http", "https") and at.hostname and at.port != 0
        except ValueError:
            fine = False
        if not fine or not re.fullmatch(r"[\x21-\x7e]+", self.url):
            raise ConfigError("the setting 'url' is no address of HTTP", hint="write https://host:port/path")
        if at.username is not None or at.password is not None:
            raise ConfigError(f"the address {self.shown!r} has credentials", hint="give them in headers: Authorization")
        for name, value in self.headers.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
                raise ConfigError(f"{name!r} cannot be the name of a header", hint="letters, digits and - are allowed")
            if not re.fullmatch(r"[\t\x20-\x7e\x80-\xff]*", value):
                raise ConfigError(f"the header {name!r} has a value that HTTP cannot carry", hint="use Latin-1 letters")

    def reach(self) -> None:
        """Raises SinkUnreachable when nobody is there."""
        with self.session() as session:
            session.reach()

    def session(self) -> ApiSession:
        return ApiSession(self)

    def connection(self) -> http.client.HTTPConnection:
        at = self._address
        assert at.hostname is not None
        kind = http.client.HTTPSConnection if at.scheme == "https" else http.client.HTTPConnection
        return kind(at.hostname, at.port, timeout=self.timeout)

    @property
    def target(self) -> str:
        path = self._address.path or "/"
        return f"{path}?{self._address.query}" if self._address.query else path

    def headers_with(self, key: str) -> dict[str, str]:
        own = {"content-type": "application/json", "user-agent": "dblog"}
        return {**own, **{name.lower(): value for name, value in self.headers.items()}, "idempotency-key": key}


@dataclass(frozen=True)
class Answer:
    """What the API said."""

    status: int
    reason: str
    text: str
    retry_after: str | None = None

    def __str__(self) -> str:
        return f"{self.status} {self.reason}: {self.text[:200]}" if self.text else f"{self.status} {self.reason}"

    def letter(self, key: str, body: bytes) -> bytes:
        """A line that has the answer and the events that it refuses."""
        head = json.dumps({"key": key, "status": self.status, "reason": self.reason, "answer": self.text})
        return head[:-1].encode() + b',"events":' + body + b"}\n"

    @property
    def not_before(self) -> float:
        """In how many seconds the API wants to be asked again."""
        if self.retry_after is None:
            return 0.0
        if self.retry_after.strip().isdigit():
            return float(self.retry_after)
        try:
            return (parsedate_to_datetime(self.retry_after) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):  # no date, or one without a time zone
            return 0.0


class ApiSession:
    """Requests one after the other, over one connection as long as it holds."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._connection = api.connection()

    def __enter__(self) -> ApiSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def reach(self) -> None:
        try:
            self._connection.connect()
        except OSError as error:
            raise _away(self._api, error) from None

    def post(self, body: bytes, key: str) -> Answer | None:
        """Post until there is a last word: None when it is taken, the answer when it is refused."""
        delay = FIRST_DELAY
        for attempt in range(self._api.retries + 1):
            last = attempt == self._api.retries
            wait = delay
            try:
                answer = self._once(body, key)
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if last or isinstance(error, ssl.SSLCertVerificationError):
                    raise _away(self._api, error) from None
            else:
                if 200 <= answer.status < 300:
                    return None
                if answer.status < 400 or answer.status in NOT_SO:
                    raise SinkError(
                        f"{self._api.shown} does not take requests: {answer}", hint="see the settings url and headers"
                    )
                if answer.status < 500 and answer.status not in NOT_NOW:
                    return answer
                if last:
                    raise SinkUnreachable(f"{self._api.shown} does not take requests now: {answer}")
                wait = min(max(delay, answer.not_before), LONGEST_DELAY)
            time.sleep(wait)
            delay = min(2 * delay, LAST_DELAY)
        raise AssertionError("the last attempt returns or raises")

    def _once(self, body: bytes, key: str) -> Answer:
        self._connection.request("POST", self._api.target, body, self._api.headers_with(key))
        answer = self._connection.getresponse()
        text = answer.read(LONGEST_ANSWER).decode("utf-8", "replace")
        if answer.read(1) or not answer.isclosed():
            self._connection.close()  # there is more that nobody wants to read
        return Answer(answer.status, answer.reason, text, answer.headers.get("Retry-After"))


def _away(api: Api, error: Exception) -> SinkError:
    why = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        return SinkError(
            f"{api.shown} has a certificate that is not trusted: {why}", hint="SSL_CERT_FILE names those that are"
        )
    return SinkUnreachable(f"{api.shown} cannot be reached: {why}", hint="see that it is there")
