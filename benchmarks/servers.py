"""Where benchmark tables live: a fresh SQLite file, or a fresh database of a PostgreSQL that keeps what it commits."""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support import postgres_server

# Everything as PostgreSQL sets it, durability above all; but room for the pools of all contenders.
SETTINGS = {"listen_addresses": "", "max_connections": "200", "timezone": "UTC", "log_min_messages": "warning"}


@contextmanager
def postgresql() -> Iterator[str]:
    """The URL of a server: DATABASE_URL, else one from the wheel that the tests use, on a disk, with fsync on."""
    given = os.environ.get("DATABASE_URL")
    if given:
        yield given.replace("+psycopg", "")
        return
    with tempfile.TemporaryDirectory(prefix="sb", dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        postgres_server.start(Path(directory), SETTINGS)
        try:
            yield f"postgresql://postgres@/postgres?host={directory}/pg"
        finally:
            postgres_server.stop(Path(directory))


@contextmanager
def fresh(server: str | None) -> Iterator[str]:
    """A database of its own: a URL of SQLite, or of the server."""
    if server is None:
        with tempfile.TemporaryDirectory(prefix="sb", dir="/var/tmp") as directory:
            yield f"sqlite:///{directory}/bench.db"
        return
    name = f"bench_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def settings(server: str) -> str:
    """What the server says of itself."""
    with psycopg.connect(server, autocommit=True) as connection:
        row = connection.execute(
            "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')"
        ).fetchone()
    assert row is not None
    return f"PostgreSQL {row[0]}, fsync {row[1]}, synchronous_commit {row[2]}"
