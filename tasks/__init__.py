"""Built-in task types, installed as scheduler.tasks. ``BUILTIN`` has them by name."""

from scheduler import Task
from scheduler.tasks.command import CommandTask
from scheduler.tasks.files import FileIdGeneratorTask
from scheduler.tasks.images import ImageResizerTask

__all__ = ["BUILTIN", "CommandTask", "FileIdGeneratorTask", "ImageResizerTask"]

BUILTIN: dict[str, type[Task]] = {cls.__name__: cls for cls in (CommandTask, FileIdGeneratorTask, ImageResizerTask)}
