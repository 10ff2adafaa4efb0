"""The console beside the daemon: a process of its own, started again when it dies, gone with the daemon."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import build_opener

import pytest

from scheduler.config.load import load
from scheduler.config.model import Config, ConsoleSection
from scheduler.daemon import console_process
from scheduler.daemon.console_process import ConsoleProcess
from scheduler.errors import ConfigError
from support.databases import Database, one_database
from support.processes import PATIENCE, Nursery


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path) as made:
        made.write("config.toml", '[console]\nlisten = "127.0.0.1:0"\nlabel = "staging"\n')
        yield made


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def children_of(pid: int) -> list[int]:
    """The consoles that this process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text() if entry.name.isdigit() else ") 0 0"
            is_ours = int(stat.rpartition(")")[2].split()[1]) == pid
            if is_ours and b"--until-stdin-ends" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@one_database
def test_the_daemon_serves_the_console_in_a_process_of_its_own(database: Database, nursery: Nursery) -> None:
    daemon = nursery.start("-m", "scheduler.daemon", executed=True, SCHEDD_STORE__URL=database.url)
    url = re.findall(r"http://[^\"]+", daemon.expect("console: http"))[0]
    opener = build_opener()
    with pytest.raises(Exception, match="401"):
        opener.open(url.partition("?")[0], timeout=PATIENCE)
    from http.cookiejar import CookieJar
    from urllib.request import HTTPCookieProcessor

    visitor = build_opener(HTTPCookieProcessor(CookieJar()))
    assert "staging" in visitor.open(url, timeout=PATIENCE).read().decode()
    (first,) = children_of(daemon.process.pid)
    os.kill(first, signal.SIGKILL)
    daemon.expect("starts again in 1 s")
    daemon.expect("console: http")
    (second,) = children_of(daemon.process.pid)
    assert second != first
    daemon.kill(signal.SIGTERM)
    assert daemon.end() == 0
    assert gone(second)


@one_database
def test_a_console_ends_with_a_daemon_that_was_killed(database: Database, nursery: Nursery) -> None:
    daemon = nursery.start("-m", "scheduler.daemon", executed=True, SCHEDD_STORE__URL=database.url)
    daemon.expect("console: http")
    (console,) = children_of(daemon.process.pid)
    daemon.kill(signal.SIGKILL)
    daemon.end()
    deadline = time.monotonic() + PATIENCE
    while not gone(console):
        assert time.monotonic() < deadline
        time.sleep(0.05)  # another process ends


def test_a_mistake_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    made = ConsoleProcess(
        Config(console=ConsoleSection(listen="127.0.0.1:0")),
        [sys.executable, "-c", "print('schedctl: no users'); raise SystemExit(2)"],
    )
    made._run()  # ends by itself
    assert "the console does not start until its settings are mended: no users" in caplog.text


def test_a_console_that_takes_too_much_memory_is_ended_and_starts_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(console_process, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(console_process, "MAX_MEMORY", 1)
    monkeypatch.setattr(console_process, "FIRST_PAUSE", 0.01)
    caplog.set_level(logging.INFO)
    program = "import sys; print('begun', flush=True); sys.stdin.read()"
    made = ConsoleProcess(Config(console=ConsoleSection(listen="127.0.0.1:0")), [sys.executable, "-c", program])
    made.start()
    deadline = time.monotonic() + PATIENCE
    while caplog.text.count("MiB of memory") < 2:  # the second one is ended, too
        assert time.monotonic() < deadline
        time.sleep(0.01)  # another process ends
    made.stop()
    assert "the console has ended with status -15; it starts again" in caplog.text


def test_a_console_that_takes_little_memory_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_process, "LOOK_EVERY", 0.001)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True) as process:
        made = ConsoleProcess(Config(console=ConsoleSection(listen="127.0.0.1:0")), [])
        watching = threading.Thread(target=made._watch_memory, args=(process,))
        watching.start()
        process.communicate("\n")
        watching.join(PATIENCE)
        assert not watching.is_alive()
        assert process.returncode == 0


def test_what_it_needs_has_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_process, "NEEDS", ("starlette", "nothing_like_it"))
    with pytest.raises(ConfigError, match=r"nothing_like_it: pip install 'schedd\[console\]'"):
        ConsoleProcess(Config(console=ConsoleSection(listen="127.0.0.1:0")))


def test_an_open_address_without_an_auth_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"console\.listen .*without an auth"):
        load(None, {"SCHEDD_CONSOLE__LISTEN": "0.0.0.0:8321"})
    load(None, {"SCHEDD_CONSOLE__LISTEN": "0.0.0.0:8321", "SCHEDD_CONSOLE__AUTH": "token"})
