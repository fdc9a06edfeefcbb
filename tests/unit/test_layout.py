"""The shape of the source tree: imports point one way, engines stay where they belong, modules stay readable."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = sorted(SOURCE.rglob("*.py"))
LINES = 400

# What each part of the package may import, in the order of a row's way through it. Every part may import itself,
# `errors` and `core`. A new part is entered here, and with it the decision where it stands.
MAY_IMPORT: dict[str, str] = {
    "errors": "",
    "core": "",
    "storage": "",
    "databases": "",
    "sources": "databases",
    "state": "databases",
    "ha": "state",
    "capture": "storage sources.base",
    "work": "sources.base capture",
    "planning": "sources.base capture work state",
    "spark": "storage databases sources capture work planning state ha",
    "sinks": "storage databases work",
    "control": "state",
    "pipelines": "storage databases sources capture work state ha spark sinks control",
    "testing": "storage databases",
    "demo": "databases sources.base spark sinks pipelines testing",
    "cli": "databases sources work state ha spark sinks control pipelines demo <face>",
    "__init__": "spark",
}
PRODUCTION = "databases sources work state ha spark sinks control pipelines <face>"
"""What a command may import; only `dblog demo` imports `demo`."""
# Who may import an engine or a driver, at the top of a module or within a function.
MAY_USE = {
    "pyspark": {"spark", "demo", "cli", "__init__", "sinks", "pipelines"},
    "psycopg": set(),  # beside psycopg2 it breaks TLS: see sources/postgres/replication.py
    "psycopg2": {"databases", "sources", "testing", "demo", "cli", "sinks"},
    "pymysql": {"databases", "sources", "testing", "demo", "sinks"},
    "kazoo": {"state"},
    "fastapi": {"control"},
    "starlette": {"control"},
    "uvicorn": {"control"},
    "pydantic": {"control"},
}


@cache
def tree(path: Path) -> ast.Module:
    """A module as Python parses it."""
    return ast.parse(path.read_text())


def imports(path: Path, source: Path = SOURCE) -> Iterator[str]:
    """Every name a module imports, absolute and in full: `from a import b` gives "a.b"."""
    package = path.relative_to(source).parent.parts
    for node in ast.walk(tree(path)):
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
    production = own == "cli" and path.name != "demo.py"
    allowed = {own, "errors", "core", *(PRODUCTION if production else MAY_IMPORT[own]).split()}
    if own == "errors":
        allowed = set()
    wrong = []
    for name in imports(path, source):
        top, _, rest = name.partition(".")
        if top == "dblog":
            # `from dblog import session` asks for the package's face unless it names a part.
            named = rest.partition(".")[0] in MAY_IMPORT
            fine = (
                any(rest == each or rest.startswith(each + ".") for each in allowed) if named else "<face>" in allowed
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


FAMILIES = ("postgres", "mysql")
"""The folders, and for targets the modules, of the families that dblog brings."""
SCHEMES = {"postgresql", "postgres", "mysql", "mariadb"}
NAMED_FAMILIES = {"databases/families.py", "demo/database.py"}
"""Modules that name families: the registry, and the demo, which starts a server of each and fills it."""


def belongs_to_a_family(module: str) -> bool:
    """Whether a module, as "sources.mysql.source", lies in a family's own folder."""
    return any(
        f"{module}.".startswith(f"{home}.{family}.")
        for home in ("databases", "sources", "sinks.sql", "state.sql")
        for family in FAMILIES
    )


def named_families(path: Path, source: Path = SOURCE) -> list[str]:
    """Where a module outside the families' folders tells them apart: it imports a family's module, asks for the type
    of a family's object, or compares something with the name or the scheme of a family."""
    inside = path.relative_to(source / "dblog").with_suffix("").as_posix()
    if belongs_to_a_family(inside.replace("/", ".")) or f"{inside}.py" in NAMED_FAMILIES:
        return []
    found = [name for name in imports(path, source) if belongs_to_a_family(name.removeprefix("dblog."))]
    for node in ast.walk(tree(path)):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            asked = [node.value]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("isinstance", "startswith", "removeprefix")
        ):
            asked = node.args
        for each in (part for expression in asked for part in ast.walk(expression)):
            text = next((getattr(each, field) for field in ("id", "attr", "value") if hasattr(each, field)), None)
            if isinstance(text, str) and text.lower().removesuffix("://") in SCHEMES:
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_only_a_family_s_own_folders_know_the_family(path: Path) -> None:
    assert named_families(path) == [], "ask the registry (dblog.databases.families), and add to the protocol Family"


@pytest.mark.parametrize(
    ("module", "code", "found"),
    [
        ("cli/run.py", "from dblog.sources.mysql.source import MySQL", 1),
        ("cli/run.py", "def f():\n    from dblog.databases.postgres import connect", 1),
        ("cli/run.py", "if isinstance(source, MySQL):\n    pass", 1),
        ("cli/run.py", "if isinstance(source, (int, m.Postgres, MySQL)):\n    pass", 2),
        ("cli/run.py", "if scheme in ('postgresql', 'postgres'):\n    pass", 2),
        ("cli/run.py", "if scheme == 'mariadb':\n    pass", 1),
        ("cli/run.py", "if url.startswith('mysql://'):\n    pass", 1),
        ("cli/run.py", "if type(source).__name__ == 'MySQL':\n    pass", 1),
        ("cli/run.py", "match scheme:\n    case 'mysql':\n        pass", 1),
        ("cli/run.py", "if at.scheme in ('http', 'https'):\n    pass\nhelp = 'also mysql://'", 0),
        ("sources/mysql/family.py", "from dblog.sources.mysql.source import MySQL", 0),
        ("sinks/sql/sink.py", "from dblog.sinks.sql.mysql import MySQL", 1),
        ("sinks/sql/mysql.py", "from dblog.databases.mysql.connect import connect", 0),
        ("databases/families.py", "if scheme == 'mysql':\n    pass", 0),
    ],
)
def test_code_that_tells_families_apart_is_found(tmp_path: Path, module: str, code: str, found: int) -> None:
    path = tmp_path / "dblog" / module
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert len(named_families(path, tmp_path)) == found


IMPURE = {"time", "datetime", "random", "secrets", "uuid", "threading", "asyncio", "socket", "subprocess", "os"}


@pytest.mark.parametrize("path", [path for path in OURS if part(path) == "core"], ids=name_of)
def test_the_algorithm_reads_no_clock_draws_nothing_and_starts_nothing(path: Path) -> None:
    assert not {name.partition(".")[0] for name in imports(path)} & IMPURE
    assert "np.random" not in path.read_text()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_can_be_read_in_one_sitting(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= LINES


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_lives_there(path: Path) -> None:
    assert ast.get_docstring(tree(path))


@pytest.mark.parametrize(
    ("module", "code", "wrong"),
    [
        ("core/window.py", "from dblog.sources.base import Source", ["dblog.sources.base.Source"]),
        ("core/window.py", "def f():\n    import dblog.capture.spool", ["dblog.capture.spool"]),
        ("core/window.py", "from ..sources import base", ["dblog.sources.base"]),
        ("core/window.py", "from . import offset\nfrom ..errors import DBLogError\nimport json", []),
        ("core/window.py", "import pyspark.sql", ["pyspark.sql"]),
        ("capture/capture.py", "from dblog.sources.postgres import log", ["dblog.sources.postgres.log"]),
        ("capture/capture.py", "from dblog.sources import base\nfrom dblog.sources.base import Source", []),
        ("spark/stream.py", "from dblog.cli import main", ["dblog.cli.main"]),
        ("spark/stream.py", "import dblog", ["dblog"]),
        ("sources/postgres/log.py", "import psycopg2\nfrom psycopg import pq", ["psycopg.pq"]),
        ("cli/run.py", "import dblog\nfrom dblog import session\nfrom dblog.demo import shop", ["dblog.demo.shop"]),
    ],
)
def test_the_rules_tell_right_from_wrong(tmp_path: Path, module: str, code: str, wrong: list[str]) -> None:
    path = tmp_path / "dblog" / module
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert forbidden(path, tmp_path) == wrong


def loaded_by(module: str) -> set[str]:
    """The modules that a process has loaded after it has imported this one."""
    told = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_a_process_loads_only_what_it_needs() -> None:
    """Spark starts many Python processes, most of which only ask what columns there are."""
    loaded = loaded_by("dblog.spark.source")
    assert "dblog.spark.ranges" in loaded
    assert not {"pandas", "dblog.sources.mysql.source", "dblog.sources.postgres.source"} & loaded
    assert not {"psycopg2", "pymysql"} & loaded, "a driver is loaded for the family that a URL names"
    assert not {"dblog.planning.engine", "dblog.state.sqlite"} & loaded, "only the source process needs the engine"


def test_spark_finds_the_format_without_loading_what_reads_it() -> None:
    loaded = loaded_by("pyspark_dblog")
    assert "dblog.spark.format" in loaded
    assert not {"pyarrow", "numpy", "pandas", "dblog.spark.source", "dblog.core"} & loaded
