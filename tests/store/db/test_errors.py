"""What a database's error says decides whether waiting may help: a daemon that starts waits, or ends with status 5."""

from __future__ import annotations

import psycopg
import pytest
import sqlalchemy as sa

from scheduler.store.db.errors import StoreError, translate

URL = sa.make_url("postgresql+psycopg://postgres@/jobs")
PASSING = (
    "server login has been failing, try again later (server_login_retry)",  # PgBouncer's, with its server away
    "server login has been failing, cached error: connect failed (server_login_retry)",
    "pgbouncer cannot connect to server",
    "server conn crashed?",
    "server connection closed",
    "server shutting down",
    "connect failed",
    "query_wait_timeout",
    "client_login_timeout (server down)",
    "the pooler is shut down now",
    "no more connections allowed (max_client_conn)",
    "connection timeout expired",
    "connection failed: could not receive data from server: Connection reset by peer",
    "connection failed: could not connect to server: Connection timed out",
    "connection failed: could not connect to server: No route to host",
    "connection failed: could not connect to server: Network is unreachable",
    "connection failed: could not connect to server: Host is down",
    "connection failed: could not send data to server: Broken pipe",
    "[Errno -3] Temporary failure in name resolution",
    "connection failed: FATAL:  the database system is starting up",
    "connection failed: FATAL:  sorry, too many clients already",
    "connection failed: could not fork new process for connection: Resource temporarily unavailable",
    "connection failed: FATAL:  out of memory",
    'connection failed: FATAL:  could not open file "base/5/2601": Too many open files in system',
    'connection failed: FATAL:  could not open file "global/pg_filenode.map": Input/output error',
    "connection failed: FATAL:  could not write init file: No space left on device",
    'connection failed: FATAL:  database "jobs" is not currently accepting connections',
)
LASTING = (
    "no such database: jobs",
    'connection failed: FATAL:  no pg_hba.conf entry for host "10.0.0.7", user "postgres", database "jobs"',
    'connection failed: FATAL:  password authentication failed for user "postgres"',
    'connection failed: FATAL:  database "jobs" does not exist',
    'invalid integer value "x" for connection option "port"',
)


def found(text: str) -> StoreError:
    """The error of a connection that could not be made."""
    error = translate(sa.exc.OperationalError(None, None, psycopg.OperationalError(text)), URL)
    assert isinstance(error, StoreError)
    return error


@pytest.mark.case(9)
def test_whether_waiting_may_help() -> None:
    wrong = [text for text in PASSING if not found(text).heals or "check [store] url" in str(found(text))]
    assert not wrong, "schedd would end when it starts"
    wrong = [text for text in LASTING if found(text).heals]
    assert not wrong, "schedd would wait for ever"
