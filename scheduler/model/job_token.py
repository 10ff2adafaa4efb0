"""Tokens of jobs: each is good for one claim of one store, as long as that claim lasts. Pure."""

from __future__ import annotations

import hashlib
import hmac

MIN_SECRET = 16  # characters


def job_token(secret: str, store: str, executor: str, task_id: int, claim: int) -> str:
    """The token of one claim. ``secret``: what all daemons of the store share; ``store``: the store's id."""
    text = f"schedd job\n{store}\n{executor}\n{task_id}\n{claim}"
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
