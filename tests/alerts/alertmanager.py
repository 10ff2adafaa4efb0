"""An Alertmanager for tests: Debian's, or where that is not installed a server that takes what it would take."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PROGRAM = "prometheus-alertmanager"
PATIENCE = 60.0


class Alertmanager:
    """``active()``: what fires, as ``GET /api/v2/alerts`` says it."""

    def __init__(self, place: Path) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._server: ThreadingHTTPServer | None = None
        if shutil.which(PROGRAM) is not None:
            self._start(place)
        else:
            self._stand_in()

    def _start(self, place: Path) -> None:
        (place / "alertmanager.yml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        options = {
            "config.file": place / "alertmanager.yml",
            "storage.path": place / "data",
            "web.listen-address": f"127.0.0.1:{port}",
            "cluster.listen-address": "",
        }
        self._process = subprocess.Popen(
            [PROGRAM, *(f"--{name}={value}" for name, value in options.items())],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.active()
                return
            except OSError:
                assert self._process.poll() is None, "it has ended"
                assert time.monotonic() < deadline, "it does not answer"
                time.sleep(0.05)

    def _stand_in(self) -> None:
        alerts: dict[str, Any] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fits = all(
                    row["labels"]["alertname"]
                    and all(isinstance(v, str) for v in {**row["labels"], **row["annotations"]}.values())
                    and datetime.fromisoformat(row.get("endsAt", "2026-01-01T00:00:00Z")).tzinfo is not None
                    for row in rows
                )
                for row in rows if fits else []:
                    alerts[json.dumps(row["labels"], sort_keys=True)] = row
                self.send_response(200 if fits and self.path == "/api/v2/alerts" else 400)
                self.end_headers()

            def do_GET(self) -> None:
                now = datetime.now(UTC)
                found = [a for a in alerts.values() if "endsAt" not in a or datetime.fromisoformat(a["endsAt"]) > now]
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def active(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts?active=true", timeout=10) as answer:
            return list(json.load(answer))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
