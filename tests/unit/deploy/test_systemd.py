"""The unit for systemd runs a command that exists, ends it as `dblog run` expects, and gives it few rights."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dblog.cli.program import INTERRUPTED
from dblog.pipelines.running import DRAIN_SECONDS
from tests.unit.test_docs_cli import commands

UNIT = Path(__file__).parents[3] / "deploy/systemd/dblog@.service"
TEXT = UNIT.read_text()
SETTINGS: dict[str, str] = dict(re.findall(r"^(\w+)=(.*)$", TEXT, re.MULTILINE))


def test_it_runs_the_pipeline_of_its_name() -> None:
    program, command, file = SETTINGS["ExecStart"].split()
    assert Path(program).name == "dblog"
    assert file == "/etc/dblog/%i.toml"
    commands()[command].make_context(command, [file])


def test_a_stop_is_clean_and_a_failure_is_started_again() -> None:
    assert SETTINGS["KillSignal"] == "SIGTERM"
    assert SETTINGS["KillMode"] == "mixed", "SIGTERM for dblog alone: it stops Spark itself"
    assert int(SETTINGS["TimeoutStopSec"]) >= DRAIN_SECONDS + 20
    assert SETTINGS["Restart"] == "on-failure"
    assert "RestartPreventExitStatus" not in SETTINGS, "a bucket that is away for a moment ends a start with 2"
    assert int(SETTINGS["SuccessExitStatus"]) == INTERRUPTED


def test_its_folders_are_those_that_systemd_makes_for_it() -> None:
    environment = dict(pair.split("=") for pair in SETTINGS["Environment"].split())
    assert environment["DBLOG_STATE"].startswith(f"/var/lib/{SETTINGS['StateDirectory']}/")
    assert environment["XDG_CACHE_HOME"] == f"/var/cache/{SETTINGS['CacheDirectory']}"
    assert SETTINGS["User"] not in ("root", "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", TEXT, flags=re.MULTILINE))
    done = subprocess.run(["systemd-analyze", "verify", unit], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    judged = ["systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=25", unit]
    assert subprocess.run(judged, check=False, capture_output=True).returncode == 0, "more than 2.5 of 10 points"
