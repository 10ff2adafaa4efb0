"""Built-in task types, installed as scheduler.tasks. ``BUILTIN`` has them by name."""

from scheduler import Task
from scheduler.tasks.action_creator import ActionCreatorTask
from scheduler.tasks.action_verifier import ActionVerifierTask
from scheduler.tasks.backup import BackupTask
from scheduler.tasks.batch import BatchTask
from scheduler.tasks.cleanup import TempFileCleanupTask
from scheduler.tasks.command import CommandTask
from scheduler.tasks.delivery import ActionDeliveryTask
from scheduler.tasks.files import FileIdGeneratorTask
from scheduler.tasks.images import ImageResizerTask
from scheduler.tasks.mail import EmailTask
from scheduler.tasks.requests_to import HttpTask

_TYPES = (
    ActionCreatorTask,
    ActionDeliveryTask,
    ActionVerifierTask,
    BackupTask,
    BatchTask,
    CommandTask,
    EmailTask,
    FileIdGeneratorTask,
    HttpTask,
    ImageResizerTask,
    TempFileCleanupTask,
)
__all__ = [
    "BUILTIN",
    "ActionCreatorTask",
    "ActionDeliveryTask",
    "ActionVerifierTask",
    "BackupTask",
    "BatchTask",
    "CommandTask",
    "EmailTask",
    "FileIdGeneratorTask",
    "HttpTask",
    "ImageResizerTask",
    "TempFileCleanupTask",
]

BUILTIN: dict[str, type[Task]] = {cls.__name__: cls for cls in _TYPES}
