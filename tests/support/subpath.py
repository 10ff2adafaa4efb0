"""A reverse proxy that serves something below a path, says so, and says who asks; answers pass through as they come."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@contextmanager
def below(prefix: str, target: str, *, user: str, groups: str) -> Iterator[str]:
    """The URL of the proxy, with the path. ``target``: the URL of what is behind it."""
    place = urlsplit(target)
    assert place.hostname is not None
    assert place.port is not None

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *given: object) -> None: ...

        def _pass_on(self) -> None:
            assert self.path.startswith(prefix)
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            upstream = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            headers |= {"X-Forwarded-Prefix": prefix, "X-Forwarded-User": user, "X-Forwarded-Groups": groups}
            try:
                upstream.request(self.command, self.path.removeprefix(prefix) or "/", body, headers)
                answer = upstream.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                while chunk := answer.read1(65536):
                    self.wfile.write(chunk)
                    self.wfile.flush()
            except (BrokenPipeError, ConnectionResetError):
                pass  # the browser has gone
            finally:
                upstream.close()
                self.close_connection = True

        do_GET = do_POST = _pass_on

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{prefix}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
