"""A store of signed actions in a directory, each under its id, a file of JSON each.

::

    <tn_id>/<ab>/a1~ab....json     <ab> are the first two characters after ``a1~``
    tmp/                           what is being written

Any number of processes may use it at a time: a file is written as a whole, and an id stands for one content.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from scheduler.system.files import sync_directory
from scheduler.tasks.actions.tokens import ACTION_ID, Unverified
from scheduler.tasks.files.atomic import Staging, read_json
from scheduler.tasks.settings import required


class ActionStore:
    """The store in ``root``, which is made when something is first put there."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._staging = Staging(self.root / "tmp")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> ActionStore:
        """The store that ``[actions] directory`` names. Raises PermanentError when the setting is missing."""
        return cls(required(settings, "actions", "directory", '"/var/lib/schedd/actions"'))

    def path(self, tn_id: int, action_id: str) -> Path:
        """Where an action is, or would be. Raises ValueError for what is no id: none leads out of here."""
        if not ACTION_ID.match(action_id):
            raise ValueError(f"{action_id!r} is not an action id: a1~ and 43 characters of base64url")
        return self.root / str(int(tn_id)) / action_id[3:5] / f"{action_id}.json"

    def get(self, tn_id: int, action_id: str) -> dict[str, Any] | None:
        """``{"action_id", "token", "origin", "iss", "iat", "t", "c", "p", "a", "exp"}``; None if it is not there."""
        found: dict[str, Any] | None = read_json(self.path(tn_id, action_id))
        return found

    def put(self, tn_id: int, action: Unverified, origin: str) -> dict[str, Any]:
        """Store an action; one that is there stays. ``origin``: ``own`` or ``received``, whose signature was right."""
        path = self.path(tn_id, action.action_id)
        known: dict[str, Any] | None = read_json(path)
        if known is not None:
            sync_directory(path.parent)  # the process that stored it may have been killed before it synced
            return known
        record = {"action_id": action.action_id, "token": action.token, "origin": origin, **action.claims._asdict()}
        self._staging.write(path, msgspec.json.encode(record))
        return record
