"""Where the state store is."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog.errors import ConfigError
from dblog.state import open_store
from dblog.state.sqlite import SQLiteStore


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("DBLOG_STATE", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return home


def place_of(place: str | None = None) -> Path:
    store = open_store(place)
    assert isinstance(store, SQLiteStore)
    store.put("a", {})
    store.close()
    assert store.path.is_file()
    return store.path


def test_a_place_is_a_path_or_an_address(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of(str(tmp_path / "a" / "b.db")) == tmp_path / "a" / "b.db"
    assert place_of("c.db") == tmp_path / "c.db"
    assert place_of(":memory:") == tmp_path / ":memory:"
    assert place_of("~/d.db") == home / "d.db"
    assert place_of(f"sqlite://{tmp_path}/e.db") == tmp_path / "e.db"
    assert place_of(f"sqlite:///{tmp_path}/f%20g.db") == tmp_path / "f g.db"


def test_without_a_place_it_is_that_of_the_environment_or_the_user(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place_of() == home / ".local" / "state" / "dblog" / "state.db"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert place_of() == place_of("") == tmp_path / "xdg" / "dblog" / "state.db"
    monkeypatch.setenv("DBLOG_STATE", f"sqlite://{tmp_path}/env.db")
    assert place_of() == tmp_path / "env.db"
    assert place_of(str(tmp_path / "given.db")) == tmp_path / "given.db"
    monkeypatch.setenv("DBLOG_STATE", "")
    assert place_of() == tmp_path / "xdg" / "dblog" / "state.db"


@pytest.mark.parametrize(
    "place", ["oracle://me:secret@host/db", "sqlite://", "sqlite:///", "sqlite://secret/a.db", "://secret"]
)
def test_other_addresses_are_refused_without_showing_them(place: str) -> None:
    with pytest.raises(ConfigError, match="state store") as caught:
        open_store(place)
    assert "secret" not in str(caught.value)
    assert "sqlite:///PATH" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("postgresql://me:secret@host/", "has no database"),
        ("mysql://me:secret@host/db?nothing=1", "unknown parameter: 'nothing'"),
    ],
)
def test_a_wrong_address_of_a_database_is_refused_without_showing_it(place: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        open_store(place)
    assert caught.value.message.startswith("the state store's URL")
    assert "secret" not in str(caught.value)
