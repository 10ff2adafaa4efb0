"""A transport in a SQLite file: it outlives the processes that use it, as a server does. For the conformance suite."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from scheduler.transports.ports import (
    Ack,
    Dead,
    Delivery,
    Finding,
    Limits,
    Outgoing,
    Published,
    Refused,
    Retry,
    Settled,
    TransportError,
    Verdict,
)

VISIBILITY = 0.5  # seconds
MAX_DELAY = 5.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
  id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, body BLOB, headers TEXT, visible_at REAL DEFAULT 0,
  attempts INTEGER DEFAULT 0, receipt TEXT);
CREATE TABLE IF NOT EXISTS dead (body BLOB, reason TEXT);
"""


class SpoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    path: str


class SpoolSource:
    Settings: ClassVar[type[msgspec.Struct]] = SpoolSettings
    limits = Limits(
        max_size=100_000, max_batch=10, max_delay=MAX_DELAY, visibility=VISIBILITY,
        retention=86_400.0, has_dlq=True, counts=True,
    )  # fmt: skip

    def __init__(self, _name: str, settings: SpoolSettings, /) -> None:
        self.spool = Spool(Path(settings.path))

    def receive(self, most: int, _wait: float) -> Sequence[Delivery]:
        now, found = time.time(), []
        with self.spool.open() as connection:
            rows = connection.execute(
                "SELECT id, name, body, headers, attempts FROM messages WHERE visible_at <= ? ORDER BY id LIMIT ?",
                (now, most),
            ).fetchall()
            for number, name, body, headers, attempts in rows:
                receipt = f"{number}:{attempts + 1}"
                connection.execute(
                    "UPDATE messages SET visible_at = ?, attempts = attempts + 1, receipt = ? WHERE id = ?",
                    (now + VISIBILITY, receipt, number),
                )
                found.append(Delivery(
                    message_id=name, body=body, receipt=receipt, attempts=attempts + 1, headers=json.loads(headers),
                ))  # fmt: skip
        return found

    def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Settled]:
        with self.spool.open() as connection:
            return [self._settle(connection, verdict) for verdict in verdicts]

    def _settle(self, connection: sqlite3.Connection, verdict: Verdict) -> Settled:
        there = connection.execute("SELECT id, body FROM messages WHERE receipt = ?", (verdict.receipt,)).fetchone()
        if there is None:
            return Settled(verdict.receipt, "unknown receipt", gone=True)
        if isinstance(verdict, Retry):
            if verdict.after > MAX_DELAY:
                return Settled(verdict.receipt, "the delay is above the cap")
            at = time.time() + verdict.after
            connection.execute("UPDATE messages SET visible_at = ?, receipt = NULL WHERE id = ?", (at, there[0]))
            return Settled(verdict.receipt)
        if isinstance(verdict, Dead):
            connection.execute("INSERT INTO dead VALUES (?, ?)", (there[1], verdict.reason))
        else:
            assert isinstance(verdict, Ack)
        connection.execute("DELETE FROM messages WHERE id = ?", (there[0],))
        return Settled(verdict.receipt)

    def extend(self, receipts: Sequence[str], seconds: float) -> Sequence[Settled]:
        at, found = time.time() + seconds, []
        with self.spool.open() as connection:
            for receipt in receipts:
                done = connection.execute("UPDATE messages SET visible_at = ? WHERE receipt = ?", (at, receipt))
                gone = done.rowcount == 0
                found.append(Settled(receipt, "unknown receipt" if gone else None, gone=gone))
        return found

    def redrive(self, most: int) -> int:
        with self.spool.open() as connection:
            rows = connection.execute("SELECT rowid, body FROM dead LIMIT ?", (most,)).fetchall()
            for number, body in rows:
                connection.execute(
                    "INSERT INTO messages (name, body, headers) VALUES (?, ?, '{}')", (f"again{number}", body)
                )
                connection.execute("DELETE FROM dead WHERE rowid = ?", (number,))
        return len(rows)

    def check(self) -> Sequence[Finding]:
        with self.spool.open():
            return [Finding(True, "there")]

    def close(self) -> None:
        pass


class SpoolSink:
    """Its file takes the same key twice. What says ``refuse`` is refused for good."""

    Settings: ClassVar[type[msgspec.Struct]] = SpoolSettings
    limits = Limits(max_size=100_000, max_batch=7, max_batch_size=300_000, overhead=100, orders=True)

    def __init__(self, _name: str, settings: SpoolSettings, /) -> None:
        self.spool = Spool(Path(settings.path))

    def publish(self, batch: Sequence[Outgoing]) -> Sequence[Published | Refused]:
        with self.spool.open() as connection:
            return [self._publish(connection, one) for one in batch]

    def _publish(self, connection: sqlite3.Connection, one: Outgoing) -> Published | Refused:
        if b"refuse" in one.body:
            return Refused(one.key, "it is refused", final=True)
        connection.execute("INSERT INTO messages (name, body, headers) VALUES (?, ?, '{}')", (one.key, one.body))
        return Published(one.key)

    def check(self) -> Sequence[Finding]:
        with self.spool.open():
            return [Finding(True, "there")]

    def close(self) -> None:
        pass


class Spool:
    """The file; ``down`` beside it: the server is away."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> Any:
        if self.path.with_name("down").exists():
            raise TransportError("the spool is away")
        connection = sqlite3.connect(self.path, timeout=30)
        connection.executescript(_SCHEMA)
        return _Transaction(connection)


class _Transaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def __enter__(self) -> sqlite3.Connection:
        self.connection.execute("BEGIN IMMEDIATE")
        return self.connection

    def __exit__(self, kind: object, *_: object) -> None:
        with closing(self.connection):
            self.connection.commit() if kind is None else self.connection.rollback()


class SpoolRig:
    """What the conformance suite needs of a transport beside its source: see ``tests/transports/conformance``."""

    name = "spool"
    type_name = "spool"
    factory = "support.spool:SpoolSource"
    visibility = VISIBILITY

    def __init__(self, place: Path) -> None:
        self.spool = Spool(place / "spool.db")

    @property
    def table(self) -> str:
        """The transport's own settings in ``[sources.orders]``."""
        return f'path = "{self.spool.path}"\n'

    def send(self, body: bytes, headers: Mapping[str, str] | None = None, message_id: str | None = None) -> str:
        with self.spool.open() as connection:
            made = connection.execute(
                "INSERT INTO messages (name, body, headers) VALUES (?, ?, ?)",
                (message_id, body, json.dumps(headers or {})),
            )
            name = message_id or f"m{made.lastrowid}"
            connection.execute("UPDATE messages SET name = ? WHERE id = ?", (name, made.lastrowid))
        return name

    def bodies(self) -> list[bytes]:
        with self.spool.open() as connection:
            return [row[0] for row in connection.execute("SELECT body FROM messages ORDER BY id")]

    def left(self) -> int:
        with self.spool.open() as connection:
            return int(connection.execute("SELECT count(*) FROM messages").fetchone()[0])

    def dead(self) -> list[bytes]:
        with self.spool.open() as connection:
            return [row[0] for row in connection.execute("SELECT body FROM dead")]

    def stop_server(self) -> None:
        self.spool.path.with_name("down").touch()

    def start_server(self) -> None:
        self.spool.path.with_name("down").unlink()

    def close(self) -> None:
        """Nothing runs."""
