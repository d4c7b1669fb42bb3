"""HTTP server on loopback that receives messages by `json://` URLs of Apprise."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "s3cr3t-t0ken"
"""Secret part of the URL."""


@dataclass
class MessageServer:
    """Messages that the server received. It answers with `status`."""

    port: int = 0
    status: int = 200
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.port}/{TOKEN}"

    @property
    def titles(self) -> list[str]:
        return [message["title"] for message in self.messages]


@contextmanager
def message_server() -> Iterator[MessageServer]:
    """Receive messages until the block ends."""
    server = MessageServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"]))
            if server.status == 200 and self.path == f"/{TOKEN}":
                server.messages.append(json.loads(text))
            self.send_response(server.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        server.port = listening.server_port
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
