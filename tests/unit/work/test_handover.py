"""Work that is handed over in a file of the spool: it comes back as it was, and what is not valid is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog.capture.spool import LogFile, Spool
from dblog.core.offset import Chunk, Extent
from dblog.core.schema import Column, TableName, TableSchema
from dblog.errors import ConfigError, SpoolError
from dblog.work.handover import NO_ROWS, RangeFiles, read_range
from dblog.work.lanes import Work
from dblog.work.rows import Typed
from dblog.work.tasks import Emit, Log, Select, Window

NAME = TableName("public", 'a "t"')
TABLE = TableSchema(NAME, (Column("id", "int", pa.int32()), Column("note", "text", pa.string())), ("id",))
CHUNK = Chunk("c-0", "initial", NAME, Extent(upto=("9", "é\n")), stamp="s", also=("7-ab",))
KEYS = Chunk("c-1", "7-ab", NAME, Extent(keys=(("1",), ("2",)), where="n > 1"), key="id int")


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "spool"))


@pytest.fixture
def window(spool: Spool) -> Window:
    files = [
        LogFile(spool.log_path(f"a-{n}.arrow"), NAME, "v", 3, n, ((5, 0),) * n, 5, 8, 1000, "16384") for n in (0, 1)
    ]
    return Window(5, 2**62, ((files[0],), (files[1],)))


def lanes_of(spool: Spool, name: str) -> list[tuple[Work, ...]]:
    found = read_range(spool, name)
    return [found.lane(number) for number in range(found.size)]


def test_ranges_are_read_as_they_were_written_and_their_file_is_removed(spool: Spool, window: Window) -> None:
    first = [(Log(window, (CHUNK,)), Select(KEYS)), (Emit(window, CHUNK),)]
    with RangeFiles(spool) as files:
        names = files.write([(Typed(TABLE, before=True), first), (NO_ROWS, [(Select(KEYS),)]), (NO_ROWS, [])])
        assert [lanes_of(spool, name) for name in names] == [first, [(Select(KEYS),)], []]
        assert read_range(spool, names[0]).shape == Typed(TABLE, before=True)
        (file,) = Path(spool.uri, "range").iterdir()
        assert file.read_text().count("a-1.arrow") == 1, "a window is written once"
    assert list(Path(spool.uri, "range").iterdir()) == []
    with pytest.raises(SpoolError, match="is missing from the spool"):
        read_range(spool, names[0])


@pytest.mark.parametrize(
    "name", ["", "x", "../x", f"../{'a' * 32}.0", f"{'a' * 32}", f"{'a' * 32}.0/..", f"{'A' * 32}.0"]
)
def test_a_name_that_is_none_is_refused(spool: Spool, name: str) -> None:
    with pytest.raises(ConfigError, match="option 'range' has the value"):
        read_range(spool, name)


def altered(window: Window, spool: Spool, change: Any) -> str:
    """The name of a range whose data was changed."""
    (name,) = RangeFiles(spool).write([(NO_ROWS, [(Log(window, ()), Emit(window, CHUNK))])])
    (path,) = Path(spool.uri, "range").iterdir()
    data = json.loads(path.read_text())
    changed = change(data)
    path.write_text(changed if isinstance(changed, str) else json.dumps(data))
    return name


def put(*path: str | int, value: Any) -> Any:
    """A change of one value of the data."""

    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = value

    return change


FILE = ("windows", 0, 2, 0, 0)
EMIT = ("lanes", 0, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: "",
        lambda data: "[]",
        lambda data: "[" * 100_000,
        lambda data: json.dumps(data)[:-1],
        put("schema", value="AAAA"),
        put("schema", value=7),
        put("before", value="no"),
        put("windows", value=[]),
        put("lanes", value=7),
        put("windows", 0, 1, value="9"),
        put("windows", 0, 1, value=True),
        put("windows", 0, value=[1, 2]),
        put(*FILE, 0, value="../../etc/passwd"),
        put(*FILE, 0, value="/etc/passwd"),
        put(*FILE, 4, value=1.5),
        put(*FILE, 6, value=[[1]]),
        put(*FILE, value=[]),
        put(*FILE, value=None),
        put(*EMIT, 0, value="exec"),
        put(*EMIT, 1, value=9),
        put(*EMIT, 1, value=None),
        put(*EMIT, 2, value=[]),
        put(*EMIT, 2, 0, "id", value="../x"),
        put(*EMIT, 2, 0, "stamp", value="../x"),
        put(*EMIT, 2, 0, "extent", value=None),
        put(*EMIT, 2, 0, "table", value=["public"]),
        put(*EMIT, 2, 0, "dump", value=None),
        put(*EMIT, 2, 0, "more", value=1),
    ],
)
def test_data_that_is_no_range_is_refused(spool: Spool, window: Window, change: Any) -> None:
    name = altered(window, spool, change)
    with pytest.raises(ConfigError, match="option 'range' has the value"):
        lanes_of(spool, name)


def test_a_range_that_the_file_does_not_have_is_refused(spool: Spool) -> None:
    (name,) = RangeFiles(spool).write([(NO_ROWS, [])])
    with pytest.raises(ConfigError, match="the file has 1 ranges"):
        read_range(spool, name.replace(".0", ".1"))
