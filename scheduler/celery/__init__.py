"""For programs written for Celery: the same names, made of schedd's tasks and edges. It needs no Celery."""

from scheduler.celery.app import Celery, crontab, shared_task
from scheduler.celery.apps import AsyncResult, GroupResult
from scheduler.celery.task import Request, Signature, Task, chain, chord, group

__all__ = [
    "AsyncResult",
    "Celery",
    "GroupResult",
    "Request",
    "Signature",
    "Task",
    "chain",
    "chord",
    "crontab",
    "group",
    "shared_task",
]
