"""What ``schedctl init`` writes: a first module of tasks, its configuration, and a test of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from scheduler.errors import ConfigError


class Framework(StrEnum):
    """What the project is written with."""

    NONE = "none"
    FASTAPI = "fastapi"
    DJANGO = "django"


_TASKS = '''\
"""The task types of this project. A daemon imports this module, and so does each program that schedules."""

from schedd import Context, RetryPolicy, Scheduler, Task, task


class Greet(Task, retry=RetryPolicy(max_attempts=5)):
    """A class: its fields are the payload."""

    name: str

    def run(self, ctx: Context) -> str:
        return f"Hello {self.name}"


@task(timeout=30)
def shout(ctx: Context, text: str, mark: str = "!") -> str:
    """A function: its parameters are the payload, or results of tasks that it depends on."""
    return text.upper() + mark


def setup(jobs: Scheduler) -> None:
    """Called at each start of a daemon: schedules belong here. The key names the schedule, so there is one."""
    jobs.task(shout, "good morning").key("good-morning").daily_at(8, 0).schedule()
'''
_CONFIG = """\
# Every setting: docs/reference/configuration.md of schedd, or `schedctl config show`.
[store]
url = "sqlite:///schedd.db"

[tasks]
modules = ["tasks"]
path = ["."]
"""
_TEST = '''\
"""Run it with pytest: schedd brings the fixtures."""

from schedd import Scheduler
from scheduler.testing import Drain
from tasks import Greet, shout


def test_a_greeting_is_shouted(schedd: Scheduler, schedd_drain: Drain) -> None:
    schedd.register(Greet)
    schedd.register(shout)
    greeting = schedd.task(Greet("you")).schedule()
    shouted = schedd.task(shout).depend_on(greeting, name="text").schedule()
    assert schedd_drain(raise_errors=True) == 2
    assert schedd.result(shouted, timeout=0) == "HELLO YOU!"
'''
_SEND = '''\
"""Schedules two tasks, and waits for them: python send.py you"""

import sys

from schedd import Scheduler
from tasks import Greet, shout

jobs = Scheduler.from_config("config.toml")
greeting = jobs.task(Greet(sys.argv[1] if sys.argv[1:] else "you")).schedule()
shouted = jobs.task(shout).depend_on(greeting, name="text").schedule()
print(jobs.result(shouted, timeout=30))
jobs.close()
'''
_APP = '''\
"""uvicorn app:app, then: curl -X POST localhost:8000/greetings/you, and curl -N localhost:8000/tasks/2"""

from fastapi import FastAPI

from schedd import Scheduler
from scheduler.fastapi import Jobs, ProgressResponse, lifespan
from tasks import Greet, shout

# work=False: this app only stores tasks, and the daemon runs them.
app = FastAPI(lifespan=lifespan(Scheduler.from_config("config.toml"), work=False))


@app.post("/greetings/{name}")
async def greet(name: str, jobs: Jobs) -> dict[str, int]:
    greeting = await jobs.task(Greet(name)).schedule_async()
    return {"task": await jobs.task(shout).depend_on(greeting, name="text").schedule_async()}


@app.get("/tasks/{task_id}")
async def watch(task_id: int, jobs: Jobs) -> ProgressResponse:
    return ProgressResponse(jobs, task_id)
'''
_DJANGO_MANAGE = """\
import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
execute_from_command_line(sys.argv)
"""
_DJANGO_SETTINGS = """\
from importlib.util import find_spec
from pathlib import Path

SECRET_KEY = "replace-this"
DEBUG = True
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PLACE = Path(__file__).parent
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": PLACE / "db.sqlite3"}}
DATABASES["default"]["TEST"] = {"NAME": PLACE / "test.sqlite3"}
INSTALLED_APPS = ["scheduler.django", "greetings"]
TASKS = {"default": {"BACKEND": "scheduler.django.TaskBackend", "QUEUES": []}}

if find_spec("django.tasks") is None:  # Django 5.2 has the backport
    INSTALLED_APPS.append("django_tasks")
"""
_DJANGO_TASKS = '''\
"""The tasks of this app. The daemon, `manage.py schedd`, finds tasks.py of each installed app."""

from scheduler.django import task


@task(retry=5)
def greet(name):
    return f"Hello {name}"


@task(timeout=30)
def count_greetings(*names):
    return len(names)
'''
_DJANGO_TESTS = """\
from django.test import TransactionTestCase
from greetings.tasks import count_greetings, greet

from scheduler.django.testing import run_tasks


class Greetings(TransactionTestCase):
    def test_two_tasks_run_one_after_the_other(self):
        greeting = greet.enqueue("you")
        counting = count_greetings.using(depends_on=[greeting]).enqueue("you", "me")
        assert run_tasks() == 2
        greeting.refresh()
        counting.refresh()
        assert (greeting.return_value, counting.return_value) == ("Hello you", 2)
"""

_PLAIN = {"tasks.py": _TASKS, "config.toml": _CONFIG, "test_tasks.py": _TEST}
_APP_OF_DJANGO = {
    "greetings/__init__.py": "",
    "greetings/tasks.py": _DJANGO_TASKS,
    "greetings/tests.py": _DJANGO_TESTS,
}
_NEW_DJANGO = {"manage.py": _DJANGO_MANAGE, "settings.py": _DJANGO_SETTINGS, **_APP_OF_DJANGO}


def files(framework: Framework, place: Path) -> Mapping[str, str]:
    """The files of a first project, by their paths below ``place``; in a project of Django's, those of an app."""
    if framework is Framework.DJANGO:
        return _APP_OF_DJANGO if (place / "manage.py").exists() else _NEW_DJANGO
    return {**_PLAIN, **({"app.py": _APP} if framework is Framework.FASTAPI else {"send.py": _SEND})}


def next_steps(framework: Framework, written: Mapping[str, str]) -> list[str]:
    """The commands to go on with, in order."""
    if framework is not Framework.DJANGO:
        ends = ["uvicorn app:app"] if framework is Framework.FASTAPI else ["python send.py you"]
        return ["schedd --dev", *ends, "pytest"]
    settings = [] if "settings.py" in written else ["add to settings.py what docs/guides/django.md of schedd names"]
    return [*settings, "python manage.py migrate", "python manage.py schedd --dev", "python manage.py test"]


def write(place: Path, framework: Framework) -> Mapping[str, str]:
    """Write them, all or none; nothing that is there is touched. Raises ConfigError."""
    wanted = files(framework, place)
    there = [name for name in wanted if (place / name).exists() or (place / name).is_symlink()]
    if there:
        raise ConfigError(f"{place} has {', '.join(there)} already, so nothing is written: name an empty directory")
    made: list[Path] = []
    try:
        for name, text in wanted.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(text)
    except OSError as error:
        for path in made:
            path.unlink(missing_ok=True)
        raise ConfigError(f"{place}: nothing is written: {error.strerror or error}") from error
    return wanted
