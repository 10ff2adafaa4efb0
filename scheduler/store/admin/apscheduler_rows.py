"""Reads the rows of an APScheduler 3 job store, a database of its own. They have pickles, which nothing here opens."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from scheduler.errors import ConfigError
from scheduler.model.redact import redact

TABLE = "apscheduler_jobs"


def rows(url: str, table: str = TABLE) -> Sequence[tuple[str, bytes]]:
    """(id, pickle) of each job, the next one first, those that are paused last. Raises ConfigError."""
    try:
        parsed = sa.make_url(url)
        if parsed.get_backend_name() == "postgresql" and parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() == "sqlite":  # looking makes no file
            parsed = parsed.set(database=f"file:{parsed.database}", query={"mode": "ro", "uri": "true"})
        engine = sa.create_engine(parsed, poolclass=sa.NullPool)
    except (ArgumentError, NoSuchModuleError, ImportError, ValueError) as error:
        raise ConfigError(f"{redact(str(url))!r:.200} is no database that can be read here: {error}") from None
    jobs = sa.table(table, sa.column("id"), sa.column("next_run_time"), sa.column("job_state"))
    order = (jobs.c.next_run_time.is_(None), jobs.c.next_run_time, jobs.c.id)
    try:
        with engine.connect() as connection:
            found = connection.execute(sa.select(jobs.c.id, jobs.c.job_state).order_by(*order)).fetchall()
    except SQLAlchemyError as error:
        text = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        raise ConfigError(f"the job store at {redact(str(url))} cannot be read: {text}") from None
    finally:
        engine.dispose()
    return [(str(row.id), bytes(row.job_state)) for row in found]
