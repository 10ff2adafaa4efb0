"""Columns of checkpoints and waits; the dicts that ``-o json`` prints of them."""

from __future__ import annotations

from scheduler.client.json_views import checkpoint_view as checkpoint_view
from scheduler.client.json_views import wait_view as wait_view

CHECKPOINT_COLUMNS = ("name", "type", "recorded_at", "seconds", "size", "value", "error", "note")
WAIT_COLUMNS = ("name", "event", "task", "items", "open", "since", "until")
