"""The shape of the source tree: imports point one way, engines stay where they belong, modules stay readable."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = sorted(SOURCE.rglob("*.py"))
LINES = 400

# What a part of the package may import of the package. A new part is entered here, and with it the decision where
# it stands.
BASE = {"errors", "core", "sources.base"}
LOG = BASE | {"spool", "segments", "capture", "tasks"}
DRIVER = LOG | {"state", "admission", "desk", "pacer", "following", "tables", "settings", "planner", "retry", "engine"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "core": {"errors", "core"},
    "sources": {"errors", "core", "sources"},
    "state": {"errors", "core", "state"},
    "retry": {"errors"},
    "spool": BASE | {"spool"},
    "segments": BASE | {"spool"},
    "capture": BASE | {"spool", "segments", "capture"},
    "repeat": BASE | {"spool", "segments"},
    "tasks": BASE | {"spool", "tasks"},
    "admission": BASE | {"state"},
    "desk": {"errors", "core", "state", "desk"},
    "pacer": BASE | {"capture"},
    "following": BASE | {"capture"},
    "tables": BASE | {"spool", "desk"},
    "settings": set(),
    "planner": LOG | {"state", "admission", "desk", "pacer", "retry", "following", "tables", "settings"},
    "engine": LOG | {"state", "desk", "settings", "planner", "repeat", "retry"},
    "spark": DRIVER | {"sources", "spark"},
    "sinks": {"errors", "core", "sinks", "sources", "spark.json", "spark.envelope"},
    "pipelines": DRIVER | {"", "sources", "spark", "sinks", "control", "pipelines"},
    "control": {"errors", "core", "state", "control"},
    "__init__": {"errors", "core", "spark"},
    "demo": DRIVER | {"", "sources", "spark", "demo"},
    "cli": DRIVER | {"", "sources", "spark", "control", "demo", "sinks", "pipelines", "cli"},
}
# Who may import an engine or a driver, at the top of a module or within a function.
MAY_USE = {
    "pyspark": {"spark", "demo", "cli", "__init__", "sinks", "pipelines"},
    "psycopg2": {"sources", "demo", "cli", "sinks"},
    "pymysql": {"sources", "demo", "sinks"},
    "fastapi": {"control"},
    "starlette": {"control"},
    "uvicorn": {"control"},
    "pydantic": {"control"},
}


def imports(path: Path, source: Path = SOURCE) -> Iterator[str]:
    """Every name a module imports, absolute and in full: `from a import b` gives "a.b"."""
    package = path.relative_to(source).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def part(path: Path, source: Path = SOURCE) -> str:
    """Which part of the package a module belongs to."""
    return path.relative_to(source).with_suffix("").parts[1]


def forbidden(path: Path, source: Path = SOURCE) -> list[str]:
    """What a module imports of ours, or of the engines, and may not."""
    own = part(path, source)
    allowed = MAY_IMPORT[own]
    wrong = []
    for name in imports(path, source):
        top, _, rest = name.partition(".")
        if top == "dblog":
            # `from dblog import session` asks for the package's face unless it names a part.
            named = rest.partition(".")[0] in MAY_IMPORT
            fine = (
                any(rest == each or rest.startswith(each + ".") for each in allowed - {""}) if named else "" in allowed
            )
        else:
            fine = own in MAY_USE.get(top, {own})
        if not fine:
            wrong.append(name)
    return wrong


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


OURS = [path for path in MODULES if path.relative_to(SOURCE).parts[0] == "dblog"]


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    assert part(path) in MAY_IMPORT, f"{part(path)!r} is a new part: say in MAY_IMPORT what it may import"
    assert forbidden(path) == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_can_be_read_in_one_sitting(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= LINES


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_lives_there(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize(
    ("module", "code", "wrong"),
    [
        ("core/window.py", "from dblog.sources.base import Source", ["dblog.sources.base.Source"]),
        ("core/window.py", "def f():\n    import dblog.spool", ["dblog.spool"]),
        ("core/window.py", "from ..sources import base", ["dblog.sources.base"]),
        ("core/window.py", "from . import offset\nfrom ..errors import DBLogError\nimport json", []),
        ("core/window.py", "import pyspark.sql", ["pyspark.sql"]),
        ("capture.py", "from dblog.sources.postgres import log", ["dblog.sources.postgres.log"]),
        ("capture.py", "from dblog.sources import base\nfrom dblog.sources.base import Source", []),
        ("spark/stream.py", "from dblog.cli import main", ["dblog.cli.main"]),
        ("spark/stream.py", "import dblog", ["dblog"]),
        ("demo/run.py", "import dblog, psycopg2\nfrom dblog import session", []),
    ],
)
def test_the_rules_tell_right_from_wrong(tmp_path: Path, module: str, code: str, wrong: list[str]) -> None:
    path = tmp_path / "dblog" / module
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert forbidden(path, tmp_path) == wrong


def test_a_process_loads_only_what_it_needs() -> None:
    """Spark starts many Python processes, most of which only ask what columns there are."""
    told = "import sys, dblog.spark.source; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True).stdout.split()
    assert "dblog.engine" in loaded
    assert not {"pandas", "dblog.sources.mysql.source", "dblog.sources.postgres.source"} & set(loaded)
