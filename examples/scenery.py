"""What every example stands on: servers and a Spark of its own, people who write all the time, and the comparison at
the end. What an example is about is not here."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg2
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from dblog.cli.program import FAILED, INTERRUPTED, exit_code, show
from dblog.cli.signals import terminable
from dblog.databases.mysql.connect import connect as connect_mysql
from dblog.demo.board import Board
from dblog.demo.database import MARIADB_SETTINGS, POSTGRES_SETTINGS
from dblog.errors import DBLogError
from dblog.pipelines.config import read_config
from dblog.pipelines.readiness import check_routes
from dblog.pipelines.running import DRAIN_SECONDS, Stream, streams_of
from dblog.spark.failure import cause
from dblog.spark.java import check_java
from dblog.spark.local import local_spark, quiet
from dblog.testing.mysql_server import MySQLServer, find_mariadb
from dblog.testing.postgres_server import PostgresServer

ACTS_PER_SECOND = 50
LOOK_SECONDS = 0.1
PATIENCE_SECONDS = 180.0
"""How long something may take before the example gives up."""

Act = Callable[[Any, random.Random], None]
"""Something that a person does to a database, with a cursor. Each of its statements commits by itself."""
Rows = Mapping[Any, tuple[Any, ...]]
"""Rows by their key."""


@dataclass(frozen=True)
class Database:
    """A database on a server of the example's own."""

    url: str

    def connect(self) -> Any:
        """Every statement commits by itself."""
        if not self.url.startswith("postgresql:"):
            return connect_mysql(self.url, program="example")
        connection = psycopg2.connect(self.url)
        connection.autocommit = True
        return connection

    def run(self, sql: str, rows: Sequence[tuple[Any, ...]] | None = None) -> None:
        """Run a statement, or once for each row."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(sql) if rows is None else cursor.executemany(sql, rows)

    def select(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())


class Person(threading.Thread):
    """Does something to a database again and again, until told to stop."""

    def __init__(self, database: Database, act: Act) -> None:
        super().__init__(daemon=True)
        self.acts = 0
        self.failure: Exception | None = None
        self.enough = threading.Event()
        self._database = database
        self._act = act

    def run(self) -> None:
        chance = random.Random(2020)
        try:
            with closing(self._database.connect()) as connection, connection.cursor() as cursor:
                while not self.enough.wait(1 / ACTS_PER_SECOND):
                    self._act(cursor, chance)
                    self.acts += 1
        except Exception as error:
            self.failure = error


class Scene:
    """One example while it runs. All that it starts ends with `stack`."""

    def __init__(self, stack: ExitStack, console: Console, folder: Path, seconds: float) -> None:
        self.board = Board(console)
        self.folder = folder
        self.seconds = seconds
        """How long people write once the pipelines have begun to deliver."""
        self._stack = stack
        self._streams: list[Stream] = []
        self._queries: list[StreamingQuery] = []
        self._people: list[Person] = []

    @cached_property
    def spark(self) -> SparkSession:
        with self.board.step("Spark is started"):
            return self._stack.enter_context(local_spark(self.folder))

    # -- databases -------------------------------------------------------------------------------------------------

    @cached_property
    def _postgres(self) -> PostgresServer:
        with self.board.step("a PostgreSQL is started"):
            return self._stack.enter_context(PostgresServer(settings=POSTGRES_SETTINGS))

    @cached_property
    def _mariadb(self) -> MySQLServer:
        with self.board.step("a MariaDB is started"):
            return self._stack.enter_context(MySQLServer(find_mariadb(), settings=MARIADB_SETTINGS))

    def postgres(self, name: str) -> Database:
        """A new database."""
        Database(self._postgres.url()).run(f'create database "{name}"')
        return Database(self._postgres.url(name))

    def mariadb(self, name: str) -> Database:
        """A new database."""
        Database(self._mariadb.url()).run(f"create database `{name}`")
        return Database(self._mariadb.url(name))

    # -- what goes on ----------------------------------------------------------------------------------------------

    @contextmanager
    def pipeline(self, file: Path, **environment: str) -> Iterator[None]:
        """`dblog run FILE` within this process: pipelines share a Spark, and leave nothing beside their files."""
        os.environ.update(environment)
        config = replace(read_config(file), folder=self.folder / file.stem, state="off")
        streams = streams_of(config, lambda sink, text: self.board.say(f"   {sink}: {text}"))
        check_routes(streams)
        for stream in streams:
            if (wrong := stream.check()) is not None:
                raise wrong
            stream.start(self.spark, once=False)
        self._streams += streams
        try:
            yield
        finally:
            deadline = time.monotonic() + DRAIN_SECONDS
            for stream in streams:
                stream.take_no_more()
                stream.stop(deadline)
                stream.join(DRAIN_SECONDS)
                self._streams.remove(stream)

    @contextmanager
    def query(self, query: StreamingQuery) -> Iterator[None]:
        """A query of Spark's own, that has been started."""
        self._queries.append(query)
        try:
            yield
        finally:
            query.stop()
            self._queries.remove(query)

    @contextmanager
    def busy(self, *people: tuple[Database, Act]) -> Iterator[Callable[[], int]]:
        """People write. Yields what sends them home: the number of times that they have done something."""
        self._people = [Person(database, act) for database, act in people]
        for person in self._people:
            person.start()
        try:
            yield self._home
        finally:
            self._home()

    def _home(self) -> int:
        for person in self._people:
            person.enough.set()
        for person in self._people:
            person.join()
        self._raise_failures()
        return sum(person.acts for person in self._people)

    def until(self, text: str, reached: Callable[[], Any]) -> None:
        """Wait for something. Raises what went wrong meanwhile."""
        with self.board.step(text):
            if not any(reached() for _ in self._looks()):
                raise DBLogError(f"not reached in {PATIENCE_SECONDS:.0f} s: {text}", hint="--verbose shows more")

    def go_on(self) -> None:
        """Let people write for a while."""
        end = time.monotonic() + self.seconds
        self.until(f"people write for {self.seconds:g} s", lambda: time.monotonic() > end)

    def _raise_failures(self) -> None:
        for failed in (*(s.error for s in self._streams), *(p.failure for p in self._people)):
            if failed is not None:
                raise failed
        for query in self._queries:
            if (failure := query.exception()) is not None:
                raise cause(str(failure)) from failure

    # -- comparing -------------------------------------------------------------------------------------------------

    def suspects(self, text: str, wanted: Callable[[], Rows], found: Callable[[], Rows]) -> set[Any]:
        """Keys whose rows have differed at every look, while both sides change: a row that is only late agrees at some
        look, one that is wrong at none."""
        left = first = differences(wanted(), found())
        with self.board.step(text) as step:
            for _ in self._looks():
                if not left:
                    break
                left = left & differences(wanted(), found())
            step.text = f"{text}: {len(first)} rows were late, {len(left)} are wrong"
        return left

    def settle(self, text: str, wanted: Callable[[], Rows], found: Callable[[], Rows]) -> None:
        """Wait until both sides are the same, but not for ever. The verdict is another one."""
        with self.board.step(text):
            for _ in self._looks():
                if not differences(wanted(), found()):
                    break

    def _looks(self) -> Iterator[None]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            self._raise_failures()
            yield
            time.sleep(LOOK_SECONDS)

    def verdict(self, text: str, different: set[Any]) -> bool:
        """The last line."""
        word, style = ("diverged", "bold red") if different else ("converged", "bold green")
        self.board.say(f"{word}: {text}, {len(different)} differences", style)
        return not different


def differences(wanted: Rows, found: Rows) -> set[Any]:
    """The keys whose rows are not the same."""
    return {key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key)}


def main(example: Callable[[Scene], bool], about: str | None) -> None:
    """Run an example as a program of its own."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long people write (8)")
    parser.add_argument("--verbose", action="store_true", help="let Spark speak, on standard error")
    given = parser.parse_args()
    try:
        check_java()
        with ExitStack() as stack:
            temporary = tempfile.TemporaryDirectory(prefix="dblog-example-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(temporary))
            stack.enter_context(terminable())
            stack.enter_context(nullcontext() if given.verbose else quiet(folder / "stderr"))
            converged = example(Scene(stack, Console(highlight=False), folder, given.seconds))
    except DBLogError as error:
        show(error)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(0 if converged else FAILED)
