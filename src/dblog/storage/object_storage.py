"""One set of credentials for object storage, in the words of each client that uses it.

    arrow_filesystem(uri)  Arrow: the spool, the sinks ndjson and http, what is read of checkpoints
    hadoop_settings()      Hadoop's S3A: Spark's checkpoint, the sink parquet, lakes that Spark writes
    delta_options()        delta-rs: `storage_options`
    iceberg_properties()   pyiceberg: properties of a catalog

`s3://`, `s3a://` and `s3n://` mean the same bucket for all of them. Without keys each client finds credentials as AWS'
own tools do: in the environment, in the user's files, or by asking the machine it runs on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow.fs as pafs

from dblog.core.option_values import OptionValues
from dblog.core.settings import Setting, flag, text
from dblog.errors import ConfigError

CONNECT_SECONDS = 10.0
"""How long Arrow's client waits for a connection. Its own 1 s is too short for a busy machine."""
REQUEST_SECONDS = 60.0
"""How long Arrow's client waits for an answer that does not come. Its own 3 s is too short for a large copy."""

REFUSALS = (
    "ACCESS_DENIED",
    "INVALID_ACCESS_KEY_ID",
    "SIGNATURE_DOES_NOT_MATCH",
    "NO_SUCH_BUCKET",
    "enable the allow_bucket_creation option",
    "UNAUTHORIZED",
    "HTTP status 401",
    "HTTP status 403",
)
"""Words in an error of Arrow's S3 client for which a retry does not help."""

_S3 = re.compile(r"s3[an]?://")
_OBJECTS = re.compile(r"(s3[an]?|gs|gcs)://")
_OWN_SETTINGS = re.compile(r"s3[an]?://([^/]*@|[^?]*\?(endpoint_override|region|scheme)=)")
"""A URI with credentials or settings of its own, as Arrow reads them."""


def is_s3(uri: str) -> bool:
    return _S3.match(uri) is not None


def has_no_rename(uri: str) -> bool:
    """Whether a URI is of an object store. There, to move a folder is to copy its files one by one."""
    return _OBJECTS.match(uri) is not None


def is_on_s3(files: pafs.FileSystem) -> bool:
    """Whether Arrow's file system is that of S3, which not every build of Arrow has."""
    return bool(files.type_name == "s3")


def s3_uri(uri: str, scheme: str = "s3") -> str:
    """A URI with this scheme if it is one of S3, else as it is."""
    return _S3.sub(f"{scheme}://", uri, count=1)


SETTINGS = (
    Setting("endpoint", "the server; without it, AWS", text("an address like https://storage.example:9000"), None),
    Setting("region", "of the buckets", text("a name like eu-central-1"), None),
    Setting("access_key", "the name of the key", text(), None, secret=True),
    Setting("secret_key", "the key", text(), None, secret=True),
    Setting("session_token", "of a temporary key", text(), None, secret=True),
    Setting(
        "path_style",
        "whether the bucket is in the path of requests, not in the name of the host",
        flag(),
        None,
        computed="true with an endpoint",
    ),
    Setting(
        "package",
        "by which Spark gets Hadoop's S3A; none if Spark has it already; without it what fits Spark's Hadoop",
        text("group:artifact:version or none"),
        None,
    ),
)
"""The settings of `[storage]`."""


def option_name(setting: str) -> str:
    """The option of the Spark source for a setting of `[storage]`: `storageAccessKey` for `access_key`. Spark masks
    options whose names have words like secret, token or access key in its plans, its logs and its web pages."""
    return "storage" + "".join(word.title() for word in setting.split("_"))


OPTIONS = tuple(replace(setting, name=option_name(setting.name)) for setting in SETTINGS if setting.name != "package")
"""The same settings as options of the Spark source, which needs no Hadoop."""
_OF_OPTIONS = tuple(setting.name for setting in SETTINGS if setting.name != "package")


@dataclass(frozen=True)
class ObjectStorage:
    """How to reach object storage. `repr` does not show the keys."""

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    path_style: bool | None = None
    package: str | None = None

    @staticmethod
    def of(values: Mapping[str, Any]) -> ObjectStorage:
        """Make it from the values of `SETTINGS`. Raises ConfigError if they do not fit together."""
        found = ObjectStorage(**{setting.name: values.get(setting.name) for setting in SETTINGS})
        if found.endpoint is not None and not re.match(r"https?://[^/]+/?$", found.endpoint):
            raise ConfigError(
                f"setting 'storage.endpoint' has the value {found.endpoint!r}",
                hint="allowed is an address like https://storage.example:9000, without a path",
            )
        if (found.access_key is None) != (found.secret_key is None):
            raise ConfigError(
                "the storage has only one of access_key and secret_key",
                hint="give both; or none, and credentials are found as AWS' own tools find them",
            )
        if found.session_token is not None and found.secret_key is None:
            raise ConfigError("the storage has a session_token and no keys", hint="give access_key and secret_key too")
        return found

    @staticmethod
    def of_options(options: Mapping[str, str]) -> ObjectStorage:
        """Make it from options of the Spark source, in whatever case. Raises ConfigError."""
        values = OptionValues({name.lower(): value for name, value in options.items()}, OPTIONS)
        return ObjectStorage.of({name: values.read(option_name(name)) for name in _OF_OPTIONS})

    def options(self) -> dict[str, str]:
        """The options of the Spark source from which `of_options` makes it again."""
        given = {option_name(name): getattr(self, name) for name in _OF_OPTIONS}
        return {name: _text(value) for name, value in given.items() if value is not None}

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.access_key, self.secret_key, self.session_token)))

    @property
    def in_path(self) -> bool:
        """Whether requests have the bucket in their path."""
        return self.endpoint is not None if self.path_style is None else self.path_style

    @property
    def encrypted(self) -> bool:
        return self.endpoint is None or not self.endpoint.startswith("http://")

    # -- the clients -----------------------------------------------------------------------------------------------

    def arrow_filesystem(self, uri: str, **more: Any) -> tuple[pafs.FileSystem, str]:
        """Arrow's file system of a path or URI, and the path in it. Raises ValueError, OSError."""
        if "://" not in uri:
            return pafs.LocalFileSystem(), uri
        if not is_s3(uri) or _OWN_SETTINGS.match(uri):
            found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(s3_uri(uri))
            return found
        path = s3_uri(uri).removeprefix("s3://").rstrip("/")
        bucket = path.partition("/")[0]
        if not bucket:
            raise ValueError("it names no bucket")
        return _s3_filesystem(self, bucket if self.endpoint is None else "", tuple(sorted(more.items()))), path

    def hadoop_settings(self) -> dict[str, str]:
        """Settings of a Hadoop configuration. All three schemes are served by S3A."""
        provider = "Simple" if self.session_token is None else "Temporary"
        return _given(
            {
                "fs.s3.impl": _S3A,
                "fs.s3n.impl": _S3A,
                "fs.s3a.endpoint": self.endpoint,
                "fs.s3a.endpoint.region": self.region or ("us-east-1" if self.endpoint else None),
                "fs.s3a.access.key": self.access_key,
                "fs.s3a.secret.key": self.secret_key,
                "fs.s3a.session.token": self.session_token,
                "fs.s3a.path.style.access": self.in_path,
                "fs.s3a.connection.ssl.enabled": self.encrypted,
                "fs.s3a.aws.credentials.provider": (
                    None if self.secret_key is None else f"org.apache.hadoop.fs.s3a.{provider}AWSCredentialsProvider"
                ),
            }
        )

    def delta_options(self) -> dict[str, str]:
        """The `storage_options` of delta-rs. It knows the schemes `s3` and `s3a`."""
        return _given(
            {
                "AWS_ENDPOINT_URL": self.endpoint,
                "AWS_REGION": self.region or ("us-east-1" if self.endpoint else None),
                "AWS_ACCESS_KEY_ID": self.access_key,
                "AWS_SECRET_ACCESS_KEY": self.secret_key,
                "AWS_SESSION_TOKEN": self.session_token,
                "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": None if self.endpoint is None else not self.in_path,
                "AWS_ALLOW_HTTP": None if self.encrypted else True,
            }
        )

    def iceberg_properties(self) -> dict[str, str]:
        """The properties of a pyiceberg catalog whose tables are in object storage."""
        return _given(
            {
                "s3.endpoint": self.endpoint,
                "s3.region": self.region or ("us-east-1" if self.endpoint else None),
                "s3.access-key-id": self.access_key,
                "s3.secret-access-key": self.secret_key,
                "s3.session-token": self.session_token,
                "s3.force-virtual-addressing": None if self.endpoint is None else not self.in_path,
            }
        )


NO_SETTINGS = ObjectStorage()
"""AWS, with the credentials that each client finds itself."""
_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"


@lru_cache(maxsize=16)
def _s3_filesystem(storage: ObjectStorage, bucket: str, more: tuple[tuple[str, Any], ...]) -> pafs.S3FileSystem:
    """A client, which keeps its connections. AWS is asked for the bucket's region if none is given."""
    endpoint = (storage.endpoint or "").rstrip("/")
    region = storage.region or ("us-east-1" if endpoint else pafs.resolve_s3_region(bucket))
    if "allow_delayed_open" in (pafs.S3FileSystem.__doc__ or ""):  # older releases of Arrow do not have it
        more = (("allow_delayed_open", True), *more)  # a small file is written by one request instead of three
    return pafs.S3FileSystem(
        access_key=storage.access_key,
        secret_key=storage.secret_key,
        session_token=storage.session_token,
        region=region,
        scheme="https" if storage.encrypted else "http",
        endpoint_override=endpoint.partition("://")[2] or None,
        force_virtual_addressing=not storage.in_path,
        connect_timeout=CONNECT_SECONDS,
        request_timeout=REQUEST_SECONDS,
        **dict(more),
    )


def refused(error: OSError) -> bool:
    """Whether object storage refused a request of Arrow's client, so that a retry does not help."""
    return any(word in str(error) for word in REFUSALS)


def _given(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in values.items() if value is not None}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
