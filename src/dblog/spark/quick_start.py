"""What `dblog run` keeps in the user's cache folder, so that its local Spark starts with about half the work.

    spark-<key>/home/         a SPARK_HOME of links, without Spark's Python files
    spark-<key>/classes.jsa   a class data archive of Java: Spark's classes, parsed and verified
    spark-<key>/<pid>.new     such an archive, written by a JVM when it ends

Most of a start is Java that loads and verifies Spark's classes. With `record`, a JVM writes the classes that it has
loaded to an archive when it ends, after `dblog run` has ended; the next start uses the archive. To record costs more
than a start. So the first start only leaves the folder, and the second one records: where nothing outlives a run, as in
most containers, nothing is recorded.

With a SPARK_HOME that has no `python/lib/pyspark.zip`, Spark's Python processes import the installed PySpark, which is
compiled; with it, each of them compiles the files of the zip, in half a second.

The key depends on everything that the archive depends on: another Java or another Spark uses another folder. Java
checks the archive too, and ignores one that does not fit. Without a folder that can be written, Spark starts as usual.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from dblog.errors import ConfigError
from dblog.spark.java import found_java, java_version
from dblog.spark.session import is_local

SWITCH = "DBLOG_START_CACHE"
"""The environment variable that says whether the cache is used: true (the default) or false."""
ARCHIVE = "classes.jsa"
KEPT = 3
"""How many archives are kept, those used last. Each has about 140 MB."""
ABANDONED_SECONDS = 3600.0
"""The age from which on an incomplete archive is not being written any more, in seconds."""
MAGIC = 0xF00BABA8
"""The first four bytes of a dynamic archive. Java writes them last: a file that has them is complete."""
LINKED = ("bin", "jars", "conf")
"""What Spark needs of its home to start."""
ON_CLASS_PATH = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_CLASSPATH")
OF_JAVA = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")
PYTHONS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
NO_WARNINGS = "-Xlog:cds*=off:stdout"
"""Java would say on standard output, which may be a sink's, that an archive does not fit."""


@dataclass(frozen=True)
class QuickStart:
    """How to start Spark's JVM."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the JVM is started with."""
    java_options: str = ""


def quick_start(given: Mapping[str, str], *, master: str | None, record: bool) -> QuickStart:
    """How to start Spark with what the cache has, if its `master` is a local one. With `record`, the JVM of a second
    start adds an archive if there is none. `given` is the environment."""
    wanted = given.get(SWITCH, "true")
    if wanted not in ("true", "false"):
        raise ConfigError(f"{SWITCH} is {wanted!r}", hint="set it to true or false, or leave it out")
    java = found_java()
    if wanted == "false" or java is None or not is_local(master):
        return QuickStart()
    cache = Path(given.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dblog"
    try:
        folder = cache / f"spark-{_key(given, java)}"
        again = folder.exists()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        home = _home(folder, given)
        options = _java_options(folder, given, java, record and again)
        return QuickStart({} if home is None else {"SPARK_HOME": str(home)}, options)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return QuickStart()


def _key(given: Mapping[str, str], java: str) -> str:
    """A digest of what an archive depends on: Java, Spark's jars, and what else is on the class path."""
    jars = _spark(given) / "jars"
    settings = Path(given.get("SPARK_CONF_DIR") or _spark(given) / "conf") / "spark-defaults.conf"
    depends = [
        os.path.realpath(java),
        java_version(java),
        f"{jars} {jars.stat().st_mtime_ns}",
        *sorted(os.listdir(jars)),
        settings.read_text() if settings.exists() else "",
        *(f"{name}={given.get(name)}" for name in (*ON_CLASS_PATH, *OF_JAVA)),
    ]
    return hashlib.sha256("\0".join(depends).encode()).hexdigest()[:16]


def _spark(given: Mapping[str, str]) -> Path:
    return Path(given.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def _home(folder: Path, given: Mapping[str, str]) -> Path | None:
    """A SPARK_HOME without Python files; None if Spark's Python processes may need those, because they run another
    Python, or if the user has chosen a SPARK_HOME."""
    if "SPARK_HOME" in given or any(given.get(name, sys.executable) != sys.executable for name in PYTHONS):
        return None
    home = folder / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    for name in LINKED:
        if (_spark(given) / name).exists():
            with suppress(FileExistsError):  # from an earlier run, or another process does the same
                (home / name).symlink_to(_spark(given) / name)
    return home


def _java_options(folder: Path, given: Mapping[str, str], java: str, record: bool) -> str:
    """Java's options to use the archive or, if there is none, to write one."""
    shares = re.search(
        r"Server VM .*\bsharing\b", java_version(java)
    )  # the virtual machine of OpenJDK, with its archive
    own = any("SharedArchiveFile" in given.get(name, "") for name in OF_JAVA)
    if shares is None or own or re.search(r"[\s\"'\\]", str(folder)):
        return ""
    archive = folder / ARCHIVE
    _adopt(folder, archive)
    if archive.exists():
        os.utime(archive)
        return f"-XX:SharedArchiveFile={archive} {NO_WARNINGS}"
    return f"-XX:ArchiveClassesAtExit={folder / f'{os.getpid()}.new'} {NO_WARNINGS}" if record else ""


def _adopt(folder: Path, archive: Path) -> None:
    """Make the archive of an earlier run the one that is used, and remove what is no longer needed."""
    for new in folder.glob("*.new"):
        if _complete(new) and not archive.exists():
            new.rename(archive)
            for old in sorted(folder.parent.glob(f"spark-*/{ARCHIVE}"), key=lambda a: -a.stat().st_mtime)[KEPT:]:
                old.unlink(missing_ok=True)
        elif _complete(new) or time.time() - new.stat().st_mtime > ABANDONED_SECONDS:
            new.unlink(missing_ok=True)


def _complete(archive: Path) -> bool:
    with archive.open("rb") as file:
        return int.from_bytes(file.read(4), sys.byteorder) == MAGIC
