"""Whether the database takes writes: a standby, a read-only file and a full disk answer everything else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.model.texts import listed
from scheduler.store.db.sqlite_files import is_full
from scheduler.store.db.table_names import TABLES

if TYPE_CHECKING:
    from scheduler.store.db.tx import Tx

MIN_CONNECTIONS = 4  # of a daemon: the cycle's, the one that records ends, the listener's, and one for everything else
_LACKING = """
SELECT c.relname AS name, string_agg(p.verb, ', ' ORDER BY p.verb) AS rights, CAST(current_user AS text) AS who,
       quote_ident(min(n.nspname)) AS place
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE'), ('USAGE')) p(verb)
WHERE pg_table_is_visible(c.oid) AND CASE
  WHEN c.relkind IN ('r', 'p') AND c.relname IN (SELECT value FROM json_array_elements_text(CAST(:tables AS json)))
    THEN p.verb <> 'USAGE' AND NOT has_table_privilege(c.oid, p.verb)
  WHEN c.relkind = 'S' AND c.relname LIKE 'schedd%'
    THEN p.verb = 'USAGE' AND NOT has_sequence_privilege(c.oid, 'USAGE')
  ELSE false END
GROUP BY c.relname, c.relkind ORDER BY c.relkind, c.relname
"""
_ALLOWED = """
SELECT least(CASE WHEN r.rolconnlimit < 0 THEN NULL ELSE r.rolconnlimit END,
             CASE WHEN d.datconnlimit < 0 THEN NULL ELSE d.datconnlimit END,
             CAST(current_setting('max_connections') AS int)) AS most, CAST(current_user AS text) AS who
FROM pg_roles r, pg_database d WHERE r.rolname = current_user AND d.datname = current_database() AND NOT r.rolsuper
"""


def lacking(tx: Tx) -> str | None:
    """Which rights this user lacks on which of our tables and sequences, and the remedy; None: none."""
    tables = json.dumps(TABLES)
    rows = tx.run(_LACKING, tables=tables).all()
    if not rows:
        return None
    what = listed([f"{row.rights} on {row.name}" for row in rows], 20)
    return (
        f"the database user {rows[0].who} lacks {what}: GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "
        f"{rows[0].place} TO {rows[0].who}; GRANT USAGE ON ALL SEQUENCES IN SCHEMA {rows[0].place} TO {rows[0].who}"
    )


def too_few_connections(tx: Tx) -> str | None:
    """That this user may have fewer connections than a daemon needs; None: it may have enough."""
    row = tx.run(_ALLOWED).one_or_none()
    if row is None or row.most >= MIN_CONNECTIONS:
        return None
    return (
        f"the server allows the user {row.who} {row.most} connections, and schedd needs {MIN_CONNECTIONS} at least: "
        "see CONNECTION LIMIT of the role and of the database, and max_connections"
    )


# The default: a transaction that only reads, as the console's, says nothing about the server.
_SERVER = "SELECT pg_is_in_recovery() AS standby, current_setting('default_transaction_read_only') = 'on' AS read_only"


def no_writes(tx: Tx) -> str | None:
    """Why the database takes no writes, and what to do; None if it should take them."""
    if tx.dialect.name == "sqlite":
        return _file_refuses(tx.path)
    row = tx.run(_SERVER).one()
    if row.standby:
        return "the server takes no writes, it is a standby: promote it, or name the primary in [store] url"
    if row.read_only:
        return "the server takes no writes: set default_transaction_read_only = off for it, this user and database"
    return lacking(tx) or too_few_connections(tx)


def _file_refuses(path: Path) -> str | None:
    for one in (path, path.parent):  # the write-ahead log is made beside the file
        if not os.access(one, os.W_OK):
            return f"{one} cannot be written by this user: see its owner and mode, and whether the disk is read-only"
    return f"the disk of {path} is full: free some space" if is_full(path) else None
