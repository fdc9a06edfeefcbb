"""The page of the command line says what the commands say: each command, argument and option, in the same words."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from dblog.cli import app, program

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"

SHARED = {
    "--state": "| `--state LOCATION` | Use this state store: a file, or a URL of ZooKeeper or a database. "
    "Default: `DBLOG_STATE`, else a file in your home directory. |",
    "--pipeline": "| `--pipeline NAME` | Choose the pipeline, if several share the state store. |",
    "--json": "| `--json` | Print JSON, and nothing else, on standard output. |",
    "--url": "| `--url URL` | Connect to this source, like postgresql://user:password@host/database. "
    "Without it, `DBLOG_URL`. |",
}
"""Options that mean the same everywhere are explained once."""


@cache
def main_command() -> Any:
    """The program itself."""
    return typer.main.get_command(app)


@cache
def commands() -> dict[str, Any]:
    """Every command by what is typed for it, groups too."""
    found: dict[str, Any] = {}
    for name, command in main_command().commands.items():
        found[name] = command
        found |= {f"{name} {below}": each for below, each in getattr(command, "commands", {}).items()}
    return found


def rows(command: Any) -> tuple[list[str], list[str]]:
    """A command's own arguments and options as rows of a table, and the names of the shared ones."""
    own, shared = [], []
    for parameter in command.params:
        name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
        if name == "--help":
            continue
        if name in SHARED and f"| {parameter.help} " in _without_defaults(SHARED[name]):
            shared.append(name)
            continue
        shown = "/".join([name, *parameter.secondary_opts])
        value = f" {parameter.metavar}" if parameter.param_type_name == "option" and parameter.metavar else ""
        own.append(f"| `{shown}{value}` | {parameter.help} |")
    return own, shared


def _without_defaults(row: str) -> str:
    return re.sub(r"`DBLOG_STATE`, else ", "", re.sub(r" Without it, `DBLOG_URL`\.", "", row))


def section(name: str) -> str:
    found = re.search(rf"^## `dblog {name}`\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no section `dblog {name}`"
    return found[1]


@pytest.mark.parametrize("name", commands())
def test_a_command_has_a_section_with_an_example_and_all_that_it_takes(name: str) -> None:
    text = section(name)
    own, shared = rows(commands()[name])
    assert text.strip("\n").split("\n\n")[0] == " ".join(commands()[name].help.split("\n\n")[0].split())
    for row in own:
        assert row in text
    for option in shared:
        assert f"`{option}`" in text
    assert re.search(rf"^\$ (\w+=\S* )?dblog {name}\b", text, re.MULTILINE) or name == "slots"


def test_no_section_and_no_option_is_of_something_that_is_gone() -> None:
    text = PAGE.read_text("utf-8")
    known = commands()
    assert set(re.findall(r"^## `dblog ([\w ]+)`", text, re.MULTILINE)) == set(known)
    options = {o for command in known.values() for p in command.params for o in (*p.opts, *p.secondary_opts)}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) <= options | {"--help"} | program_options()


def program_options() -> set[str]:
    """The options of the program itself."""
    return {option for parameter in main_command().params for option in parameter.opts}


def test_the_options_of_the_program_are_explained() -> None:
    intro = PAGE.read_text("utf-8").split("\n## ")[0]
    assert all(f"`dblog {option}`" in intro for option in program_options() - {"--help", "-h"})


def test_the_shared_options_are_explained_once() -> None:
    intro = PAGE.read_text("utf-8").split("\n## ")[0]
    for row in SHARED.values():
        assert row in intro
    used = {option for command in commands().values() for option in rows(command)[1]}
    assert used == set(SHARED)


def test_every_exit_code_is_explained() -> None:
    intro = PAGE.read_text("utf-8").split("\n## ")[0]
    for code in (0, program.FAILED, program.MISUSED, program.ABSENT, program.INTERRUPTED):
        assert f"| {code} | " in intro


@pytest.mark.parametrize("name", [n for n in commands() if n != "version"])
def test_the_help_of_a_command_has_examples_that_parse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBLOG_URL", "postgresql://localhost/shop")
    examples = [line.strip() for line in commands()[name].epilog.splitlines() if "dblog " in line]
    assert examples
    for example in examples:
        words = shlex.split(re.split(r" [|>] ", example)[0])
        command = main_command()
        words = words[words.index("dblog") + 1 :]
        while words and words[0] in getattr(command, "commands", {}):
            command, words = command.commands[words[0]], words[1:]
        command.make_context(command.name, words)
