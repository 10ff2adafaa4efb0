"""SQLite's gate and doorbell, at the end of a program that has stopped nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from scheduler.store.doorbell import SocketBell

# What is registered first runs last, as a thread of an engine does that nobody has stopped.
PROGRAM = """
import atexit, sys
from pathlib import Path

@atexit.register
def last():
    passage.__exit__(None, None, None)
    bell.ring()
    with gate.pass_through(timeout=1.0):
        print("passed")

from scheduler.store.doorbell import SocketBell
from scheduler.store.gate import Gate

gate, bell = Gate(Path(sys.argv[1])), SocketBell(Path(sys.argv[1]))
passage = gate.pass_through()
passage.__enter__()
"""


def test_both_serve_until_the_very_end(tmp_path: Path) -> None:
    heard = threading.Event()
    bell = SocketBell(tmp_path)
    bell.listen("somebody", heard.set)
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("passed\n", "")
    assert heard.wait(10.0)
    bell.close()
