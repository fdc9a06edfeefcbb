"""Checks for a Java that Spark can run on, before Spark starts: Spark's own error is hard to understand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from dblog.errors import ConfigError

LEAST_JAVA = 17
"""The oldest version of Java that Spark 4 runs on."""
_GET_JAVA = (
    f"install Java {LEAST_JAVA} or newer (Debian: apt install openjdk-17-jre-headless) or point JAVA_HOME to one"
)


def check_java() -> None:
    """Raise ConfigError unless there is a Java that Spark can run on."""
    home, java = os.environ.get("JAVA_HOME"), found_java()
    if java is None:
        where = f"JAVA_HOME is {home!r}, but there is no bin/java in it" if home else "there is no java on the PATH"
        raise ConfigError(f"Spark needs Java: {where}", hint=_GET_JAVA)
    version = re.search(r'version "(?:1\.)?(\d+)', java_version(java))
    if version is None:
        raise ConfigError(f"{java!r} does not tell its version", hint=_GET_JAVA)
    if int(version[1]) < LEAST_JAVA:
        raise ConfigError(f"Spark needs Java {LEAST_JAVA} or newer, and {java!r} is Java {version[1]}", hint=_GET_JAVA)


def found_java() -> str | None:
    """The path of the Java that Spark's scripts use; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home, "bin", "java")) if home else "java")


@cache
def java_version(java: str) -> str:
    """What `java -version` prints: a line each for the version, the runtime and the virtual machine."""
    shown = subprocess.run([java, "-version"], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return shown.stderr + shown.stdout
