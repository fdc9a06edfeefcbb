"""Asks an S3-compatible server whether it refuses to replace an object that is put with `If-None-Match: *`.

Some servers do not know the header, and accept both of two such writes. No client of ours can make this request by
itself: delta-rs looks for the object first. So it is made and signed here (AWS' Signature Version 4).
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import urllib.error
import urllib.request
import uuid
from contextlib import suppress
from urllib.parse import quote, urlsplit

from dblog.storage.object_storage import ObjectStorage, s3_uri

SECONDS = 20.0
"""How long an answer is waited for."""


def replaces_objects(storage: ObjectStorage, uri: str) -> bool | None:
    """Whether the server accepts a second object of one name below `uri`, both put only if there is none.

    None if it cannot be told: the server does not answer as expected, or there are no keys in the settings or in the
    environment. AWS itself is not asked: it refuses.
    """
    endpoint = storage.endpoint or os.environ.get("AWS_ENDPOINT_URL")
    keys = _Keys.of(storage)
    if endpoint is None or keys is None:
        return None
    bucket, _, path = s3_uri(uri).removeprefix("s3://").rstrip("/").partition("/")
    name = "/".join(filter(None, (path, f"_dblog_probe_{uuid.uuid4().hex}")))
    address = urlsplit(endpoint)
    style = (address.netloc, f"/{bucket}/{name}") if storage.in_path else (f"{bucket}.{address.netloc}", f"/{name}")
    target = _Target(address.scheme, *style, storage.region or "us-east-1", keys)
    try:
        if target.request("PUT", only_if_absent=True) // 100 != 2:
            return None
        second = target.request("PUT", only_if_absent=True)
    except OSError:
        return None
    finally:
        with suppress(OSError):
            target.request("DELETE")
    return second // 100 == 2 if second // 100 in (2, 4) else None


class _Keys:
    """Credentials that are known to this process."""

    def __init__(self, access: str, secret: str, token: str | None) -> None:
        self.access, self.secret, self.token = access, secret, token

    @staticmethod
    def of(storage: ObjectStorage) -> _Keys | None:
        if storage.access_key is not None and storage.secret_key is not None:
            return _Keys(storage.access_key, storage.secret_key, storage.session_token)
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        access, secret, token = (os.environ.get(name) for name in names)
        return _Keys(access, secret, token) if access and secret else None


class _Target:
    """An object, by the address of its server."""

    def __init__(self, scheme: str, host: str, path: str, region: str, keys: _Keys) -> None:
        self._host, self._path, self._region, self._keys = host, quote(path), region, keys
        self._url = f"{scheme}://{host}{self._path}"

    def request(self, method: str, *, only_if_absent: bool = False) -> int:
        """The status of the answer to a request without content. Raises OSError if there is none."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        headers = {"host": self._host, "x-amz-content-sha256": _hash(""), "x-amz-date": now}
        if only_if_absent:
            headers["if-none-match"] = "*"
        if self._keys.token:
            headers["x-amz-security-token"] = self._keys.token
        headers["authorization"] = self._signature(method, headers, now)
        asked = urllib.request.Request(self._url, data=b"" if method == "PUT" else None, headers=headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            refused.close()
            return refused.code

    def _signature(self, method: str, headers: dict[str, str], now: str) -> str:
        signed = sorted(headers)
        lines = [method, self._path, "", *(f"{name}:{headers[name]}" for name in signed), ""]
        request = "\n".join([*lines, ";".join(signed), _hash("")])
        scope = f"{now[:8]}/{self._region}/s3/aws4_request"
        key = f"AWS4{self._keys.secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        text = "\n".join(["AWS4-HMAC-SHA256", now, scope, _hash(request)])
        found = hmac.digest(key, text.encode(), "sha256").hex()
        credential, names = f"{self._keys.access}/{scope}", ";".join(signed)
        return f"AWS4-HMAC-SHA256 Credential={credential},SignedHeaders={names},Signature={found}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
