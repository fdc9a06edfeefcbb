"""POST requests to an API, with retries.

A request without an answer, or with an answer like 429 or 503, is repeated with growing delays, or after the delay that
the answer asks for. After some attempts the API counts as unreachable. Any other answer is final.
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
"""Statuses, beside all from 500 on, after which the same request is repeated."""
NOT_SO = frozenset({401, 403, 404, 405, 407})
"""Statuses, beside all from 300 to 399, that mean that the URL or the credentials are wrong: never retried."""
FIRST_DELAY, LAST_DELAY = 0.25, 15.0
"""The delay before the first retry, doubled each time, and the longest one, in seconds."""
LONGEST_DELAY = 60.0
"""The longest `Retry-After` that is obeyed, in seconds."""
LONGEST_ANSWER = 10_000
"""How many bytes of an answer are read."""


@dataclass(frozen=True)
class Api:
    """The URL, headers and limits of the requests."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    timeout: float
    retries: int

    @property
    def _address(self) -> SplitResult:
        return urlsplit(self.url)

    @property
    def shown(self) -> str:
        """The URL without the parts that may be secret."""
        return f"{self._address.scheme}://{self._address.hostname}{self._address.path}"

    def check(self) -> None:
        """Raise ConfigError unless URL and headers are valid."""
        try:
            at = self._address
            fine = at.scheme in ("http", "https") and at.hostname and at.port != 0
        except ValueError:
            fine = False
        if not fine or not re.fullmatch(r"[\x21-\x7e]+", self.url):
            raise ConfigError("the setting 'url' is not an HTTP URL", hint="write https://host:port/path")
        if at.username is not None or at.password is not None:
            raise ConfigError(f"the URL {self.shown!r} has credentials", hint="put them into headers: Authorization")
        for name, value in self.headers.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
                raise ConfigError(f"{name!r} is not a valid header name", hint="use letters, digits and -")
            if not re.fullmatch(r"[\t\x20-\x7e\x80-\xff]*", value):
                raise ConfigError(f"the value of header {name!r} is not allowed in HTTP", hint="use Latin-1 letters")

    def reach(self) -> None:
        """Raise SinkUnreachable unless the server accepts a connection."""
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
    """The API's answer to a request."""

    status: int
    reason: str
    text: str
    retry_after: str | None = None

    def __str__(self) -> str:
        return f"{self.status} {self.reason}: {self.text[:200]}" if self.text else f"{self.status} {self.reason}"

    def letter(self, key: str, body: bytes) -> bytes:
        """The dead letter: one line with the answer and the refused events."""
        head = json.dumps({"key": key, "status": self.status, "reason": self.reason, "answer": self.text})
        return head[:-1].encode() + b',"events":' + body + b"}\n"

    @property
    def not_before(self) -> float:
        """The seconds of the answer's `Retry-After`; 0 without one."""
        if self.retry_after is None:
            return 0.0
        if self.retry_after.strip().isdigit():
            return float(self.retry_after)
        try:
            return (parsedate_to_datetime(self.retry_after) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):  # not a date, or a date without a time zone
            return 0.0


class ApiSession:
    """Posts requests one after the other, over one connection until that breaks."""

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
        """Post, with retries, until the answer is final. Returns None if the request is accepted, else the refusing
        answer."""
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
                        f"{self._api.shown} refuses all requests: {answer}", hint="check the settings url and headers"
                    )
                if answer.status < 500 and answer.status not in NOT_NOW:
                    return answer
                if last:
                    raise SinkUnreachable(f"{self._api.shown} does not accept requests now: {answer}")
                wait = min(max(delay, answer.not_before), LONGEST_DELAY)
            time.sleep(wait)
            delay = min(2 * delay, LAST_DELAY)
        raise AssertionError("the last attempt returns or raises")

    def _once(self, body: bytes, key: str) -> Answer:
        self._connection.request("POST", self._api.target, body, self._api.headers_with(key))
        answer = self._connection.getresponse()
        text = answer.read(LONGEST_ANSWER).decode("utf-8", "replace")
        if answer.read(1) or not answer.isclosed():
            self._connection.close()  # the rest of a long answer is not read
        return Answer(answer.status, answer.reason, text, answer.headers.get("Retry-After"))


def _away(api: Api, error: Exception) -> SinkError:
    why = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        return SinkError(
            f"{api.shown} has an untrusted certificate: {why}", hint="name the file of its authority in SSL_CERT_FILE"
        )
    return SinkUnreachable(f"{api.shown} cannot be reached: {why}", hint="check that it runs and that the URL is right")
