"""The tasks framework: Django's own (6.0 and later), or its backport ``django-tasks``, by the same names."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

try:
    from django.tasks import base, task_backends
    from django.tasks import task as plain_task
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ImportError:
    try:
        from django_tasks import base, task_backends
        from django_tasks import task as plain_task
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.exceptions import InvalidTaskError as InvalidTask
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
        from django_tasks.utils import normalize_json
    except ImportError:
        raise ImproperlyConfigured(
            "this Django has no django.tasks: install its backport (pip install django-tasks), or Django 6.0 or later"
        ) from None

__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "TaskResultDoesNotExist",
    "base",
    "normalize_json",
    "plain_task",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
