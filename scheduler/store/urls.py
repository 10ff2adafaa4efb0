"""Which databases there are, by their URLs."""

from __future__ import annotations

import sqlalchemy as sa

from scheduler.errors import ConfigError
from scheduler.store.dialect import dialect_named


def parse_url(url: str) -> sa.URL:
    """Check a database URL without connecting. Raises ConfigError."""
    if not isinstance(url, (str, sa.URL)):
        raise ConfigError(f"store url must be a text such as sqlite:///schedd.db, not {url!r:.80}")
    try:
        parsed = sa.make_url(url)
        backend = parsed.get_backend_name()
    except (sa.exc.ArgumentError, ValueError):
        raise ConfigError(
            f"store url {_masked(url)!r} is not a database URL; use sqlite:///schedd.db or postgresql+psycopg://user@host/db"
        ) from None
    if dialect_named(backend) is None:
        raise ConfigError(f"store url: {backend} is not supported; use sqlite or postgresql+psycopg")
    if backend == "postgresql" and parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise ConfigError(f"store url: driver {parsed.drivername} is not supported; use sqlite or postgresql+psycopg")
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigError(
            "store url: an in-memory SQLite database does not survive a restart; "
            "name a file (sqlite:///schedd.db), or use Scheduler.for_testing() in tests"
        )
    return parsed


def _masked(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://***@{tail}" if at else url
