"""A REST catalog of Iceberg for tests. Its tables are in a local folder, and are removed when it stops.

`scripts/iceberg_rest.sh` installs it in the virtual environment. It listens on all addresses of the machine, which it
gives no choice of: it is for tests only.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from dblog.errors import ConfigError
from dblog.testing.server_process import GUARD, OwnServer

JAVA_OPTIONS = ("-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
"""Options for a fast start instead of high speed."""


def find_iceberg_rest(root: Path | None = None) -> Path | None:
    """The catalog's jar in `root`, by default the folder of `scripts/iceberg_rest.sh`."""
    found = sorted((root or Path(sys.prefix) / "iceberg-rest").glob("*.jar"))
    return found[0] if found else None


class IcebergRest(OwnServer):
    """A REST catalog, with a SQLite database for its tables."""

    _scheme = "http"
    _shutdown = signal.SIGTERM
    _crash = signal.SIGKILL
    _taken = "Address already in use"

    def __init__(self, jar: Path | None = None) -> None:
        home = os.environ.get("JAVA_HOME")
        jar, java = jar or find_iceberg_rest(), shutil.which("java", path=f"{home}/bin" if home else None)
        if jar is None or java is None:
            raise ConfigError(
                "there is no REST catalog of Iceberg, or no Java",
                hint="run scripts/iceberg_rest.sh .venv; set JAVA_HOME",
            )
        super().__init__()
        self._jar, self._java = jar, java

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _prepare(self) -> None:
        """Create the catalog's directory. The guard is started first, so that nothing is left behind."""
        self._home = home = Path(tempfile.mkdtemp(prefix="dblog-iceberg-"))
        self._watch(GUARD, home / "pid", home)
        self.data.mkdir()

    def _command(self) -> list[str | Path]:
        """A shell that writes its process id for the guard and then becomes Java, which would not write it."""
        run: list[str | Path] = [self._java, *JAVA_OPTIONS, "-jar", self._jar]
        return ["/bin/sh", "-c", 'echo $$ >"$1"; shift; exec "$@"', "iceberg", self._own() / "pid", *run]

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.defpath,
            "LC_ALL": "C",
            "CATALOG_WAREHOUSE": str(self.data),
            "CATALOG_URI": f"jdbc:sqlite:{self._own() / 'catalog.db'}",
            "CATALOG_REST_PORT": str(self._port),
        }

    def _ready(self, pid: int, begin: int) -> bool:
        return "Started Server@" in self._said(begin)
