"""Command: a program that reads the message as JSON from its standard input."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.alerts.sinks.sink import MAX_SHOWN, Body, SinkError
from scheduler.config.alerts import AlertSink
from scheduler.system.processes import kill_session


class Command:
    """Runs the program, without a shell, in a session of its own; all of it is killed when its time is over."""

    def __init__(self, sink: AlertSink, _settings: Mapping[str, Any]) -> None:
        self._sink = sink

    def deliver(self, body: Body) -> None:
        """Raises SinkError unless it ends with status 0 in time."""
        names = ("id", "event", "rule", "severity", "title")
        environ = {f"SCHEDD_ALERT_{name.upper()}": str(body[name] or "") for name in names}
        program = self._sink.command[0]
        try:
            process = subprocess.Popen(
                list(self._sink.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **environ},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise SinkError(f"{program} cannot be started: {getattr(error, 'strerror', None) or error}") from None
        try:
            _, output = process.communicate(msgspec.json.encode(body), timeout=self._sink.timeout)
        except subprocess.TimeoutExpired:
            raise SinkError(f"{program} took longer than {self._sink.timeout:g} s, and was killed") from None
        finally:
            kill_session(process.pid)  # what it has left behind, too
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        if process.returncode != 0:
            text = " ".join(output.decode("utf-8", "replace").split())[-MAX_SHOWN:]
            raise SinkError(f"{program} ended with status {process.returncode}: {text}".rstrip(": "))
