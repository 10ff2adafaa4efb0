"""An HTTP endpoint that takes events, and keeps them."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any


class Endpoint:
    """Answers with ``status`` and ``headers``, and keeps what came. One whose data says ``refuse`` is answered 400."""

    def __init__(self) -> None:
        self.status, self.headers = 204, dict[str, str]()
        self.came: list[tuple[dict[str, str], Any]] = []
        self.port = 0
        self._server: http.server.ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                event = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if isinstance(event, dict) and "refuse" in json.dumps(event.get("data")):
                    self.send_error(400, "it is refused")
                    return
                outer.came.append(({k.lower(): v for k, v in self.headers.items()}, event))
                self.send_response(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """A client that was killed is none of its business."""

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
