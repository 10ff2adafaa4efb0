"""Verbs on tasks, and their words."""

from __future__ import annotations

from scheduler.store.tasks.stale import told as told
