"""What is asked of the executors of a cluster, and what follows from their answers."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from dblog import __version__
from dblog.errors import ConfigError
from dblog.pipelines.executors import Found, _judge, _looking

URL = "postgresql://cdc:secret-7@127.0.0.1:1/shop"


def warnings(*found: Found) -> list[str]:
    said: list[str] = []
    _judge(found, said.append)
    return said


def look(folder: Path, version: str = __version__, **folders: str) -> list[tuple[str, str]]:
    """What an executor reports that sees the files of this test."""
    (folder / "spool" / "range").mkdir(parents=True, exist_ok=True)
    (folder / "spool" / "range" / "there.jsonl").write_text("{}")
    spools = {"there": "spool", "missing": "spool", "apart": "elsewhere"}
    streams = [({"url": URL, "table": "t", "spool": str(folder / spools[name])}, name) for name in spools]
    work = cloudpickle.dumps(_looking(version, folders, streams))
    return [(what, details) for _, what, details in pickle.loads(work)([])]


def test_an_executor_says_what_it_does_not_see(tmp_path: Path) -> None:
    (tmp_path / "seen").touch()
    found = look(tmp_path, "0.0", a=str(tmp_path / "seen"), b=str(tmp_path / "unseen"))
    assert found[0] == ("folder", "b")
    assert found[1] == ("package", f"it has {__version__}, and the driver has 0.0")
    assert [what for what, _ in found[2:]] == ["source", "spool", "source", "spool", "source"]
    assert "missing from the spool" in found[3][1]
    assert found[5][1] == repr(str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere").exists(), "the question creates nothing"
    assert "secret-7" not in str(found)


def test_an_executor_without_dblog_says_so(tmp_path: Path) -> None:
    path = tmp_path / "work"
    path.write_bytes(cloudpickle.dumps(_looking(__version__, {}, [])))
    program = "import pickle, sys; sys.modules['dblog'] = None; print(pickle.load(open(sys.argv[1], 'rb'))([]))"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert "'package', 'cannot import it: " in done.stdout


@pytest.mark.parametrize(
    ("what", "details", "said"),
    [
        ("package", "cannot import it: no", "the executors on a, b do not have this dblog: cannot import it: no"),
        ("spool", "'/x'", "the executors on a, b do not see the driver's files on the spool '/x'"),
        ("folder", "/lake", "the executors on a, b do not see the driver's files in '/lake', to which they are to"),
    ],
)
def test_what_keeps_executors_from_their_work_is_refused(what: str, details: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        warnings(("a", what, details), ("b", what, details))
    assert str(error.value).startswith(said)
    assert "docs/cluster.md" in str(error.value)


def test_a_source_that_executors_do_not_reach_is_a_warning() -> None:
    (said,) = warnings(("a", "source", "connection refused"))
    assert said.startswith("the executors on a cannot reach the source")
    assert warnings() == []
