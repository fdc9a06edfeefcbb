"""Packets come out of the socket as they went in, however the network cuts them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog.databases.mysql.connect import ServerError
from dblog.errors import DecodeError
from dblog.sources.mysql import packets as module
from dblog.sources.mysql.packets import LONGEST, Receiver

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    near, far = socket.socketpair()
    yield near, far
    near.close()
    far.close()


def wire(payloads: list[bytes], number: int = 1) -> bytes:
    """As a server sends them: a payload of the greatest length, or longer, goes on in further packets."""
    made = []
    for payload in payloads:
        pieces = [payload[at : at + LONGEST] for at in range(0, len(payload) + 1, LONGEST)]
        for piece in pieces:
            made.append(len(piece).to_bytes(3, "little") + bytes([number & 0xFF]) + piece)
            number += 1
    return b"".join(made)


def taken(receiver: Receiver) -> list[bytes]:
    found = receiver.packets
    return [found.data[a:b].tobytes() for a, b in zip(found.start, found.end, strict=True)]


@given(
    st.lists(st.binary(max_size=40), max_size=30),
    st.lists(st.integers(1, 60), max_size=20),
    st.integers(0, 300),
    st.integers(0, 5),
)
def test_packets_survive_any_cut(payloads: list[bytes], cuts: list[int], number: int, keep: int) -> None:
    near, far = socket.socketpair()
    sent, received = wire(payloads, number), []
    with near, far:
        receiver = Receiver(near, number)
        for cut in [*cuts, len(sent)]:
            far.sendall(sent[:cut])
            sent = sent[cut:]
            receiver.receive(0, 1 << 20)
            drop = max(0, len(receiver) - keep)
            received += taken(receiver)[:drop]
            receiver.drop(drop)
            if not sent:
                break
        received += taken(receiver)
    assert received == payloads


@pytest.mark.parametrize("size", [LONGEST - 1, LONGEST, LONGEST + 1, 2 * LONGEST, 2 * LONGEST + 5])
def test_a_long_payload_is_joined_and_its_neighbours_are_left_alone(pair: Pair, size: int) -> None:
    near, far = pair
    long = bytes(range(251)) * (size // 251 + 1)
    payloads = [b"before", long[:size], b"after", b""]
    sender = threading.Thread(target=far.sendall, args=[wire(payloads)])
    sender.start()
    receiver = Receiver(near, 1)
    while len(receiver) < len(payloads):
        assert receiver.receive(10, 1 << 20)
    sender.join()
    assert taken(receiver) == payloads
    receiver.drop(2)
    assert taken(receiver) == payloads[2:]
    assert len(receiver.packets.data) == module.ROOM  # the room that the long one took is given back
    far.sendall(wire([b"next"], 5 + size // LONGEST))
    assert receiver.receive(10, 1 << 20)
    assert taken(receiver) == [b"after", b"", b"next"]


def test_only_so_much_is_taken_at_once_and_the_rest_later(pair: Pair) -> None:
    near, far = pair
    far.sendall(wire([b"x" * 1000] * 30))
    receiver = Receiver(near, 1)
    assert receiver.receive(1, 100) == 100
    while receiver.receive(0, 100):
        pass
    assert taken(receiver) == [b"x" * 1000] * 30


def test_nothing_is_waited_for_longer_than_asked(pair: Pair) -> None:
    receiver = Receiver(pair[0], 1)
    assert receiver.receive(0, 100) == receiver.receive(0.01, 100) == 0
    assert len(receiver) == 0


@pytest.mark.parametrize("number", [1, 3, 9])
def test_a_missing_packet_is_noticed(pair: Pair, number: int) -> None:
    near, far = pair
    far.sendall(wire([b"a"]) + wire([b"b"], number))
    receiver = Receiver(near, 1)
    with pytest.raises(DecodeError, match="a packet of the log is missing"):
        receiver.receive(1, 100)


def test_the_end_of_the_connection_is_an_error(pair: Pair) -> None:
    near, far = pair
    far.sendall(wire([b"last"]) + b"\5")
    receiver = Receiver(near, 1)
    far.close()
    assert receiver.receive(1, 100)  # what it said last comes first
    assert taken(receiver) == [b"last"]
    with pytest.raises(ServerError) as failure:
        receiver.receive(1, 100)
    assert failure.value.number == 2013


def test_bytes_come_together_while_they_are_waited_for_and_a_few_are_not_waited_for_afterwards() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            receiver = Receiver(near, 1)
            sent = wire([b"x" * 1000] * 100)
            far.sendall(sent[:500])
            later = threading.Timer(0.1, far.sendall, [sent[500:]])
            later.start()
            begin = time.monotonic()
            receiver.gather(len(sent), 10.0)
            assert 0.05 < time.monotonic() - begin < 5
            assert receiver.receive(0, 1 << 20) == len(sent)
            later.join()
            begin = time.monotonic()
            receiver.gather(1000, 0.05)
            assert 0.04 < time.monotonic() - begin < 5
            far.sendall(wire([b"y"], 101))
            assert receiver.receive(10.0, 1 << 20) == 5
            assert taken(receiver) == [b"x" * 1000] * 100 + [b"y"]
