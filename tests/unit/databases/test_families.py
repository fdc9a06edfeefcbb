"""The registry of families: which family a URL belongs to, and what each says of itself."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dblog.databases import families
from dblog.databases.families import MYSQL, POSTGRES, Entry, entries, entry_of, import_object, register
from dblog.errors import ConfigError
from dblog.pipelines.config import read_config
from dblog.sinks.sql.sink import target_of
from dblog.sources.family import family_of, shown_position
from dblog.spark.options import OPTIONS, read_options
from tests.sources.journal_family import ENTRY

URLS = {
    "postgresql://ann:s3cret@db.example/shop": POSTGRES,
    "postgres://ann:s3cret@db.example/shop": POSTGRES,
    "mysql://ann:s3cret@db.example/shop": MYSQL,
    "mariadb://ann:s3cret@db.example/shop": MYSQL,
}


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone afterwards."""
    monkeypatch.setattr(families, "_ENTRIES", dict(families._ENTRIES))


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_read_and_written_by_its_family(url: str) -> None:
    assert entry_of(url) is URLS[url]
    family = family_of(url)
    assert family is import_object(URLS[url].source or "")
    assert "s3cret" not in f"{family.parse(url)} {family.parse(url)!r}"
    assert family.parse(url).secrets == ("s3cret",)
    assert type(target_of(url)) is import_object(URLS[url].target or "")


@pytest.mark.parametrize("url", ["oracle://ann:s3cret@db.example/shop", "mysql:ann:s3cret@db.example", "", "://", "x"])
def test_a_url_of_no_family_is_refused_with_those_that_there_are(url: str) -> None:
    assert entry_of(url) is None
    for refused in (family_of, target_of):
        with pytest.raises(ConfigError) as error:
            refused(url)
        assert "postgresql://" in (error.value.hint or "")
        assert "mysql://" in (error.value.hint or "")
        assert "s3cret" not in str(error.value)


def test_the_options_that_only_one_family_has_are_declared() -> None:
    declared = {option.name for option in OPTIONS}
    for entry in entries():
        assert set(entry.options) <= declared


@pytest.mark.parametrize("url", URLS)
def test_a_family_goes_to_other_processes_with_the_options(url: str) -> None:
    options = read_options({"url": url, "table": "shop.orders"})
    again = pickle.loads(pickle.dumps(options))
    assert type(again.family) is type(options.family)
    assert again.source == options.source
    assert "s3cret" not in repr(options)


@pytest.mark.parametrize(
    ("url", "position", "shown"),
    [
        ("postgresql://db.example/shop", 23_803_720, "0/16B3748"),
        ("postgresql://ann:***@db.example/shop", (7 << 32) + 1, "7/1"),
        ("mysql://ann@db.example/shop", (3 << 40) + 1234, "000003:1234"),
        ("mariadb://ann@db.example/shop", (1_234_567 << 40) + (5 << 30), "1234567:5368709120"),
        ("oracle://db.example/shop", 5, "5"),
        (None, 5, "5"),
        ("postgresql://db.example/shop", None, "?"),
        (None, None, "?"),
    ],
)
def test_a_position_is_written_as_its_database_does(url: str | None, position: int | None, shown: str) -> None:
    assert shown_position(url, position) == shown


def test_a_family_can_be_added() -> None:
    mine = Entry("Mine", ("mine",), "mine://host", ("myOption",), source=POSTGRES.source)
    register(mine)
    register(mine)  # again is no conflict
    assert entry_of("mine://host") is mine
    assert mine in list(entries())
    with pytest.raises(ConfigError, match="the setting 'url' of the sink"):
        target_of("mine://host")


def test_the_options_of_an_added_family_are_known_for_its_urls_alone(tmp_path: Path) -> None:
    register(replace(ENTRY, options=("speed",)))
    given = {"table": "t", "Speed": "1"}
    assert read_options({"url": "journal:///x", **given}).address.database == "x"
    for url, wrong in {"journal:///x": "sped", "postgresql://db.example/x": "speed"}.items():
        with pytest.raises(ConfigError, match=f"unknown option '{wrong}'"):
            read_options({"url": url, "table": "t", wrong: "1"})
    file = tmp_path / "pipeline.toml"
    for url in ("journal:///x", "postgresql://db.example/x"):
        file.write_text(f'[source]\nurl = "{url}"\ntables = "*"\noptions = {{speed = "1"}}\n[[sink]]\ntype = "noop"\n')
        if url.startswith("journal"):
            assert read_config(file).source["speed"] == "1"
        else:
            with pytest.raises(ConfigError, match=r"source\.options has no option 'speed'"):
                read_config(file)


def test_a_scheme_belongs_to_one_family() -> None:
    with pytest.raises(ConfigError, match="the scheme 'mysql' of Mine already belongs to MySQL and MariaDB"):
        register(Entry("Mine", ("mine", "mysql"), "mine://host"))
    assert entry_of("mine://host") is None


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that brings a family, as an installer leaves it behind."""
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[dblog.families]\nmine = mine_family:ENTRY\nabsent = no_such_module:ENTRY\n"
    )
    (tmp_path / "mine_family.py").write_text(
        "from dblog.databases.families import Entry\n"
        "ENTRY = Entry('Mine', ('mine',), 'mine://host', ('myOption',), source='mine_family:FAMILY')\n"
        "FAMILY = object()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("mine_family", None)


def test_an_installed_package_adds_a_family_that_is_loaded_when_a_url_names_it(installed: Path) -> None:
    assert entry_of("postgresql://host/x") is POSTGRES
    assert "mine_family" not in sys.modules
    found = entry_of("mine://host")
    assert found is not None
    assert (found.name, found.options) == ("Mine", ("myOption",))
    assert family_of("mine://host") is sys.modules["mine_family"].FAMILY


def test_a_package_that_cannot_be_loaded_is_named(installed: Path) -> None:
    with pytest.raises(ConfigError, match=r"the family of absent:// cannot be loaded from 'no_such_module:ENTRY'"):
        entry_of("absent://host")


def test_showing_a_position_loads_no_driver() -> None:
    told = (
        "import sys; from dblog.sources.family import shown_position as s; s('mysql://h/x', 5), s('postgres://h/x', 5)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{told}; print(*sys.modules)"], check=True, capture_output=True, text=True
    )
    assert not {"psycopg2", "pymysql", "pyspark"} & set(done.stdout.split())
