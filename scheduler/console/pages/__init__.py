"""The pages and verbs of the console, one module for each subject. Importing a module registers its routes."""

from __future__ import annotations

from importlib import import_module

MODULES = (
    "basics",
    "now",
    "tasks",
    "task",
    "task_verbs",
    "logs",
    "bulks",
    "dead",
    "graphs",
    "schedules",
    "workers",
    "kinds",
    "events",
    "messages",
    "audit",
    "alerts",
    "settings",
)


def load() -> None:
    """Register the routes of all pages."""
    for name in MODULES:
        import_module(f"scheduler.console.pages.{name}")
