"""The calls of builders that say where a task runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from scheduler.model.resources import Resources
from scheduler.model.spec import TaskSpec
from scheduler.operations.new_task import set_executor, set_option


class PlacingCalls:
    """Needs ``_spec``."""

    _spec: TaskSpec

    def executor(self, name: str, options: Mapping[str, Any] | None = None) -> Self:
        """Run the task as a job of ``[executors.NAME]``; ``"local"``: in a worker, whatever its kind says.

        ``options``: the executor's own, such as a partition; without them the kind's count, if it names the same
        executor. Raises ConfigError.
        """
        set_executor(self._spec, name, options)
        return self

    def resources(
        self,
        cpu: float | None = None,
        memory: int | str | None = None,
        gpu: int | None = None,
        disk: int | str | None = None,
    ) -> Self:
        """The needs of the task of the machine that its executor finds, in place of those of its kind.

        ``cpu``: cores; ``memory``, ``disk``: bytes, or a text such as ``"32G"``. Workers do not look at it. Raises
        ConfigError.
        """
        set_option(self._spec, "resources", Resources(cpu=cpu, memory=memory, gpu=gpu, disk=disk))
        return self
