"""`scripts/jars.py`: jars come from where Spark's settings on this machine say, and only as they were."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.home import quick_spark

SCRIPT = Path(__file__).parents[2] / "scripts" / "jars.py"
POM = (
    "<project><modelVersion>4.0.0</modelVersion>"
    "<groupId>g.h</groupId><artifactId>a</artifactId><version>1</version></project>"
)
SETTINGS = """<ivysettings><settings defaultResolver="mirror"/>
<resolvers><ibiblio name="mirror" m2compatible="true" root="{root}"/></resolvers></ivysettings>"""


def fetch(folder: Path, settings: dict[str, object], wanted: str) -> subprocess.CompletedProcess[str]:
    """Into `out` below the folder, with these settings in Spark's own file for them, and caches below the folder."""
    conf = folder / "conf"
    conf.mkdir(exist_ok=True)
    given = {"spark.jars.ivy": folder / "ivy", **settings}
    (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in given.items()))
    environment = {**os.environ, **quick_spark(), "SPARK_CONF_DIR": str(conf)}
    command = [sys.executable, str(SCRIPT), str(folder / "out")]
    return subprocess.run(
        command, input=wanted, check=False, capture_output=True, text=True, env=environment, timeout=300
    )


@pytest.mark.spark
def test_jars_come_from_a_mirror_and_must_have_their_digest(tmp_path: Path) -> None:
    place = tmp_path / "mirror" / "g" / "h" / "a" / "1"
    place.mkdir(parents=True)
    (place / "a-1.pom").write_text(POM)
    (place / "a-1.jar").write_bytes(b"plain")
    (place / "a-1-tests.jar").write_bytes(b"classified")
    (tmp_path / "ivysettings.xml").write_text(SETTINGS.format(root=(tmp_path / "mirror").as_uri()))
    settings = {"spark.jars.ivySettings": tmp_path / "ivysettings.xml"}
    lines = [
        f"{hashlib.sha256(b'plain').hexdigest()} g.h:a:1",
        f"{hashlib.sha256(b'classified').hexdigest()} g.h:a:1:tests",
    ]
    for line, name, content in zip(lines, ("a-1.jar", "a-1-tests.jar"), (b"plain", b"classified"), strict=True):
        done = fetch(tmp_path, settings, line)
        assert done.returncode == 0, done.stderr[-2000:]
        assert (tmp_path / "out" / name).read_bytes() == content
    done = fetch(tmp_path, settings, f"{'0' * 64} g.h:a:1")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "g.h:a:1 is not what it was")
    done = fetch(tmp_path, settings, f"{'0' * 64} g.h:b:1")
    assert done.returncode == 1
    assert "g.h#b;1" in done.stderr
