"""A password that is typed is seen by others: each command that takes --url says so, and names the way around it."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

import dblog
from dblog.cli import app
from tests.unit.test_docs_cli import commands

WITH_URL = {name: each for name, each in commands().items() if any(p.name == "url" for p in each.params)}
WARNING = "warning: other users can see the password in --url (with ps): set DBLOG_URL instead\n"


def typed(command: Any, url: str) -> list[str]:
    """What is typed for a command, with all that it needs."""
    words = ["--url", url]
    for parameter in command.params:
        if parameter.required and parameter.name != "url":
            words += [parameter.opts[0], "x"] if parameter.param_type_name == "option" else ["x"]
    return words


@pytest.mark.parametrize("name", WITH_URL)
def test_a_typed_password_is_warned_of_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = WITH_URL[name]
    for url in ("postgresql://app:pw@db/shop", "mysql://app:pw@db", "postgresql://app@db/shop?password=pw"):
        command.make_context(name, typed(command, url))
        assert capsys.readouterr().err == WARNING
    command.make_context(name, typed(command, "postgresql://app@db/shop?sslmode=require"))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", WITH_URL)
def test_a_password_in_the_environment_is_not(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBLOG_URL", "postgresql://app:pw@db/shop")
    command = WITH_URL[name]
    context = command.make_context(name, typed(command, "")[2:])
    assert context.params["url"] == "postgresql://app:pw@db/shop"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", [n for n in commands() if commands()[n].epilog])
def test_no_example_shows_a_password_to_others(name: str) -> None:
    assert not [line for line in commands()[name].epilog.splitlines() if "--url" in line and ":secret@" in line]


def test_the_version() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"dblog {dblog.__version__}\n")
