"""The replication protocol's stream of copy messages, through the libpq that the driver has loaded.

The driver can read this stream itself, but then it also answers the server on its own account: it confirms log that it
believes to be of no interest. What is confirmed is for Spark's checkpoint alone to say, so here every message that
goes to the server is ours.

The functions of libpq are called by `ctypes`, with the driver's own session (`pgconn_ptr`).

The public module `pq` of psycopg 3 has the same functions and needs less CPU time: for a million inserted rows 1.0 s
instead of 1.5 s, in the same time on the clock. But it cannot be used beside psycopg2, because the wheels of both bring
their own OpenSSL. If both were built with the same release of it, as psycopg2-binary 2.9.13 and psycopg-binary 3.3.7
and 3.3.8, their libssl has the same name, but their libcrypto has not. The process then loads one libssl and two
libcrypto, and the libpq that was loaded last works with both. It finds no reason for a TLS error ("no SSL error
reported"), and its open sessions break when another session of the thread fails in TLS.

psycopg 3 cannot replace psycopg2 everywhere at the same speed either. For the chunks of a dump its `pq` needs 0.36 s
for a million rows, and `copy_expert` of psycopg2 0.20 s. Its import takes several times as long, in every executor.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field
from struct import pack, unpack_from

import psycopg2
import psycopg2._psycopg

from dblog.databases.postgres.connect import Connection, ServerError

_DATA, _KEEPALIVE = b"wk"
_HEADER = 25
"""A data message begins with its kind, two positions and a time."""
_EPOCH = 946_684_800
"""2000-01-01, from which PostgreSQL counts."""

# The driver's module depends on its libpq, so that the functions are found through it, wherever the library lies.
# Those that never wait keep Python's lock: to give it back and get it again would cost more than they do.
_quick = ctypes.PyDLL(psycopg2._psycopg.__file__)
_waiting = ctypes.CDLL(psycopg2._psycopg.__file__)

_get = _quick.PQgetCopyData
_get.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int]
_free = _quick.PQfreemem
_free.argtypes = [ctypes.c_void_p]
_free.restype = None
_consume = _waiting.PQconsumeInput
_consume.argtypes = [ctypes.c_void_p]
_put = _waiting.PQputCopyData
_put.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
_flush = _waiting.PQflush
_flush.argtypes = [ctypes.c_void_p]
_result = _waiting.PQgetResult
_result.argtypes = [ctypes.c_void_p]
_result.restype = ctypes.c_void_p
_clear = _quick.PQclear
_clear.argtypes = [ctypes.c_void_p]
_clear.restype = None
_field = _quick.PQresultErrorField
_field.argtypes = [ctypes.c_void_p, ctypes.c_int]
_field.restype = ctypes.c_char_p
_message = _quick.PQerrorMessage
_message.argtypes = [ctypes.c_void_p]
_message.restype = ctypes.c_char_p


@dataclass
class Replication:
    """A session in which START_REPLICATION has been run. Raises ServerError and psycopg2.OperationalError, which
    `translating` knows."""

    connection: Connection
    wal_end: int = 0
    """The server has looked through its log up to here, and has sent what there was for us."""
    heard: float = field(default_factory=time.monotonic)
    """When the server last said anything."""

    def receive(self, messages: list[bytes], most: int) -> int:
        """Append the payloads of the data that is there, up to about `most` bytes; how many bytes."""
        session = self.connection.pgconn_ptr
        place = ctypes.c_void_p()
        at = ctypes.byref(place)
        string_at, append = ctypes.string_at, messages.append
        received, heard, empty = 0, False, False
        while received < most:
            size = _get(session, at, 1)
            if size > 0:
                data = string_at(place, size)
                _free(place)
                heard, empty = True, False
                if data[0] == _DATA:
                    append(data[_HEADER:])
                    received += size - _HEADER
                elif data[0] == _KEEPALIVE:
                    self.wal_end = max(self.wal_end, unpack_from(">Q", data, 1)[0])
            elif size < 0:
                raise self._failure()
            elif empty:
                break
            else:
                if not _consume(session):
                    raise psycopg2.OperationalError(_text(_message(session)))
                empty = True
        if heard:
            self.heard = time.monotonic()
        return received

    def send(self, position: int, *, reply: bool = False) -> None:
        """Confirm the log up to a position; with `reply`, ask for an answer."""
        session = self.connection.pgconn_ptr
        now = int((time.time() - _EPOCH) * 1_000_000)
        message = pack(">cQQQqB", b"r", position, position, position, now, reply)
        if _put(session, message, len(message)) < 0 or _flush(session) < 0:
            raise psycopg2.OperationalError(_text(_message(session)))

    def _failure(self) -> ServerError | psycopg2.OperationalError:
        """Why the stream has ended."""
        session = self.connection.pgconn_ptr
        result = _result(session)
        if result is None:
            return psycopg2.OperationalError(_text(_message(session)) or "the server has ended the stream")
        state, text, detail, function = (_field(result, ord(name)) for name in "CMDR")
        error = ServerError(_text(state), _text(text), _text(detail), _text(function))
        _clear(result)
        return error if error.state else psycopg2.OperationalError(error.text or "the server has ended the stream")


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace").strip()
