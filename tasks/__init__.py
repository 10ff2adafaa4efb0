"""Built-in task types, installed as scheduler.tasks. ``BUILTIN`` has them by name."""

from scheduler import Task
from scheduler.tasks.actions.creator import ActionCreatorTask
from scheduler.tasks.actions.delivery import ActionDeliveryTask
from scheduler.tasks.actions.verifier import ActionVerifierTask
from scheduler.tasks.backup import BackupTask
from scheduler.tasks.batch import BatchTask
from scheduler.tasks.cleanup import TempFileCleanupTask
from scheduler.tasks.command.task import CommandTask
from scheduler.tasks.files.file_id import FileIdGeneratorTask
from scheduler.tasks.files.image_resizer import ImageResizerTask
from scheduler.tasks.http.task import HttpTask
from scheduler.tasks.mail import EmailTask

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
