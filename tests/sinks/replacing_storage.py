"""A proxy in front of an S3-compatible server that loses the condition of `If-None-Match`: it removes the object first,
so that every such write is accepted, as by servers that do not know the header. Uploads in parts are not forwarded.

    python -m tests.sinks.replacing_storage   (the server's settings as JSON on standard input; prints its own port)

It is a process of its own because delta-rs may hold the lock of Python's interpreter while it waits for an answer.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from dblog.storage.object_storage import ObjectStorage

ROOT = Path(__file__).parents[2]
OWN_LENGTH = ("transfer-encoding", "connection", "content-length")


@contextmanager
def replacing(storage: ObjectStorage) -> Iterator[ObjectStorage]:
    """How to reach a server by way of such a proxy."""
    command = [sys.executable, "-m", "tests.sinks.replacing_storage"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        print(json.dumps(asdict(storage)), file=proxy.stdin, flush=True)
        try:
            yield replace(storage, endpoint=f"http://127.0.0.1:{int(proxy.stdout.readline())}")
        finally:
            proxy.kill()


def serve(storage: ObjectStorage) -> None:
    assert storage.endpoint is not None
    address = storage.endpoint.partition("://")[2]
    files, _ = storage.arrow_filesystem("s3://any")

    class Forward(BaseHTTPRequestHandler):
        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if "If-None-Match" in self.headers:
                with suppress(FileNotFoundError):
                    files.delete_file(self.path.partition("?")[0].lstrip("/"))
            server = http.client.HTTPConnection(address)
            server.request(self.command, self.path, body, dict(self.headers))
            answer = server.getresponse()
            data = answer.read()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in OWN_LENGTH:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            server.close()

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _forward  # noqa: N815 - names of the base class

        def log_message(self, *_: object) -> None:
            return

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
    print(proxy.server_port, flush=True)
    proxy.serve_forever()


if __name__ == "__main__":
    serve(ObjectStorage(**json.loads(sys.stdin.readline())))
