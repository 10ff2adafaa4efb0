"""Executors by their type: schedd's own and those of entry points; and one made of its settings."""

from __future__ import annotations

from scheduler.config.extensions import Group, find, settings_of
from scheduler.config.model import Config
from scheduler.executors import ports

EXECUTORS = Group(
    "schedd.executors",
    "executor",
    "executors",
    {
        "futures": "scheduler.executors.futures:FuturesExecutor",
        "kubernetes": "scheduler.executors.kubernetes:KubernetesExecutor",
        "process": "scheduler.executors.process:ProcessExecutor",
        "ray": "scheduler.executors.ray:RayExecutor",
        "slurm": "scheduler.executors.slurm:SlurmExecutor",
    },
)


def make_executor(config: Config, name: str) -> ports.Executor:
    """The executor ``[executors.NAME]``. Does no I/O but reading files of secrets. Raises ConfigError."""
    section = config.executors[name]
    factory: ports.ExecutorFactory = find(EXECUTORS, section.type)
    return factory(name, settings_of(factory.Settings, EXECUTORS, name, section, config.origins))
