"""The verbs on a task that have a module each, ``verb_NAME.py``. Every door finds them here, by their names.

``cli/verb_NAME.py`` has the command, ``console/templates/verb_NAME.html`` the button on the task's page.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple

import msgspec

from scheduler import operations
from scheduler.errors import ConfigError
from scheduler.model.state import TaskState
from scheduler.operations.desk import Desk
from scheduler.operations.new_task import Act

_PREFIX = "verb_"


class TaskVerb(NamedTuple):
    """``act``: the operation, whose docstring is the summary. ``needs``: the verb of a role that it needs.

    ``states``: of tasks that have the button; ``done``: what people are told; ``args``: the operation's arguments.
    """

    act: Callable[[Desk, int, Any], object]
    needs: str
    states: Collection[TaskState]
    done: str
    args: type[Act] = Act

    def __call__(self, desk: Desk, task_id: int, given: Mapping[str, Any], *, strict: bool = True) -> str:
        """Do it with these arguments. ``strict``: they are no texts of a form. Raises ConfigError, and as it does."""
        try:
            read = msgspec.convert(given, self.args, strict=strict)
        except msgspec.ValidationError as error:
            raise ConfigError(str(error)) from None
        self.act(desk, task_id, read)
        return self.done.format(id=task_id)


@cache
def task_verbs() -> Mapping[str, TaskVerb]:
    """The verbs there are, by name."""
    names = [one.name for one in iter_modules(operations.__path__) if one.name.startswith(_PREFIX)]
    return {name.removeprefix(_PREFIX): import_module(f"scheduler.operations.{name}").VERB for name in names}
