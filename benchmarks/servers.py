"""Where benchmarks keep their tables: fresh SQLite files, fresh databases of a PostgreSQL that keeps what it commits,
and a Redis that does so, too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support import postgres_server

PLACE = os.environ.get("BENCH_DIR", "/var/tmp")  # on a disk: what is measured waits for it at each commit
# Everything as PostgreSQL sets it, durability above all; but room for the pools of all contenders.
SETTINGS = {"listen_addresses": "", "max_connections": "200", "timezone": "UTC", "log_min_messages": "warning"}
SHOWN = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")


@contextmanager
def sqlite() -> Iterator[str]:
    """A directory for files, in the form of a server's URL."""
    with tempfile.TemporaryDirectory(prefix="sb", dir=PLACE) as directory:
        yield f"sqlite:///{directory}"


@contextmanager
def postgresql(settings: Mapping[str, str] = SETTINGS) -> Iterator[str]:
    """The URL of a server: DATABASE_URL, else one from the wheel that the tests use, on a disk, with fsync on."""
    given = os.environ.get("DATABASE_URL")
    if given:
        yield given.replace("+psycopg", "")
        return
    with tempfile.TemporaryDirectory(prefix="sb", dir=PLACE) as directory:
        os.chmod(directory, 0o755)
        postgres_server.start(Path(directory), settings)
        try:
            yield f"postgresql://postgres@/postgres?host={directory}/pg"
        finally:
            postgres_server.stop(Path(directory))


@contextmanager
def redis() -> Iterator[str | None]:
    """The URL of a Redis that writes and flushes each command before it answers; None if there is no redis-server."""
    binary = shutil.which("redis-server")
    if binary is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="sb", dir=PLACE) as directory:
        socket = f"{directory}/redis.sock"
        durable = ["--appendonly", "yes", "--appendfsync", "always"]
        command = [binary, "--port", "0", "--unixsocket", socket, "--dir", directory, "--save", "", *durable]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 20
            while not os.path.exists(socket):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("redis-server did not start")
                time.sleep(0.02)
            yield f"unix://{socket}"
        finally:
            process.terminate()
            process.wait(20)


@contextmanager
def fresh(server: str, template: str | None = None) -> Iterator[str]:
    """A database of its own, empty or a copy of ``template`` (a URL that :func:`kept` gave)."""
    kind = server.partition(":")[0]
    if kind == "sqlite":
        path = Path(server.removeprefix("sqlite:///")) / f"{uuid.uuid4().hex[:12]}"
        path.mkdir()
        if template is not None:
            shutil.copyfile(template.removeprefix("sqlite:///"), path / "bench.db")
            with (path / "bench.db").open("rb") as copy:
                os.fsync(copy.fileno())  # else the first commits would have to wait for it
        yield f"sqlite:///{path}/bench.db"
        shutil.rmtree(path)
    elif kind == "postgresql":
        name = f"bench_{uuid.uuid4().hex[:12]}"
        _create(server, name, template)
        try:
            yield _database(server, name)
        finally:
            _drop(server, name)
    else:
        yield server
        import redis as client

        client.Redis.from_url(server).flushall()


@contextmanager
def kept(server: str) -> Iterator[str]:
    """A database that is to be filled and copied."""
    with fresh(server) as url:
        yield url


def _database(server: str, name: str) -> str:
    return urlunsplit(urlsplit(server)._replace(path=f"/{name}"))


def _create(server: str, name: str, template: str | None) -> None:
    source = ""
    with psycopg.connect(server, autocommit=True) as connection:
        if template is not None:
            # As files, so that the copy does not fill the log that the measurement is about to write.
            source = f'TEMPLATE "{urlsplit(template).path[1:]}"'
            if connection.info.server_version >= 150000:
                source += " STRATEGY file_copy"
        connection.execute(f'CREATE DATABASE "{name}" {source}')


def _drop(server: str, name: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def settings(server: str) -> str:
    """What the server says of itself."""
    if server.startswith("postgresql"):
        with psycopg.connect(server, autocommit=True) as connection:
            found = [
                (name, connection.execute("SELECT current_setting(%s)", (name,)).fetchone() or ("?",)) for name in SHOWN
            ]
        return "PostgreSQL: " + ", ".join(f"{name} {value}" for name, (value,) in found)
    if server.startswith("sqlite"):
        import sqlite3

        return f"SQLite {sqlite3.sqlite_version}: journal_mode WAL, synchronous FULL, in {PLACE}"
    import redis as client

    version = client.Redis.from_url(server).info("server")["redis_version"]
    return f"Redis {version}: appendonly yes, appendfsync always"
