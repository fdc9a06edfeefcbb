"""Foreign keys that act without a record in the log: tables of a lake end as the source's are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dblog.errors import SinkUnreachable
from dblog.sinks.base import APPLIED, Batch, Sink, SinkContext
from dblog.sinks.lake import DeltaSink, IcebergSink
from dblog.sinks.lake.native.delta import DeltaLakeTable
from dblog.sinks.lake.sink import LakeSink
from tests.engine.sink_query import SinkQuery
from tests.engine.test_cascades import HISTORIES, SEEDS, WORLD, change, on_mariadb, run, tables
from tests.families import OnMySQL

pytestmark = pytest.mark.server


class Lake:
    """A lake, and what it has."""

    def __init__(self, database: OnMySQL, folder: Path, kind: type[LakeSink], mode: str) -> None:
        self.database = database
        self.folder = folder
        self.mode = mode
        given = {s.name: s.default for s in kind.settings} | {"path": str(folder / "lake"), "mode": mode}
        self.sink = kind({**given, "maintain": "off"}, SinkContext("test", folder))
        self.sink.check()
        self.sink.open(None)  # type: ignore[arg-type]

    def rows(self, table: str) -> pa.Table:
        if isinstance(self.sink, DeltaSink):
            return deltalake.DeltaTable(str(self.folder / "lake" / f"{self.database.name}.{table}")).to_pyarrow_table()
        native: Any = self.sink._native
        return native._tables._catalog.tables.load_table((self.database.name, table)).scan().to_arrow()


class Lakes(Sink):
    """A query whose batches several lakes get."""

    def __init__(self, database: OnMySQL, folder: Path, lakes: list[Lake], **options: Any) -> None:
        super().__init__({}, SinkContext("test", folder))
        self.lakes = lakes
        self.database = database
        options = {"tables": f"{database.name}.*", "cascades": "follow", "serverId": 7201, **options}
        self.query = SinkQuery(database.url, str(folder / "spool"), self, **options)

    @property
    def cascades(self) -> str:
        assert {lake.sink.cascades for lake in self.lakes} == {APPLIED}
        return APPLIED

    def write(self, batch: Batch) -> None:
        for lake in self.lakes:
            lake.sink.write(batch)

    def close(self) -> None:
        for lake in self.lakes:
            lake.sink.close()

    def agree(self) -> None:
        self.query.catch_up()
        for name in self.query.reader._options.source.tables():
            with self.database.connect().cursor() as cursor:
                cursor.execute(f"select * from {name.name}")
                columns = [column[0] for column in cursor.description]
                source = sorted(_plain(row) for row in cursor.fetchall())
            for lake in self.lakes:
                found = lake.rows(name.name)
                if lake.mode == "history":
                    found = found.filter(pc.is_null(found["valid_to"]))
                rows = [_plain(row.values()) for row in found.select(columns).to_pylist()]
                assert sorted(rows) == source, (name, type(lake.sink), lake.mode)


def _plain(row: Any) -> list[str]:
    return [str(value) for value in row]


MakeLakes = Callable[..., Lakes]


@pytest.fixture
def lakes(database: OnMySQL, tmp_path: Path) -> Iterator[MakeLakes]:
    made: list[Lakes] = []

    def make(*kinds: tuple[type[LakeSink], str], **options: Any) -> Lakes:
        found = []
        for number, (kind, mode) in enumerate(kinds):
            folder = tmp_path / str(number)
            folder.mkdir()
            found.append(Lake(database, folder, kind, mode))
        made.append(Lakes(database, tmp_path, found, **options))
        return made[-1]

    yield make
    for one in made:
        one.query.stop()


ALL = ((DeltaSink, "history"), (DeltaSink, "current"), (IcebergSink, "current"))


@on_mariadb
@pytest.mark.parametrize("together", [True, False], ids=["together", "stepwise"])
@pytest.mark.parametrize("history", HISTORIES)
def test_a_history_with_cascades_ends_alike(database: OnMySQL, lakes: MakeLakes, history: str, together: bool) -> None:
    definitions, steps = HISTORIES[history]
    run(database, definitions)
    copy = lakes(*ALL)
    copy.agree()
    for step in steps:
        run(database, step)
        if not together:
            copy.agree()
    copy.query.wait_captured()
    copy.agree()


@on_mariadb
@pytest.mark.parametrize("seed", SEEDS)
def test_random_histories_beside_dumps_end_alike(database: OnMySQL, lakes: MakeLakes, seed: int) -> None:
    dice = random.Random(seed)
    database.execute(*WORLD)
    session = database.connect()
    for _ in range(60):
        change(session, dice)
    given = [(DeltaSink, "current"), (IcebergSink, "history")][seed % 2]
    copy = lakes(given, chunkRows=dice.choice([2, 5, 10]), parallelism=dice.choice([1, 3]))

    def between() -> None:
        for _ in range(dice.choice([0, 0, 1, 2])):
            change(session, dice)

    copy.query.between = between
    for _ in range(25):
        between()
        copy.query.step()
    copy.query.between = lambda: None
    copy.agree()


@on_mariadb
def test_a_version_ends_where_its_parent_was_changed(database: OnMySQL, lakes: MakeLakes) -> None:
    tables(database)
    copy = lakes((DeltaSink, "history"))
    (lake,) = copy.lakes
    copy.agree()
    database.execute(
        "begin",
        "update p set id = 100 where id = 4",  # c: 3, 23, 43
        "update c set n = 5 where id = 3",
        "delete from p where id = 100",
        "insert into p values (4, 4, 4)",
        "insert into c values (3, 4, 6)",
        "commit",
    )
    copy.agree()
    versions = lake.rows("c").sort_by([("_lsn", "ascending"), ("_seq", "ascending")]).to_pylist()
    assert [(v["p_id"], v["n"]) for v in versions if v["id"] == 3] == [(4, 0), (100, 0), (100, 5), (4, 6)]
    assert [(v["p_id"], v["n"]) for v in versions if v["id"] == 23] == [(4, 0), (100, 0)]
    parents = {v["id"]: v for v in lake.rows("p").to_pylist() if v["id"] in (4, 100)}
    ended = [v for v in versions if v["id"] == 23]
    assert ended[1]["_lsn"] == parents[100]["_lsn"]
    assert ended[1]["valid_to"] == parents[100]["valid_to"] is not None


@on_mariadb
def test_a_batch_that_stopped_between_two_tables_is_completed(
    database: OnMySQL, lakes: MakeLakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables(database)
    copy = lakes((DeltaSink, "current"))
    copy.agree()
    commit = DeltaLakeTable.commit
    for allowed in range(1, 5):
        database.execute(
            f"delete from p where id = {allowed}", f"update p set id = {allowed + 50} where id = {allowed + 5}"
        )
        copy.query.wait_captured()
        left = [allowed]

        def some(self: DeltaLakeTable, *given: Any, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise SinkUnreachable("the storage is away")
            commit(self, *given)

        monkeypatch.setattr(DeltaLakeTable, "commit", some)
        assert copy.query.plan()
        with pytest.raises(SinkUnreachable):
            copy.query.finish()
        monkeypatch.setattr(DeltaLakeTable, "commit", commit)
        copy.query.finish()
        copy.agree()
