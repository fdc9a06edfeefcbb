"""Events: their places in the log, their checksums, and what compressed ones hold."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest

from dblog.databases.mysql.connect import ServerError
from dblog.errors import DecodeError, PositionLost
from dblog.sources.mysql import compressed
from dblog.sources.mysql.binlog import EventReader
from dblog.sources.mysql.events import Events, Type, file_and_byte, position
from dblog.sources.mysql.packets import Packets
from tests.unit.sources.mysql.build import packed
from tests.unit.sources.mysql.log import ARTIFICIAL, Log, event, packets, query_body

Row = tuple[int, bytes, int, int]


def read(reader: EventReader, given: Packets) -> list[Row]:
    """Type, body, begin and end of all events."""
    return [row for events in reader.read(given) for row in rows(events)]


def rows(events: Events) -> list[Row]:
    each = zip(events.kind.tolist(), events.position.tolist(), events.after.tolist(), strict=True)
    return [(kind, events.body(n), begin, end) for n, (kind, begin, end) in enumerate(each)]


def test_a_position_is_the_number_of_a_file_and_a_place_in_it() -> None:
    assert file_and_byte(position(12, 345)) == (12, 345)
    assert position(1, 2**40 - 1) < position(2, 4)
    assert file_and_byte(position(3, 0)) == (3, 4)  # where the first event lies


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("place", [4, 500, 2**32 - 60])
def test_events_have_the_places_that_they_lie_at(checksum: bool, place: int) -> None:
    log = Log(7, place, checksum=checksum)
    first = log.begin()
    log.add(Type.table_map, b"somebody")
    last = log.commit()
    reader = EventReader(position(7, place))
    found = read(reader, log.packets())
    assert [row[0] for row in found] == [Type.mariadb_gtid, Type.table_map, Type.xid]
    assert found[1][1] == b"somebody"
    assert (found[0][2], found[-1][3]) == (first, last)
    assert [row[2] for row in found[1:]] == [row[3] for row in found[:-1]]
    assert reader.position == last


def test_nothing_depends_on_where_the_packets_are_cut() -> None:
    log = Log()
    for number in range(5):
        log.begin(number)
        log.commit()
    log.enter(2)
    log.begin(9)
    log.commit()
    whole = read(EventReader(0), log.packets())
    reader = EventReader(0)
    assert [row for n in range(len(log.events)) for row in read(reader, log.packets(n, n + 1))] == whole


def test_a_header_without_a_place_is_counted_and_a_wrong_one_is_an_error() -> None:
    log = Log()
    log.begin()
    log.add(Type.table_map, b"x", silent=True)
    end = log.commit()
    assert read(EventReader(0), log.packets())[-1][3] == end
    log.place += 100  # the server has left something out
    log.begin()
    with pytest.raises(DecodeError, match="have a gap"):
        read(EventReader(0), log.packets())


def test_what_the_server_makes_up_takes_no_place() -> None:
    log = Log()
    begin = log.position
    log.events.append(event(163, b"list", flags=ARTIFICIAL))
    log.events.append(event(Type.heartbeat, b"binlog.000001", place=begin))
    assert log.begin() == begin
    reader = EventReader(0)
    assert [row[0] for row in read(reader, log.packets())] == [163, Type.mariadb_gtid]
    assert reader.position == log.position


@pytest.mark.parametrize("made_up", [True, False])
def test_the_log_goes_on_in_the_next_file(made_up: bool) -> None:
    log = Log(9)
    log.begin()
    log.commit()
    if not made_up:  # a server that was stopped writes none
        log.add(Type.rotate, struct.pack("<Q", 4) + b"binlog.000010")
    log.enter(10)
    begin = log.begin()
    found = read(EventReader(position(9, 4)), log.packets())
    assert found[-1][2] == begin > found[-2][3]
    assert file_and_byte(begin)[0] == 10


def test_a_file_number_can_have_more_digits() -> None:
    log = Log(999_999)
    log.enter(1_000_000)
    assert file_and_byte(log.begin())[0] == 1_000_000
    assert read(EventReader(position(999_999, 4)), log.packets())[0][2] == log.position - len(log.events[-1])


def test_a_log_that_was_reset_is_a_lost_position() -> None:
    with pytest.raises(PositionLost, match="continues in file 2 after file 5"):
        read(EventReader(position(5, 4)), Log(2).packets())


def test_a_place_beyond_four_bytes_is_reached_from_the_beginning_of_its_file() -> None:
    log = Log(3)
    log.begin(1)
    wanted = log.commit()
    log.begin(2)
    found = read(EventReader(wanted), log.packets())  # the server was asked for the beginning
    assert [row[2] for row in found] == [wanted]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_damaged_event_is_noticed(at: int) -> None:
    log = Log()
    log.begin()
    log.commit()
    read(EventReader(0), log.packets())
    damaged = bytearray(log.events[at])
    damaged[25] ^= 1
    log.events[at] = bytes(damaged)
    with pytest.raises(DecodeError, match="its checksum is wrong"):
        read(EventReader(0), log.packets())


def test_a_file_without_a_number_is_an_error() -> None:
    log = Log()
    log.events.append(event(Type.rotate, struct.pack("<Q", 4) + b"binlog", flags=ARTIFICIAL, checksum=False))
    with pytest.raises(DecodeError, match="a file whose name has no number"):
        read(EventReader(0), log.packets())


def test_a_size_that_is_not_the_packets_is_an_error() -> None:
    log = Log()
    log.begin()
    log.events[-1] += b"x"
    with pytest.raises(DecodeError, match="the size in its header"):
        read(EventReader(0), log.packets())


@pytest.mark.parametrize(
    ("packet", "number", "text"),
    [
        (b"\xff" + struct.pack("<H", 1236) + b"#HY000Could not find it", 1236, "Could not find it"),
        (b"\xff" + struct.pack("<H", 4052) + b"no state", 4052, "no state"),
        (b"\xfe\0\0\2\0", 2013, "the server has ended the log"),
    ],
)
def test_what_the_server_says_instead_of_an_event(packet: bytes, number: int, text: str) -> None:
    with pytest.raises(ServerError) as failure:
        read(EventReader(0), packets([packet]))
    assert (failure.value.number, failure.value.text) == (number, text)


# --- compressed events ----------------------------------------------------------------------------------------------


def squeezed(body: bytes) -> bytes:
    """As MariaDB does it, with a length of two bytes."""
    return bytes([0x82]) + len(body).to_bytes(2) + zlib.compress(body)


def test_mariadbs_compressed_events_hold_what_others_do() -> None:
    log = Log()
    log.begin()
    head, text = query_body(""), b"CREATE TABLE t (id int)" * 20
    log.add(Type.query_compressed, head + squeezed(text))
    wide = b"\xfc" + struct.pack("<H", 300)
    insert = b"table!\1\0" + wide + b"\xff" * 38
    update = b"table!\1\0" + struct.pack("<H", 5) + b"xyz" + b"\2" + b"\3" * 2
    log.add(166, insert + squeezed(b"rows" * 100))
    log.add(170, update + squeezed(b"more" * 100))
    end = log.commit()
    found = read(EventReader(0), log.packets())
    assert [(kind, body) for kind, body, _, _ in found[1:4]] == [
        (Type.query, head + text),
        (166, insert + b"rows" * 100),
        (170, update + b"more" * 100),
    ]
    assert found[-1][3] == end
    assert [row[2] for row in found[1:]] == [row[3] for row in found[:-1]]


@pytest.mark.parametrize("body", [b"\xf1\4" + b"junk", b"\x81\4" + b"junk"])
def test_a_compression_that_cannot_be_read_is_an_error(body: bytes) -> None:
    log = Log()
    log.begin()
    log.add(166, b"table!\1\0\1\xff" + body)
    with pytest.raises(DecodeError, match="compress"):
        read(EventReader(0), log.packets())


def payload(content: bytes, *, kind: int = 0, size: int | None = None) -> bytes:
    size = len(content) if size is None else size
    held = pa.compress(content, codec="zstd", asbytes=True) if kind == 0 else content
    fields = {2: packed(kind), 3: b"\xfe" + struct.pack("<Q", size), 1: packed(min(len(held), 250))}
    return b"".join(bytes([n]) + packed(len(value)) + value for n, value in fields.items()) + b"\0" + held


def inner(bodies: list[tuple[int, bytes]]) -> bytes:
    return b"".join(event(kind, body, checksum=False) for kind, body in bodies)


@pytest.mark.parametrize("kind", [0, 255])
@pytest.mark.parametrize("limit", [100, 1 << 20])
def test_mysqls_compressed_transaction_is_replaced_by_its_events(
    monkeypatch: pytest.MonkeyPatch, kind: int, limit: int
) -> None:
    monkeypatch.setattr(compressed, "PART_BYTES", limit)  # in parts, and at once
    bodies = [(2, query_body("BEGIN")), *((30, b"%03d" % n * 20) for n in range(50)), (16, bytes(8))]
    log = Log()
    log.mysql_begin()
    begin = log.add(Type.payload, payload(inner(bodies), kind=kind))
    end = log.position
    log.mysql_begin()
    reader = EventReader(0)
    portions = list(reader.read(log.packets()))
    assert (len(portions) > 5) == (limit == 100 and kind == 0)
    found = [row for events in portions for row in rows(events)][1:-1]
    assert [row[:2] for row in found] == bodies
    assert {row[2:] for row in found} == {(begin, end)}
    assert sum(int(np.sum(events.size)) for events in portions) == sum(map(len, log.events[2:]))


@pytest.mark.parametrize("limit", [100, 1 << 20])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (payload(inner([(30, b"x" * 200)]) + b"rest"), "does not end where its last event does"),
        (payload(inner([(30, b"x" * 200)]), size=5000), "bytes instead of 5000"),
        (payload(inner([(30, b"x" * 200)]), kind=7), "unknown compression: 7"),
        (payload(inner([(40, b"x" * 200)])), "an event of type 40"),
        (payload(inner([(30, b"x" * 200)]))[:-9], "cannot be read|bytes instead of"),
        (payload(bytes(200)), "the size in its header"),
    ],
)
def test_a_compressed_transaction_that_is_wrong_is_an_error(
    monkeypatch: pytest.MonkeyPatch, limit: int, body: bytes, message: str
) -> None:
    monkeypatch.setattr(compressed, "PART_BYTES", limit)
    log = Log()
    log.mysql_begin()
    log.add(Type.payload, body)
    with pytest.raises(DecodeError, match=message):
        read(EventReader(0), log.packets())
