"""HTTP server on loopback that serves one file, with ranges and with the faults that a test asks for."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from orchestrator.programs.record import PublicFile


@dataclass
class FileServer:
    """Content and behaviour of the server. `requests` has the Range header of each request, or None.

    It answers `status` without the content unless that is 200, cuts the connection `cut_after` bytes into the content,
    and ignores ranges without `ranges`.
    """

    content: bytes
    port: int = 0
    status: int = 200
    cut_after: int | None = None
    ranges: bool = True
    requests: list[str | None] = field(default_factory=list)

    def file(self, **changes: object) -> PublicFile:
        """Return the record of the file with the true checksum and size."""
        fields: dict[str, object] = {
            "field": "vocab_file",
            "name": "vocab.json",
            "url": f"http://127.0.0.1:{self.port}/vocab.json",
            "sha256": hashlib.sha256(self.content).hexdigest(),
            "bytes": len(self.content),
        }
        return PublicFile(**{**fields, **changes})  # type: ignore[arg-type]


@contextmanager
def file_server(content: bytes) -> Iterator[FileServer]:
    """Serve the content until the block ends."""
    served = FileServer(content)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers["Range"]
            served.requests.append(asked)
            start = int(re.findall(r"\d+", asked)[0]) if asked and served.ranges else 0
            if served.status != 200:
                self.send_error(served.status)
            elif start and start >= len(served.content):
                self.send_error(416)
            else:
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(served.content) - start))
                if start:
                    size = len(served.content)
                    self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
                self.end_headers()
                self.wfile.write(served.content[start : served.cut_after])
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
