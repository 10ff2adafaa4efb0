"""A web server that answers as a test says: for what a real Ray does not say at a test's wish."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Answers:
    """``status``, ``text`` and ``headers``: of every answer. ``asked``: method, path, headers and body of each."""

    def __init__(self) -> None:
        self.status, self.text, self.headers = 200, "[]", dict[str, str]()
        self.asked: list[tuple[str, str, dict[str, str], str]] = []
        self.url = ""


@contextmanager
def answering() -> Iterator[Answers]:
    """Such a server, while the block runs."""
    told = Answers()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            told.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            content = told.text.encode()
            self.send_response(told.status)
            for name, value in told.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_DELETE = do_GET

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    told.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
