"""The cache that makes Spark's start shorter: when it is used, when it is filled, and what leaves it alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from dblog.errors import ConfigError
from dblog.spark.java import found_java
from dblog.spark.quick_start import (
    ABANDONED_SECONDS,
    ARCHIVE,
    KEPT,
    MAGIC,
    NO_WARNINGS,
    SWITCH,
    QuickStart,
    quick_start,
)

COMPLETE = MAGIC.to_bytes(4, sys.byteorder) + b"classes"
LINE = "OpenJDK 64-Bit Server VM (build 17.0.15+6, mixed mode, sharing)"


class Machine:
    """A machine with a Java of its own and a cache folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache = folder / "cache"
        self.given = {"XDG_CACHE_HOME": str(self.cache)}
        self._folder = folder
        self._monkeypatch = monkeypatch
        self.install("java", LINE)

    def install(self, name: str, line: str) -> None:
        path = self._folder / name / "bin" / "java"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\necho 'openjdk version \"17.0.15\"'\necho '{line}'\n")
        path.chmod(0o755)
        self._monkeypatch.setenv("JAVA_HOME", str(self._folder / name))

    def start(self, *, record: bool = True, master: str | None = "local[*]", **given: str) -> QuickStart:
        return quick_start({**self.given, **given}, master=master, record=record)

    @property
    def folder(self) -> Path:
        (found,) = (self.cache / "dblog").iterdir()
        return found

    def recorded(self, content: bytes = COMPLETE) -> Path:
        """The file that the JVM of a second start writes, with this content."""
        self.start()
        path = Path(self.start().java_options.split()[0].removeprefix("-XX:ArchiveClassesAtExit="))
        path.write_bytes(content)
        return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_the_second_start_records_and_the_third_uses_the_archive(machine: Machine) -> None:
    assert machine.start().java_options == "", "nothing may outlive this run"
    assert machine.start(record=False).java_options == "", "a run that does not end by itself"
    assert machine.start().java_options.startswith("-XX:ArchiveClassesAtExit=")
    machine.recorded()
    used = f"-XX:SharedArchiveFile={machine.folder / ARCHIVE}"
    assert [machine.start(record=record).java_options.split()[0] for record in (True, False)] == [used, used]
    assert not list(machine.folder.glob("*.new"))


def test_an_archive_that_is_being_written_is_not_used_and_one_that_was_abandoned_is_removed(machine: Machine) -> None:
    written = machine.recorded(bytes(1000))
    assert machine.start().java_options.startswith("-XX:ArchiveClassesAtExit=")
    assert written.exists()
    old = written.stat().st_mtime - ABANDONED_SECONDS - 60
    os.utime(written, (old, old))
    machine.start()
    assert not written.exists()


def test_a_second_archive_of_the_same_classes_is_removed(machine: Machine) -> None:
    first = machine.recorded()
    second = first.with_name("2.new")
    second.write_bytes(COMPLETE)
    machine.start()
    machine.start()
    assert sorted(path.name for path in machine.folder.iterdir()) == [ARCHIVE, "home"]


def test_another_java_another_class_path_or_other_options_share_no_archive(machine: Machine) -> None:
    folders = {machine.start().environment["SPARK_HOME"]}
    folders.add(machine.start(SPARK_CONF_DIR="/etc/spark").environment["SPARK_HOME"])
    folders.add(machine.start(JDK_JAVA_OPTIONS="-XX:+UseSerialGC").environment["SPARK_HOME"])
    machine.install("other", LINE.replace("17.0.15", "21.0.1"))
    folders.add(machine.start().environment["SPARK_HOME"])
    assert len(folders) == 4


def test_the_archives_used_last_are_kept(machine: Machine) -> None:
    others = []
    for age in range(1, KEPT + 2):
        other = machine.cache / "dblog" / f"spark-4.{age}" / ARCHIVE
        other.parent.mkdir(parents=True)
        other.write_bytes(COMPLETE)
        os.utime(other, (age, age))
        others.append(other)
    machine.start()
    path = Path(machine.start().java_options.split()[0].removeprefix("-XX:ArchiveClassesAtExit="))
    path.write_bytes(COMPLETE)
    machine.start()
    assert [other.exists() for other in others] == [False, False, *[True] * (KEPT - 1)]


def test_the_home_has_spark_without_its_python_files(machine: Machine) -> None:
    home = Path(machine.start().environment["SPARK_HOME"])
    spark = Path(pyspark.__file__).parent
    assert (home / "bin" / "spark-submit").samefile(spark / "bin" / "spark-submit")
    assert (home / "jars").samefile(spark / "jars")
    assert not (home / "python").exists()
    assert machine.start().environment == {"SPARK_HOME": str(home)}


@pytest.mark.parametrize(
    "given",
    [{"SPARK_HOME": str(Path(pyspark.__file__).parent)}, {"PYSPARK_PYTHON": "/usr/bin/other"}],
    ids=["own-home", "other-python"],
)
def test_python_files_stay_where_another_python_or_home_is_chosen(machine: Machine, given: dict[str, str]) -> None:
    assert machine.start(**given).environment == {}
    assert machine.start(**given).java_options.startswith("-XX:ArchiveClassesAtExit=")


@pytest.mark.parametrize(
    "given",
    [{SWITCH: "false"}, {"master": "spark://cluster:7077"}, {"master": None}],
    ids=["off", "cluster", "under spark-submit"],
)
def test_nothing_is_kept(machine: Machine, given: dict[str, Any]) -> None:
    assert machine.start(**given) == QuickStart()
    assert not machine.cache.exists()


def test_an_archive_that_the_user_has_chosen_stays(machine: Machine) -> None:
    given = {"SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=/opt/classes.jsa"}
    assert [machine.start(**given).java_options for _ in range(2)] == ["", ""]


def test_a_java_without_shared_classes_gets_no_options(machine: Machine) -> None:
    machine.install("other", LINE.replace(", sharing", ""))
    assert [machine.start().java_options for _ in range(2)] == ["", ""]


def test_a_folder_that_cannot_be_made_is_done_without(machine: Machine) -> None:
    machine.cache.write_text("a file")
    assert machine.start() == QuickStart()


def test_a_wrong_switch_is_refused(machine: Machine) -> None:
    with pytest.raises(ConfigError, match=f"{SWITCH} is 'yes'"):
        machine.start(**{SWITCH: "yes"})


@pytest.mark.spark
def test_this_java_writes_such_an_archive_and_uses_it(tmp_path: Path) -> None:
    java = found_java()
    assert java is not None
    archive = tmp_path / ARCHIVE
    jar = next((Path(pyspark.__file__).parent / "jars").glob("spark-launcher_*.jar"))
    program = ["-cp", str(jar), "org.apache.spark.launcher.Main"]  # says how it is used, and fails
    subprocess.run([java, f"-XX:ArchiveClassesAtExit={archive}", *program], check=False, capture_output=True)
    assert int.from_bytes(archive.read_bytes()[:4], sys.byteorder) == MAGIC
    use = [java, f"-XX:SharedArchiveFile={archive}", NO_WARNINGS, "-Xlog:class+load", *program]
    done = subprocess.run(use, check=False, capture_output=True, text=True)
    assert "org.apache.spark.launcher.Main source: shared objects file (top)" in done.stdout
    archive.chmod(0o600)
    archive.write_bytes(bytes(1000))
    broken = subprocess.run(use, check=False, capture_output=True, text=True)
    assert "org.apache.spark.launcher.Main source: file:" in broken.stdout, "one that is broken is ignored"
    assert "[cds]" not in broken.stdout
