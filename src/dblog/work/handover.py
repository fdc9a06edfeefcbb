"""Ranges: work of a batch that is handed over as data, in a file of the spool.

    range/<file>.jsonl      one range per line
    <file>.<line>           the name of a range

A range is a JSON object: the `schema` of its rows and whether they have a `before`, and the work of each task. Its file
is written once, and the driver and its tasks read it by its name. A user can set the option that names a range, and the
spool, so each name and each value is checked. Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from dblog.capture.spool import LogFile, Spool, schema_from_text, schema_to_text
from dblog.core.checked import from_data, to_data
from dblog.core.offset import Chunk
from dblog.core.schema import TableName, TableSchema
from dblog.errors import ConfigError
from dblog.work.lanes import Work
from dblog.work.rows import Typed
from dblog.work.tasks import Emit, Log, Select, Window

NO_ROWS = Typed(TableSchema(TableName("", ""), (), ()), before=False)
"""The shape of a range without rows."""

_NAME = re.compile(r"([0-9a-f]{32})\.([0-9]{1,6})")
_FILE = re.compile(r"[A-Za-z0-9_-]+\.arrow")
_ID = re.compile(r"[A-Za-z0-9_-]+")
_FILE_TYPES = (str, str, str, str, int, int, list, int, int, int, str, list)
"""The types of the values that `_file_data` returns."""

_ENDS = tuple[tuple[str, str, int], ...]

Lanes = Sequence[tuple[Work, ...]]
"""The work of each task."""


class RangeFiles:
    """The range files that one batch makes. They are removed at the end of the block."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._paths: list[str] = []

    def write(self, ranges: Sequence[tuple[Typed, Lanes]]) -> list[str]:
        """Write ranges; return their names."""
        names, path = write_ranges(self.spool, ranges)
        self._paths.append(path)
        return names

    def __enter__(self) -> RangeFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.spool.remove(self._paths)


def write_ranges(spool: Spool, ranges: Sequence[tuple[Typed, Lanes]]) -> tuple[list[str], str]:
    """Write ranges to one file of the spool; return their names and the path of the file."""
    file, path = spool.write_range_file([_text(shape, lanes) for shape, lanes in ranges])
    return [f"{file}.{number}" for number in range(len(ranges))], path


def read_range(spool: Spool, name: str) -> Range:
    """The range of this name. Raises ConfigError unless the name is one of `write_ranges`."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise _refused(name, "it is not the name of a range")
    lines = spool.read_range_file(found[1])
    if int(found[2]) >= len(lines):
        raise _refused(name, f"the file has {len(lines)} ranges")
    return Range(spool, name, lines[int(found[2])])


class Range:
    """A part of a batch's work, and the shape of its rows. Raises ConfigError if the text is not a valid range."""

    def __init__(self, spool: Spool, name: str, text: str) -> None:
        self._spool = spool
        self._name = name
        with _checking(name):
            data = json.loads(text)
            self.shape = Typed(
                schema_from_text(data["schema"]),
                from_data(bool, data["before"]),
                from_data(bool, data["cascades"]),
            )
            self._windows: list[Any] = data["windows"]
            self._made: dict[int, Window] = {}
            self._lanes: list[Any] = data["lanes"]
            self.size = len(self._lanes)
            """The number of tasks."""

    def lane(self, number: int) -> tuple[Work, ...]:
        """The work of one task."""
        with _checking(self._name):
            return tuple(self._work(*item) for item in self._lanes[number])

    def _work(self, kind: str, window: int | None, chunks: Any) -> Work:
        found = tuple(_chunk(chunk) for chunk in chunks)
        if kind == "log":
            return Log(self._window(window), found)
        (chunk,) = found
        if kind in ("emit", "early"):
            return Emit(self._window(window), chunk, kind == "early")
        if kind == "select":
            return Select(chunk)
        raise ValueError(f"{kind!r} is not a kind of work")

    def _window(self, number: int | None) -> Window:
        """A window. All work of the range that has it gets the same object."""
        at = from_data(int, number)
        if at not in self._made:
            start, end, segments, aside = self._windows[at]
            files = tuple(tuple(map(self._file, segment)) for segment in segments)
            ends = tuple((TableName(schema, name), upto) for schema, name, upto in from_data(_ENDS, aside))
            self._made[at] = Window(from_data(int, start), from_data(int, end), files, ends)
        return self._made[at]

    def _file(self, data: Any) -> LogFile:
        """Read a log file. `from_data` would be too slow: a batch may have thousands of files."""
        if tuple(map(type, data)) != _FILE_TYPES:
            raise ValueError(f"{data!r} is not a log file")
        name, schema, table, version, rows, incomplete, truncates, first, last, size, identity, raw = data
        path = self._spool.log_path(_matching(_FILE, name))
        emptied = from_data(tuple[tuple[int, int], ...], truncates) if truncates else ()
        kept = from_data(tuple[tuple[str, int], ...], raw) if raw else ()
        about = rows, incomplete, emptied, first, last, size, identity, kept
        return LogFile(path, TableName(schema, table), version, *about)


def _text(shape: Typed, lanes: Lanes) -> str:
    """A range as one line of JSON. A window that occurs several times is written once."""
    windows: dict[Window, int] = {}

    def number(window: Window) -> int:
        return windows.setdefault(window, len(windows))

    def item(work: Work) -> list[Any]:
        match work:
            case Log(window=window, chunks=chunks):
                return ["log", number(window), to_data(chunks)]
            case Emit(window=window, chunk=chunk, early=early):
                return ["early" if early else "emit", number(window), [to_data(chunk)]]
            case Select(chunk=chunk):
                return ["select", None, [to_data(chunk)]]

    works = [[item(work) for work in lane] for lane in lanes]
    shown = [
        [w.start, w.end, [[_file_data(f) for f in s] for s in w.segments], [[*table, end] for table, end in w.ends]]
        for w in windows
    ]
    schema = schema_to_text(shape.table)
    told = {"schema": schema, "before": shape.before, "cascades": shape.cascades}
    return json.dumps({**told, "windows": shown, "lanes": works})


def _file_data(f: LogFile) -> list[Any]:
    """A log file as data, with its name in place of its path."""
    name = f.path.rpartition("/")[2]
    return [name, *f.table, f.version, f.rows, f.incomplete, f.truncates, f.first, f.last, f.size, f.identity, f.raw]


def _chunk(data: Any) -> Chunk:
    chunk = from_data(Chunk, data)
    for part in (chunk.id, chunk.stamp):  # they become part of a path
        if part is not None:
            _matching(_ID, part)
    return chunk


def _matching(pattern: re.Pattern[str], text: str) -> str:
    if pattern.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a valid name")
    return text


@contextlib.contextmanager
def _checking(name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise _refused(name, str(error)) from error


def _refused(name: str, why: str) -> ConfigError:
    return ConfigError(
        f"option 'range' has the value {name[:80]!r}: {why[:200]}",
        hint="leave it out: only a pipeline sets it, to pass the work of a batch to its tasks",
    )
