"""click's test runner, so that it does the same with click 8.1 as with later versions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from click.testing import CliRunner, Result

# click 8.1 has to be asked to keep the two streams apart; later versions always do.
_APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}


class Ran(Result):
    """What a command did. ``output``: stdout, then stderr."""

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


class Runner(CliRunner):
    """Runs a command in this process, with ``env`` beside this process's environment."""

    def __init__(self, env: Mapping[str, str | None] | None = None) -> None:
        super().__init__(env=env, **_APART)

    def invoke(self, *arguments: Any, **options: Any) -> Ran:
        done = super().invoke(*arguments, **options)
        done.__class__ = Ran
        return done
