"""Credentials in the words of each client. The clients themselves: tests/engine, tests/sinks, tests/cli."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pyarrow.fs as pafs
import pytest

from dblog.core.settings import check_settings
from dblog.errors import ConfigError
from dblog.storage.object_storage import (
    NO_SETTINGS,
    OPTIONS,
    SETTINGS,
    ObjectStorage,
    has_no_rename,
    is_s3,
    refused,
    s3_uri,
)

HERE = ObjectStorage("http://127.0.0.1:9000", "us-east-1", "the-access-key", "the-secret-key")
SECRETS = ("the-access-key", "the-secret-key", "the-session-token")
SPARK_MASKS = re.compile("(?i)secret|password|token|access[.]?key")
"""Spark's default for spark.redaction.regex: the names of settings and options whose values it does not show."""


def test_secrets_are_not_shown() -> None:
    given = ObjectStorage("http://127.0.0.1:9000", None, *SECRETS)
    assert not [secret for secret in SECRETS if secret in repr(given)]
    assert "9000" in repr(given)


def test_spark_masks_each_name_under_which_it_is_given_a_secret() -> None:
    given = ObjectStorage("http://127.0.0.1:9000", None, *SECRETS)
    for values in (given.options(), given.hadoop_settings()):
        hidden = {value for name, value in values.items() if SPARK_MASKS.search(name)}
        assert hidden == set(SECRETS)
    assert {o.name for o in OPTIONS if o.secret} == {"storageAccessKey", "storageSecretKey", "storageSessionToken"}


@pytest.mark.parametrize("given", [NO_SETTINGS, HERE, ObjectStorage(region="eu-west-1", path_style=False)])
def test_options_and_pickles_give_the_same_again(given: ObjectStorage) -> None:
    assert ObjectStorage.of_options(given.options()) == given
    assert ObjectStorage.of_options({name.lower(): value for name, value in given.options().items()}) == given
    assert pickle.loads(pickle.dumps(given)) == given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"access_key": "a"}, "only one of access_key and secret_key"),
        ({"secret_key": "hidden-one"}, "only one of access_key and secret_key"),
        ({"session_token": "hidden-one"}, "session_token and no keys"),
        ({"endpoint": "storage.example:9000"}, "'storage.endpoint' has the value 'storage.example:9000'"),
        ({"endpoint": "https://storage.example/path"}, "without a path"),
    ],
)
def test_settings_that_do_not_fit_are_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        ObjectStorage.of(given)
    assert said in str(wrong.value)
    assert "hidden-one" not in str(wrong.value)


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(ConfigError, match="storagePathStyle"):
        ObjectStorage.of_options({"storagePathStyle": "maybe"})


def test_without_settings_each_client_finds_credentials_itself() -> None:
    assert NO_SETTINGS.options() == NO_SETTINGS.delta_options() == NO_SETTINGS.iceberg_properties() == {}
    assert not any("key" in name or "provider" in name for name in NO_SETTINGS.hadoop_settings())
    values, problems = check_settings("storage", {}, SETTINGS)
    assert (ObjectStorage.of(values), problems) == (NO_SETTINGS, [])


def test_each_client_is_told_in_its_own_words() -> None:
    hadoop, delta, iceberg = HERE.hadoop_settings(), HERE.delta_options(), HERE.iceberg_properties()
    assert hadoop["fs.s3a.endpoint"] == delta["AWS_ENDPOINT_URL"] == iceberg["s3.endpoint"] == HERE.endpoint
    assert (hadoop["fs.s3a.path.style.access"], hadoop["fs.s3a.connection.ssl.enabled"]) == ("true", "false")
    assert hadoop["fs.s3a.aws.credentials.provider"].endswith(".SimpleAWSCredentialsProvider")
    assert (delta["AWS_ALLOW_HTTP"], delta["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"]) == ("true", "false")
    assert iceberg["s3.force-virtual-addressing"] == "false"
    temporary = ObjectStorage(None, "eu-west-1", *SECRETS).hadoop_settings()
    assert temporary["fs.s3a.aws.credentials.provider"].endswith(".TemporaryAWSCredentialsProvider")
    assert "fs.s3a.endpoint" not in temporary


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("s3://bucket/a/b", "bucket/a/b"),
        ("s3a://bucket/a/b/", "bucket/a/b"),
        ("s3n://bucket", "bucket"),
        ("s3://bucket/public.a%2Eb", "bucket/public.a%2Eb"),
        ("s3://bucket/what? why#1 @home", "bucket/what? why#1 @home"),
    ],
)
def test_what_follows_the_scheme_is_taken_as_it_is(uri: str, path: str) -> None:
    """As Hadoop does. Arrow would decode it: two tables would share a folder."""
    files, found = HERE.arrow_filesystem(uri)
    assert (type(files), found) == (pafs.S3FileSystem, path)


def test_the_connections_of_a_client_are_shared() -> None:
    assert HERE.arrow_filesystem("s3://a/b")[0] is HERE.arrow_filesystem("s3a://c/d")[0]


@pytest.mark.parametrize(
    "uri",
    ["s3://a:b@bucket/x?endpoint_override=127.0.0.1:1&scheme=http&region=x", "s3a://bucket/x?region=eu-west-1"],
)
def test_a_uri_with_settings_of_its_own_is_read_by_arrow(uri: str) -> None:
    files, path = HERE.arrow_filesystem(uri)
    assert (type(files), path) == (pafs.S3FileSystem, "bucket/x")
    assert files is not HERE.arrow_filesystem("s3://bucket/x")[0]


def test_other_files_are_as_before(tmp_path: Any) -> None:
    assert HERE.arrow_filesystem(str(tmp_path))[1] == str(tmp_path)
    assert HERE.arrow_filesystem(f"file://{tmp_path}")[1] == str(tmp_path)
    with pytest.raises(ValueError, match="no bucket"):
        HERE.arrow_filesystem("s3:///x")


def test_schemes() -> None:
    assert [u for u in ("s3://b", "s3a://b", "s3n://b", "hdfs://b", "/s3", "gs://b") if is_s3(u)] == [
        "s3://b",
        "s3a://b",
        "s3n://b",
    ]
    assert [u for u in ("s3a://b", "gs://b", "hdfs://b", "/b") if has_no_rename(u)] == ["s3a://b", "gs://b"]
    assert (s3_uri("s3n://b/x"), s3_uri("s3://b/x", "s3a"), s3_uri("/s3")) == ("s3://b/x", "s3a://b/x", "/s3")


def test_a_refusal_is_told_from_a_storage_that_is_away() -> None:
    assert refused(OSError("AWS Error ACCESS_DENIED during HeadBucket operation: No response body."))
    assert not refused(OSError("AWS Error NETWORK_CONNECTION during PutObject operation: curlCode: 7"))
