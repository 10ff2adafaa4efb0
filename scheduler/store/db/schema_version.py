"""The schema that this program is made for, and how a database says which one it has."""

from __future__ import annotations

HEAD = "0013"
VERSION_TABLE = "schedd_version"
VERSION_ROWS = f"SELECT version_num FROM {VERSION_TABLE}"
VERSION = f"(SELECT min(version_num) FROM {VERSION_TABLE})"
KNOWN = f"{VERSION} IN ('{HEAD}', '{int(HEAD) + 1:04}')"  # in SQL; of the column itself SQLite makes an index each time
SQLITE_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"


def knows(head: str, version: str | None) -> bool:
    """Whether a program that was made for the revision ``head`` works on this one."""
    return version is not None and version in (head, f"{int(head) + 1:04}")
