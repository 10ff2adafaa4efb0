"""The app of Django: its tables come with ``manage.py migrate`` and are emptied by ``flush``."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class ScheddConfig(AppConfig):
    """``"scheduler.django"`` in ``INSTALLED_APPS``."""

    name = "scheduler.django"
    label = "schedd"
    verbose_name = "schedd"
    default_auto_field = "django.db.models.AutoField"

    def ready(self) -> None:
        from scheduler.django import standard as standard  # Django 6 checks backends once its tasks are imported

        post_migrate.connect(_after_migrate, sender=self)


def _after_migrate(using: str, **given: Any) -> None:
    """``migrate`` makes or upgrades the store; what comes without a plan is ``flush``, which empties all tables."""
    from scheduler.django import stores

    for store in stores.stores_in(using):
        if "plan" in given:
            store.migrate()
        else:
            store.flush()
