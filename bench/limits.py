"""What the server itself can do: `pg_recvlogical` reads the log and forgets it, COPY writes a table to nowhere."""

from __future__ import annotations

import subprocess
import time

from bench.database import Database


def receive_log(database: Database, slot: str, upto: str) -> float:
    """Seconds that `pg_recvlogical` takes to receive a slot's log up to a position."""
    begin = time.monotonic()
    subprocess.run(
        [
            *(str(database.server.bin / "pg_recvlogical"), "-d", database.url, "--slot", slot, "--start", "--no-loop"),
            *("-o", "proto_version=1", "-o", "publication_names=bench", "--endpos", upto, "-f", "/dev/null"),
        ],
        check=True,
    )
    return time.monotonic() - begin


def copy_out(database: Database, table: str) -> float:
    """Seconds that the server takes to read a table and format its rows."""
    begin = time.monotonic()
    database.run(f"copy (select * from {table}) to '/dev/null' (format binary)")
    return time.monotonic() - begin
