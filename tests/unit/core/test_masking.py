"""Secrets are masked where they stand, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import psycopg2
import pymysql.err
import pytest

from dblog.core.masking import without_secrets
from dblog.databases.mysql import connect as mysql
from dblog.databases.postgres import connect as postgres
from dblog.pipelines.secrets import hiding
from dblog.sinks.kafka_topics import failure


@pytest.mark.parametrize(
    ("text", "secret", "shown"),
    [
        ("check user and password", "d", "check user and password"),
        ("the server is away", "a", "the server is away"),
        ("a post to the postgres server", "post", "a *** to the postgres server"),
        ("password 'd' is wrong", "d", "password '***' is wrong"),
        ("postgresql://me:d@db/shop?sslmode=disable", "d", "postgresql://me:***@db/shop?sslmode=disable"),
        ("user=me password=d host=db", "d", "user=me password=*** host=db"),
        ("line\\nd is wrong", "d", "line\\n*** is wrong"),
        ("me:p@ss@db and me:p%40ss@db", "p@ss", "me:***@db and me:***@db"),
        ("at /p%2Bq?x=p%2Bq and p+q", "p+q", "at /***?x=*** and ***"),
        ("x=my+own", "my own", "x=***"),
        ("{'key': 'it\\'s'}", "it's", "{'key': '***'}"),
        ('{"key": "a\\"b"}', 'a"b', '{"key": "***"}'),
        ("long ones inside of_correct-horse1 too", "correct-horse", "long ones inside of_***1 too"),
        ("nothing", "", "nothing"),
        ("ä is not än", "ä", "*** is not än"),
    ],
)
def test_a_secret_is_masked_where_it_stands(text: str, secret: str, shown: str) -> None:
    assert without_secrets(text, [secret]) == shown


def test_the_password_of_a_url_is_masked_without_the_url_too() -> None:
    url = "mysql://me:s%3Dt@db/shop"
    assert without_secrets(f"cannot open {url}", [url]) == "cannot open ***"
    assert without_secrets("login 's=t' refused, s%3Dt too; db and me are shown", [url]) == (
        "login '***' refused, *** too; db and me are shown"
    )


def test_a_secret_inside_another_does_not_uncover_it() -> None:
    assert without_secrets("key tiger-lily, cat tiger", ["tiger", "tiger-lily"]) == "key ***, cat ***"


def test_the_mask_itself_is_not_masked_again() -> None:
    assert without_secrets("pass * and longer-secret", ["longer-secret", "*"]) == "pass *** and ***"


@pytest.mark.parametrize(
    "shown",
    [
        hiding(["d"]),
        lambda text: str(postgres.translate(psycopg2.OperationalError(text), "connecting", secrets=["d"])),
        lambda text: str(mysql.translate(pymysql.err.OperationalError(1045, text), "connecting", secrets=["d"])),
        lambda text: str(failure(Exception(f"org.apache.kafka.common.errors.SaslError: {text}"), ["d"])),
    ],
    ids=["pipeline", "postgres", "mysql", "kafka"],
)
def test_every_place_that_masks_does_it_so(shown: Callable[[str], str]) -> None:
    text = shown("the password 'd' of user and is denied")
    assert "the password '***' of user and is denied" in text
