"""Which databases there are, by their URLs."""

from __future__ import annotations

import os
from urllib.parse import quote, quote_plus

from scheduler.errors import ConfigError
from scheduler.model.redact import RAW_AT, TWO_SLASHES, has_raw_at, is_secret, shown_url
from scheduler.store.db.dialect import dialect_named
from scheduler.store.db.lazy import sa


def parse_url(url: str) -> sa.URL:
    """Check a database URL without connecting. Raises ConfigError."""
    if not isinstance(url, (str, sa.URL)):
        raise ConfigError(f"store url must be a text such as sqlite:///schedd.db, not {url!r:.80}")
    try:
        parsed = sa.make_url(url)
        backend = parsed.get_backend_name()
    except (sa.exc.ArgumentError, ValueError):
        raise ConfigError(
            f"store url {shown_url(str(url))!r} is not a database URL; use sqlite:///schedd.db or postgresql+psycopg://user@host/db"
        ) from None
    if dialect_named(backend) is None:
        raise ConfigError(f"store url: {backend} is not supported; use sqlite or postgresql+psycopg")
    if has_raw_at(str(url)):
        raise ConfigError(f"store url: {RAW_AT}")
    if backend == "postgresql" and parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise ConfigError(f"store url: driver {parsed.drivername} is not supported; use sqlite or postgresql+psycopg")
    if backend == "postgresql":
        try:
            parsed.get_dialect()().create_connect_args(parsed)
        except (sa.exc.ArgumentError, ValueError) as error:
            raise ConfigError(f"store url: {error}; several hosts are host=a,b&port=1,2 or host=a:1&host=b:2") from None
    if backend == "sqlite" and parsed.host:
        raise ConfigError(f"store url: {TWO_SLASHES.format('/'.join(filter(None, (parsed.host, parsed.database))))}")
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigError(
            "store url: an in-memory SQLite database does not survive a restart; "
            "name a file (sqlite:///schedd.db), or use Scheduler.for_testing() in tests"
        )
    return _settled(parsed) if backend == "sqlite" else parsed


def _settled(url: sa.URL) -> sa.URL:
    """With an absolute path: whoever changes the directory later does not change the database."""
    path = url.database or ""
    try:
        return url if path.startswith(("/", "file:")) else url.set(database=os.path.join(os.getcwd(), path))
    except OSError:  # the directory is gone: opening says so
        return url


def shown(url: sa.URL) -> str:
    """The URL as it may be shown; of SQLite the file."""
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    return shown_url(url.render_as_string(hide_password=False))


def secrets_of(url: sa.URL) -> list[str]:
    """The secrets in the URL, in each spelling in which a driver may repeat them.

    Not one that is also the name of the user, the host or the database: it would be missed where that is meant.
    """
    values = [str(url.password or "")]
    for name, given in url.query.items():
        if is_secret(name):
            values += [given] if isinstance(given, str) else given
    known = {url.username, url.host, url.database, ""}
    return [spelt for value in values if value not in known for spelt in {value, quote(value), quote_plus(value)}]
