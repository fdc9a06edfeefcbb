"""Binary COPY stores the same values as COPY from text, and refuses what that refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dblog.errors import SinkError
from dblog.sinks.sql.postgres import PostgresTarget, copy_binary, target
from dblog.sinks.sql.target import Session
from dblog.sinks.sql.text import Refused
from dblog.testing.postgres_server import PostgresServer
from tests.conftest import Database
from tests.sinks.sql_targets import fresh_name

pytestmark = [pytest.mark.server]

INT64, INT32 = 2**63, 2**31
NAIVE, MOMENT = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
YEAR_44_BC, YEAR_294246 = -63_531_345_599_999_999, 9_223_339_708_799_999_999
UUIDS = [
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "A0EEBC99-9c0b-4ef8-bb6d-6bb9bd380a11",
]
DECIMALS = [
    (9, 0, ["0", "-1", "999999999", "10000", "-90000"]),
    (18, 4, ["0", "0.0001", "-0.0001", "12345678901234.5678", "-99999999999999.9999", "10000", "0.1000"]),
    (18, 18, ["0.000000000000000001", "-0.999999999999999999", "0"]),
    (12, 5, ["1.00001", "-1234567.89012", "0.10000"]),
    (38, 0, ["9" * 38, "-" + "9" * 38, "0", str(2**64), str(-(2**64)), str(2**63), str(2**32)]),
    (38, 10, ["1E-10", "-1E-10", "9" * 28 + "." + "9" * 10, "-" + "9" * 28 + "." + "9" * 10, "0", "1"]),
    (20, 3, ["-18446744073709551.615", "12345678901234567.891"]),
]  # fmt: skip
COLUMNS: list[tuple[str, pa.DataType, list[Any]]] = [
    ("boolean", pa.bool_(), [True, False]),
    ("smallint", pa.int8(), [-128, 127, 0]),
    ("smallint", pa.int16(), [-(2**15), 2**15 - 1]),
    ("integer", pa.int32(), [-INT32, INT32 - 1, 0]),
    ("bigint", pa.int32(), [-INT32, INT32 - 1, 0]),
    ("bigint", pa.int64(), [-INT64, INT64 - 1, 0]),
    ("real", pa.float32(), [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.1, 3.4028234663852886e38, 1e-45]),
    ("double precision", pa.float64(), [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 0.1, 1.7e308, 5e-324]),
    ("double precision", pa.float32(), [0.1]),
    ("date", pa.date32(), [-INT32, INT32 - 1, 0, -735_617, 2_932_897, -719_163, 100_000_000]),
    ("timestamp without time zone", NAIVE, [-INT64, INT64 - 1, 0, -1, YEAR_44_BC, YEAR_294246]),
    ("timestamp with time zone", MOMENT, [-INT64, INT64 - 1, 0, -1, YEAR_44_BC, YEAR_294246]),
    ("timestamp(3) without time zone", NAIVE, [1_999_500, 1_999_499, -INT64]),
    ("text", pa.string(), ["", "é\t\n\r\\N\\", "a'b", "x" * 100_000]),
    ("character varying(5)", pa.string(), ["", "abcde", "abc  "]),
    ("character(5)", pa.string(), ["", "abc", "abcde"]),
    ("json", pa.string(), ['{"a": 1, "a": 2}', "null"]),
    ("jsonb", pa.string(), ['{"b": 1.50, "a": [1, null]}', "null", '"é"']),
    ("uuid", pa.string(), UUIDS),
    ("uuid", pa.string(), ["{a0eebc999c0b4ef8bb6d6bb9bd380a11}"]),
    ("bytea", pa.binary(), [b"", b"\0\xff\\x", bytes(range(256))]),
    ("text[]", pa.list_(pa.string()), [["a", None, 'q"\\'], [], ["NULL"]]),
    ("inet", pa.string(), ["10.0.0.1/8"]),
    ("numeric", pa.string(), ["NaN", "Infinity", "1e100"]),
    *((f"numeric({p},{s})", pa.decimal128(p, s), [Decimal(v) for v in values]) for p, s, values in DECIMALS),
    ("numeric(18,2)", pa.decimal128(18, 4), [Decimal("1.0050"), Decimal("-2.9950")]),
]  # fmt: skip


@pytest.fixture(scope="module")
def session(servers: dict[str, PostgresServer]) -> Iterator[Session]:
    made = Database(servers["pg18"].start(), fresh_name())
    made.create()
    found = PostgresTarget(made.server.url(made.name)).connect()
    yield found
    found.close()
    made.drop()


def stored(session: Session, kind: str, rows: pa.RecordBatch) -> list[str | None]:
    session.run(f"drop table if exists public.t; create table public.t (n int, v {kind})")
    session.target.insert(session, "public.t", rows, {"n": "integer", "v": kind})
    return [text for (text,) in session.run("select v::text from public.t order by n")]


@pytest.mark.parametrize(("kind", "arrow", "values"), COLUMNS, ids=lambda v: str(v)[:30])
@pytest.mark.parametrize("shape", ["all", "null", "sliced"])
def test_a_value_is_the_same_from_both_forms(
    session: Session, monkeypatch: pytest.MonkeyPatch, kind: str, arrow: pa.DataType, values: list[Any], shape: str
) -> None:
    given = values if shape == "all" else [None, *values, None]
    column = pa.array(given, arrow)
    column = column.slice(1, len(values)) if shape == "sliced" else column
    rows = pa.record_batch([pa.array(range(len(column)), pa.int32()), column], names=["n", "v"])
    binary = stored(session, kind, rows)
    monkeypatch.setattr(target, "encoded", lambda *_: None)
    assert stored(session, kind, rows) == binary


KNOWN = {
    "boolean",
    "smallint",
    "integer",
    "bigint",
    "real",
    "double precision",
    "date",
    "text",
    "json",
    "jsonb",
    "bytea",
}


def test_the_usual_types_are_written_in_binary() -> None:
    for kind, arrow, values in COLUMNS:
        rows = pa.record_batch([pa.array([values[0]], arrow)], names=["v"])
        odd = (kind, arrow) in (("double precision", pa.float32()),) or values[
            0
        ] == "{a0eebc999c0b4ef8bb6d6bb9bd380a11}"
        usual = kind in KNOWN or kind.startswith(("timestamp", "character", "uuid")) or pa.types.is_decimal(arrow)
        assert (copy_binary.encoded(rows, {"v": kind}) is not None) == (usual and not odd), (kind, arrow)


def test_random_decimals(session: Session) -> None:
    chance = random.Random(7)
    for precision, scale in [(18, 3), (19, 3), (38, 37), (38, 1), (5, 5), (30, 12)]:
        numbers = [chance.randrange(-(10**precision) + 1, 10 ** chance.randrange(1, precision + 1)) for _ in range(300)]
        column = pa.array([Decimal(n).scaleb(-scale) for n in numbers], pa.decimal128(precision, scale))
        rows = pa.record_batch([pa.array(range(300), pa.int32()), column], names=["n", "v"])
        found = stored(session, f"numeric({precision},{scale})", rows)
        assert [Decimal(v or "NaN") for v in found] == column.to_pylist()


@pytest.mark.parametrize(
    ("kind", "arrow", "values", "why"),
    [
        ("character varying(3)", pa.string(), ["abc", "abcd"], "too long"),
        ("jsonb", pa.string(), ["1", "{"], "invalid input syntax"),
        ("numeric(4,2)", pa.decimal128(9, 2), [Decimal(1), Decimal(1000)], "overflow"),
        ("text", pa.string(), ["a", "a\0b"], "the character 0"),
        ("date", pa.date32(), [0, -5_000_000], "out of range"),
        ("integer", pa.int64(), [0, 2**31], "out of range"),
    ],
)
def test_a_value_that_does_not_fit_is_named(
    session: Session, kind: str, arrow: pa.DataType, values: list[Any], why: str
) -> None:
    rows = pa.record_batch([pa.array([1, 2], pa.int32()), pa.array(values, arrow)], names=["n", "v"])
    with pytest.raises(Refused, match=why) as refused:
        stored(session, kind, rows)
    assert (refused.value.column, refused.value.row) == ("v", 1)


def test_lists_of_unchanged_columns(session: Session) -> None:
    lists = pa.DictionaryArray.from_arrays(
        pa.array([0, None, 1], pa.int32()), pa.array([["a"], ['b"c', "é,\\"]], pa.list_(pa.string()))
    )
    rows = pa.record_batch([pa.array([0, 1, 2], pa.int32()), lists], names=["n", "v"])
    assert stored(session, "text[]", rows) == ["{a}", None, '{"b\\"c","é,\\\\"}']


def test_an_error_of_the_server_that_is_not_of_a_value_is_a_sink_error(session: Session) -> None:
    rows = pa.record_batch([pa.array([0], pa.int32())], names=["n"])
    with pytest.raises(SinkError, match="missing"):
        session.target.insert(session, "public.missing", rows, {"n": "integer"})
