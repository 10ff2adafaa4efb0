from importlib.util import find_spec
from pathlib import Path

SECRET_KEY = "of-an-example"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path(__file__).parent / "db.sqlite3"}}
DATABASES["default"]["TEST"] = {"NAME": Path(__file__).parent / "test.sqlite3"}
INSTALLED_APPS = ["scheduler.django", "shop"]
TASKS = {"default": {"BACKEND": "scheduler.django.TaskBackend", "QUEUES": []}}

if find_spec("django.tasks") is None:  # Django 5.2 has the backport
    INSTALLED_APPS.append("django_tasks")
