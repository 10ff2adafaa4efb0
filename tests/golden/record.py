"""Records what the doors answer on one filled store: ``make golden OUT=before.jsonl``, later ``OUT=after.jsonl``.

A line for each call: every command of schedctl as table, json and jsonl, every page's ``.json``, every verb of the
console, every public method of a Scheduler. Each call has a copy of the store of its own and a clock that stands
still. Recorded are the answer, the status, the new rows of the audit, the rows of each table that changed, and how
many statements the call executed. ``diff before.jsonl after.jsonl`` is the proof that a rebuilding changed nothing.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import click
import sqlalchemy as sa

from golden.calls import CHANGING, FORMATS, METHODS, PAGES, POSTS, READING
from scheduler import Scheduler
from scheduler.ports import SystemClock
from support.consoles import Answer, ask, console_on, post
from support.databases import Database
from support.filled import Filled, fill
from support.runner import Runner

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
# Texts that differ between two recordings of the same code.
CHANGES_ALWAYS = (
    (re.compile(r"\b[0-9a-f]{32}\b"), "HEX32"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "HEX16"),
    (re.compile(r"(?:\b|(?<=\\n))(?=[0-9a-f]*[0-9])[0-9a-f]{12}\b"), "HEX12"),
    (re.compile(rf"{re.escape(socket.gethostname())}:\d+"), "HOST:PID"),
    (re.compile(r"(?<=, line )\d+"), "LINE"),
    (re.compile(r"\d+ MiB free"), "FREE"),
    (re.compile(r"(?<=schedd_scrape_seconds )[\d.e-]+"), "SECONDS"),
    (re.compile(r"(?<=pid[ \"=:])\s*\d+"), "PID"),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "ADDRESS"),
)


class Store:
    """A filled SQLite file, copied for each call."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.original = place / "original.db"
        with mock.patch("time.time", return_value=NOW.timestamp()):
            self.filled: Filled = fill(f"sqlite:///{self.original}")
        with closing(sqlite3.connect(self.original)) as raw:
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.path = place / "jobs.db"
        self.url = f"sqlite:///{self.path}"

    def renew(self) -> None:
        for one in self.place.glob("jobs.db*"):
            shutil.rmtree(one) if one.is_dir() else one.unlink()
        shutil.copy(self.original, self.path)

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        with closing(sqlite3.connect(self.path)) as raw:
            names = [n for (n,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
            return {n: raw.execute(f'SELECT * FROM "{n}"').fetchall() for n in names if not n.startswith("sqlite_")}


class Frozen:
    """The clock that stands still."""

    steps = False

    @staticmethod
    def monotonic() -> float:
        return 1000.0

    def now(self) -> int:
        return int(NOW.timestamp() * 1_000_000)


def same(text: str, place: Path) -> str:
    text = text.replace(str(place), "PLACE")
    for pattern, name in CHANGES_ALWAYS:
        text = pattern.sub(name, text)
    return text


class Recorder:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.lines: list[dict[str, Any]] = []

    def record(self, name: str, call: Callable[[], Any]) -> None:
        self.store.renew()
        before = self.store.tables()
        count = 0

        def counted(*_: Any) -> None:
            nonlocal count
            count += 1

        sa.event.listen(sa.Engine, "before_cursor_execute", counted)
        try:
            answer = call()
        except Exception as error:
            answer = {"raised": f"{type(error).__name__}: {error}"}
        finally:
            sa.event.remove(sa.Engine, "before_cursor_execute", counted)
        after = self.store.tables()
        changed = {}
        for table, rows in after.items():
            old, new = set(before.get(table, ())), set(rows)
            if old != new:
                changed[table] = {"gone": len(old - new), "new": len(new - old)}
        audit = [repr(row) for row in after["schedd_audit"] if row not in before["schedd_audit"]]
        line = {"call": name, "answer": answer, "changed": changed, "audit": audit, "statements": count}
        self.lines.append(json.loads(same(json.dumps(line, default=repr, sort_keys=True), self.store.place)))


def given(text: str, filled: Filled) -> str:
    return text.format(**filled._asdict())


def commands(recorder: Recorder) -> None:
    from scheduler.cli.root import root

    store = recorder.store
    config = store.place / "schedd.toml"
    config.touch()
    environment = {
        "SCHEDD_CONFIG": str(config), "SCHEDD_STORE__URL": store.url, "NO_COLOR": "1", "COLUMNS": "120",
        "SCHEDD_DEBUG": "", "USER": "ada", "LOGNAME": "ada",
    }  # fmt: skip

    def run(line: list[str]) -> dict[str, Any]:
        done = Runner(env=environment).invoke(root, line)
        return {"status": done.exit_code, "stdout": done.stdout, "stderr": done.stderr}

    for text in READING:
        words = shlex.split(given(text, store.filled))
        for form in FORMATS:
            recorder.record(f"schedctl -o {form} {text}", lambda w=words, f=form: run(["-o", f, *w]))  # type: ignore[misc]
    for text in CHANGING:
        words = shlex.split(given(text, store.filled))
        recorder.record(f"schedctl -o json {text}", lambda w=words: run(["-o", "json", *w]))  # type: ignore[misc]
    for name, command in below(root):
        done = Runner(env=environment).invoke(root, [*name.split(), "--help"])
        del command
        recorder.lines.append({"call": f"schedctl {name} --help", "answer": done.stdout})


def below(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for one in command.list_commands(context):
        found = command.get_command(context, one)
        assert found is not None
        yield from below(found, f"{name} {one}".strip())


def pages(recorder: Recorder) -> None:
    store = recorder.store

    def on(work: Callable[[Any], Answer]) -> dict[str, Any]:
        with console_on(Database(store.url, "sqlite")) as gate:
            done = work(gate)
        text = done.text if done.headers.get("content-type", "").startswith("application/json") else done.text[:300]
        return {"status": done.status, "body": text, "location": done.headers.get("location")}

    for path in PAGES:
        where = given(path, store.filled)
        recorder.record(f"GET {path}", lambda p=where: on(lambda gate: ask(gate, "GET", p)))  # type: ignore[misc]
    for path, form in POSTS:
        where = given(path, store.filled)
        recorder.record(f"POST {path} {form}", lambda p=where, f=form: on(lambda gate: post(gate, p, **f)))  # type: ignore[misc]


def methods(recorder: Recorder) -> None:
    store = recorder.store

    def on(text: str) -> Any:
        jobs = Scheduler(store.url, clock=Frozen())  # type: ignore[arg-type]
        try:
            return repr(eval(given(text, store.filled), {"jobs": jobs}))
        finally:
            jobs.close()

    for text in METHODS:
        recorder.record(text, lambda t=text: on(t))  # type: ignore[misc]


def record(*parts: Callable[[Recorder], None]) -> list[dict[str, Any]]:
    """Record these parts of the doors."""
    with tempfile.TemporaryDirectory(prefix="golden") as place:
        recorder = Recorder(Store(Path(place)))
        with mock.patch.object(SystemClock, "now", Frozen.now):
            for part in parts:
                part(recorder)
    return recorder.lines


def main(out: Path) -> None:
    lines = record(commands, pages, methods)
    out.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    print(f"{len(lines)} calls recorded in {out}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
