"""A project of Django's in a temporary directory, run by processes of its own: settings are of a whole process."""

from __future__ import annotations

import os
import textwrap
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import sqlalchemy as sa

from support.databases import Database
from support.warm import Warm

TIMEOUT = 100
# A process with most of Django takes 1.2 s of processor time; these read no settings as they are imported.
_warm = Warm(
    *("django.core.management", "django.contrib.admin", "django.test", "django.db.migrations.executor"),
    *("django.db.backends.sqlite3.base", "django.db.backends.postgresql.base"),
)
_SETTINGS = """
SECRET_KEY = "of-a-test"
USE_TZ = True
DEBUG = True
ROOT_URLCONF = "urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [{apps}"scheduler.django", "shop"]
TASKS = {{"default": {{"BACKEND": "scheduler.django.TaskBackend", "QUEUES": []}}}}
DATABASES = {databases!r}
"""
_MANAGE = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
_MODELS = """
from django.db import models

class Order(models.Model):
    name = models.CharField(max_length=20)
"""
_SETUP = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
"""


def has_own_tasks() -> bool:
    """Whether this Django is one with tasks, 6.0 or later."""
    return find_spec("django.tasks") is not None


class Project:
    """An app ``shop`` with a model ``Order``, on a database of the test."""

    def __init__(self, directory: Path, database: Database, settings: str = "", apps: tuple[str, ...] = ()) -> None:
        self.directory = directory
        named = "".join(f'"{app}", ' for app in (*apps, *(() if has_own_tasks() else ("django_tasks",))))
        text = _SETTINGS.format(apps=named, databases={"default": database_of(database)})
        self.write("settings.py", text + textwrap.dedent(settings))
        self.write("urls.py", "urlpatterns = []\n")
        self.write("manage.py", _MANAGE)
        self.write("shop/__init__.py", "")
        self.write("shop/models.py", _MODELS)

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")

    def migrate(self) -> None:
        self.manage("migrate", "--run-syncdb", "-v0")

    def manage(self, *args: str, status: int | None = 0) -> str:
        """What ``manage.py`` prints, errors included."""
        return self._run(["manage.py", *args], status)

    def python(self, code: str) -> str:
        """What a program in the project prints."""
        self.write("program.py", _SETUP + textwrap.dedent(code))
        return self._run(["program.py"], 0)

    def work(self) -> str:
        """Let a daemon run what is due."""
        return self.manage("schedd", "--exit-when-idle", "0.2")

    def _run(self, args: list[str], status: int | None) -> str:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SCHEDD_", "DJANGO_"))}
        module = args[0].removesuffix(".py")
        with open(os.devnull, "rb") as null, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            fds = [null.fileno(), out.fileno(), err.fileno()]
            ended = _warm.start(module, args[1:], self.directory, environ, fds).wait(TIMEOUT)
            printed, errors = [file.seek(0) or file.read() for file in (out, err)]
        assert status is None or ended == status, printed + errors
        return printed if status == 0 and module == "program" else printed + errors


def database_of(database: Database) -> dict[str, Any]:
    """The test's database as an entry of DATABASES."""
    url = sa.make_url(database.url)
    if database.is_sqlite:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.database}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.database,
        "USER": url.username or "",
        "PASSWORD": url.password or "",
        "HOST": url.host or url.query.get("host", ""),
        "PORT": str(url.port or url.query.get("port", "")),
    }
