"""Django's tasks on schedd: a real project, its daemon, its tests, on Django's own or the backport's framework."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.databases import Database, one_database
from support.django_project import Project
from support.session import locked, shared_directory

pytestmark = pytest.mark.timeout(300)  # whole programs, which a busy machine takes long to start
EXAMPLE = Path(__file__).parents[2] / "examples" / "django"
TASKS = """
from scheduler.django import task
from shop.models import Order

@task
def ship(order_id, note=""):
    return Order.objects.get(pk=order_id).name + note

@task(takes_context=True)
def tried(context, fail_until):
    if context.attempt < fail_until:
        raise ValueError(f"attempt {context.attempt}")
    return [context.attempt, len(context.task_result.errors), context.task_result.worker_ids != []]

@task
def broken(word="no"):
    raise ValueError(word)

@task
async def slowly(n):
    return {"n": n, "names": [order.name async for order in Order.objects.all()]}

@task
def odd():
    return object()

@task
def note(word):
    from pathlib import Path
    with Path("ran.txt").open("a") as file:
        file.write(word + "\\n")
"""


@pytest.fixture
def shop(database: Database, tmp_path: Path, request: pytest.FixtureRequest) -> Project:
    made = Project(tmp_path, database)
    made.write("shop/tasks.py", TASKS)
    if database.is_sqlite:
        shutil.copyfile(request.getfixturevalue("migrated"), database.path)
    else:
        made.migrate()
    return made


@pytest.fixture(scope="session")
def migrated(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the tables of schedd and of the project, made once in a run."""
    made = shared_directory() / "django.db"
    with locked("django.lock"):
        if not made.exists():
            draft = shared_directory() / "django-draft.db"
            shutil.copyfile(_sqlite_template, draft)
            Project(tmp_path_factory.mktemp("shop"), Database(f"sqlite:///{draft}", "sqlite")).migrate()
            with closing(sqlite3.connect(draft)) as connection:
                connection.execute("pragma wal_checkpoint(truncate)")  # so that the file is all there is
            draft.rename(made)
    return made


def answers(project: Project, code: str) -> Any:
    """The JSON that a program prints as its last line."""
    return json.loads(project.python(code).splitlines()[-1])


@pytest.mark.both_databases
def test_our_own_api_takes_djangos_connection(shop: Project, database: Database) -> None:
    """Edges, keys and batches are stored and rolled back with Django's rows; without a transaction in their own."""
    found = answers(
        shop,
        f"""
        import json
        from django.db import connection, connections, transaction
        from scheduler import Scheduler, UnknownDependencyError, task
        from shop.models import Order

        jobs = Scheduler({database.url!r})

        @task
        def hello(ctx, x: int = 0):
            return x

        jobs.register(hello)
        own = connections["default"]
        with transaction.atomic():
            Order.objects.create(name="cup")
            a = jobs.task(hello, x=1).schedule(connection=own)
            b = jobs.task(hello, x=2).key("k").depend_on([a]).schedule(connection=connection)
        before = [int(a), int(b), str(jobs.get_task(a).state), str(jobs.get_task(b).state)]
        try:
            with transaction.atomic():
                Order.objects.create(name="lost")
                c = jobs.task(hello, x=3).schedule(connection=own)
                jobs.task(hello, x=4).key("lost").depend_on([c]).schedule(connection=own)
                with jobs.batch(connection=own) as batch:
                    first = batch.task(hello, x=5)
                    batch.task(hello, x=6).depend_on([first]).key("too", conflict="replace")
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        with transaction.atomic():
            try:
                jobs.task(hello).depend_on([99999]).schedule(connection=own)
            except UnknownDependencyError:
                pass
            Order.objects.create(name="after")  # the transaction goes on
            again = jobs.task(hello, x=4).key("lost").schedule(connection=own)
            emitted = jobs.emit_event("done", connection=own)
        alone = jobs.task(hello, x=7).schedule(connection=own)
        stored = sorted(json.loads(one.payload)["x"] for one in jobs.list_tasks())
        names = [order.name for order in Order.objects.order_by("id")]
        print(json.dumps([before, again.created, emitted, alone.created, stored, names]))
        """,
    )
    before, new, emitted, alone, stored, names = found
    assert before[2:] == ["scheduled", "waiting"]
    assert (new, emitted, alone) == (True, True, True)
    assert stored == [1, 2, 4, 7]
    assert names == ["cup", "after"]


def test_enqueueing_waits_while_a_worker_writes(tmp_path: Path) -> None:
    """With Django's own settings, whose transactions on SQLite begin without a lock."""
    shop = Project(tmp_path, Database(f"sqlite:///{tmp_path / 'x.db'}", "sqlite"))
    shop.write("shop/tasks.py", TASKS)
    shop.migrate()
    shop.python(
        """
        import sqlite3, threading
        from contextlib import nullcontext
        from django.db import transaction
        from shop.tasks import note

        other = sqlite3.connect("x.db", isolation_level=None, check_same_thread=False)
        for around in (nullcontext, transaction.atomic):
            other.execute("BEGIN IMMEDIATE")
            other.execute("UPDATE schedd_store SET epoch = epoch")
            ends = threading.Timer(0.5, lambda: other.execute("COMMIT"))
            ends.start()
            with around():
                note.enqueue("waits")
            ends.join()
        """
    )


def test_a_fresh_file_is_made_in_djangos_transaction(tmp_path: Path) -> None:
    found = answers(
        Project(tmp_path, Database(f"sqlite:///{tmp_path / 'new.db'}", "sqlite")),
        f"""
        from django.db import connection, transaction
        from scheduler import Scheduler, task

        jobs = Scheduler("sqlite:///{tmp_path / "new.db"}")

        @task
        def hello(ctx): ...

        jobs.register(hello)
        with transaction.atomic():
            made = jobs.task(hello).schedule(connection=connection)
        print(jobs.get_task(made).id)
        """,
    )
    assert found == 1


@pytest.mark.both_databases
def test_tasks_are_stored_with_djangos_rows_and_run_by_the_daemon(shop: Project) -> None:
    shop.python(
        """
        import asyncio, json
        from django.db import transaction
        from shop.models import Order
        from shop.tasks import broken, note, odd, ship, slowly, tried

        with transaction.atomic():
            cup = Order.objects.create(name="cup")
            shipped = ship.enqueue(cup.pk, note="!")
            noted = note.using(depends_on=[shipped]).enqueue("noted")
        try:
            with transaction.atomic():
                lost = Order.objects.create(name="lost")
                ship.using(key="lost").enqueue(lost.pk)
                note.enqueue("lost")
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        twice = [note.using(key="once", queue="mail").enqueue("once") for _ in range(2)]
        assert twice[0].id == twice[1].id and twice[0].task.queue_name == "mail"
        waits = tried.using(retry=5).enqueue(2)
        failed = broken.enqueue("so it goes")
        slow = asyncio.run(slowly.aenqueue(3))
        strange = odd.enqueue()
        results = [shipped, noted, twice[0], waits, failed, slow, strange]
        assert {one.status for one in results} == {"READY"}, results
        assert shipped.enqueued_at is not None and shipped.started_at is None
        json.dump([one.id for one in results], open("ids.json", "w"))
        """
    )
    shop.work()
    assert (shop.directory / "ran.txt").read_text().split() == ["once", "noted"] or (
        shop.directory / "ran.txt"
    ).read_text().split() == ["noted", "once"]
    found = answers(
        shop,
        """
        import asyncio, json
        from shop.tasks import broken, note, odd, ship, slowly, tried

        ids = json.load(open("ids.json"))
        tasks = [ship, note, note, tried, broken, slowly, odd]
        results = [one.get_result(i) for one, i in zip(tasks, ids)]
        shipped, noted, once, waits, failed, slow, strange = results
        assert shipped.started_at <= shipped.finished_at and len(shipped.worker_ids) == 1
        assert asyncio.run(ship.aget_result(ids[0])).return_value == "cup!"
        assert waits.errors[0].exception_class is ValueError and waits.attempts == 1 and not waits.is_finished
        assert failed.errors[0].exception_class is ValueError and "so it goes" in failed.errors[0].traceback
        assert strange.errors, strange
        print(json.dumps([[str(one.status) for one in results], slow.return_value]))
        """,
    )
    statuses = ["SUCCESSFUL", "SUCCESSFUL", "SUCCESSFUL", "READY", "FAILED", "SUCCESSFUL", "FAILED"]
    assert found == [statuses, {"n": 3, "names": ["cup"]}]


@one_database
def test_an_attempt_knows_of_earlier_ones_and_a_cancelled_task_says_so(shop: Project) -> None:
    shop.python(
        """
        import json
        from scheduler import RetryPolicy
        from shop.tasks import note, ship, tried

        again = tried.using(retry=RetryPolicy(min_wait=0.1, max_attempts=3)).enqueue(2)
        parent = ship.using(run_after=None).enqueue(99)
        below = note.using(depends_on=parent).enqueue("never")
        json.dump([again.id, below.id, note.enqueue("cancelled").id], open("ids.json", "w"))
        """
    )
    ids = json.loads((shop.directory / "ids.json").read_text())
    shop.manage("schedctl", "cancel", ids[2])
    shop.manage("schedd", "--exit-when-idle", "1")
    found = answers(
        shop,
        """
        import json
        from shop.tasks import note, tried

        again, below, cancelled = json.load(open("ids.json"))
        again, below, cancelled = tried.get_result(again), note.get_result(below), note.get_result(cancelled)
        for one in (below, cancelled):
            assert one.errors[0].exception_class.__module__ == "scheduler.errors"
        print(json.dumps([again.return_value, again.attempts, str(below.status), str(cancelled.status),
                          cancelled.errors[0].traceback, below.errors[0].traceback]))
        """,
    )
    assert found[0] == [2, 1, True]
    assert found[1:4] == [2, "FAILED", "FAILED"]
    assert "was cancelled" in found[4]
    assert "DependencyFailed" in found[5]


def test_signals_are_sent_where_it_happens(shop: Project) -> None:
    shop.write(
        "shop/apps.py",
        """
        from django.apps import AppConfig

        class ShopConfig(AppConfig):
            name = "shop"

            def ready(self):
                from pathlib import Path
                from scheduler.django import standard

                def heard(name):
                    def receiver(sender, task_result, **_):
                        with Path("heard.txt").open("a") as file:
                            word = f"{name} {task_result.task.func.__name__} {task_result.status} {sender.__name__}"
                            file.write(word + "\\n")
                        if name == "started":
                            raise ZeroDivisionError("a receiver that fails")
                    return receiver

                for name in ("enqueued", "started", "finished"):
                    getattr(standard, f"task_{name}").connect(heard(name), weak=False)
        """,
    )
    shop.python("from shop.tasks import broken, note; note.enqueue('x'); broken.enqueue()")
    heard = shop.directory / "heard.txt"
    assert heard.read_text().splitlines() == [
        "enqueued note READY TaskBackend",
        "enqueued broken READY TaskBackend",
    ]
    heard.unlink()
    shop.work()
    assert sorted(heard.read_text().splitlines()) == [
        "finished broken FAILED TaskBackend",
        "finished note SUCCESSFUL TaskBackend",
        "started broken RUNNING TaskBackend",
        "started note RUNNING TaskBackend",
    ]


def test_a_workflow_of_steps(shop: Project) -> None:
    """``context.schedd`` records steps in a task of Django's, and get_jobs() knows the project's own task types."""
    shop.write(
        "shop/tasks.py",
        """
        import sys
        from pathlib import Path
        from django.db import connection
        from scheduler import RetryPolicy, Task
        from scheduler.django import standard, task
        from shop.models import Order

        def charge(order_id):
            with Path("charged.txt").open("a") as file:
                file.write(f"{order_id}\\n")
            return Order.objects.get(pk=order_id).name

        @task(takes_context=True, retry=RetryPolicy(min_wait=0.1, jitter=0, max_attempts=2))
        def fulfil(context, order_id):
            name = context.schedd.step("charge", charge, order_id)
            context.schedd.report_progress(50, f"charged for {name}")
            if context.attempt == 1:
                raise ConnectionError("the carrier is away")
            return name

        class Pack(Task):
            order: int

            def run(self, ctx):
                return ctx.step("charge", charge, self.order)

        def heard(sender, task_result, **_):
            if task_result.status == "FAILED":
                Path("failed.txt").write_text(str(sys.exc_info()[1]))

        standard.task_finished.connect(heard)

        @task
        def lost():
            raise LookupError("no such parcel")
        """,
    )
    found = answers(
        shop,
        """
        import json
        from django.db import connection, transaction
        from scheduler.django import get_jobs
        from shop.models import Order
        from shop.tasks import Pack, fulfil, lost

        with transaction.atomic():
            cup = Order.objects.create(name="cup")
            first = fulfil.enqueue(cup.pk)
            packed = get_jobs().task(Pack(cup.pk)).depend_on(int(first.id)).schedule(connection=connection)
        lost.enqueue()
        print(json.dumps([int(first.id), packed]))
        """,
    )
    told = shop.manage("schedd", "--exit-when-idle", "1")
    assert told.count("state=FAILED") == 1, told  # Django's own handler writes nothing beside the log
    assert '"message"' not in told
    assert (shop.directory / "charged.txt").read_text().split() == ["1", "1"]
    assert (shop.directory / "failed.txt").read_text() == "no such parcel"
    told = answers(
        shop,
        f"""
        import json
        from scheduler.django import get_jobs
        from shop.tasks import fulfil

        jobs = get_jobs()
        done = fulfil.get_result("{found[0]}")
        print(json.dumps([done.return_value, done.attempts, jobs.get_task({found[0]}).progress_message,
                          jobs.result({found[1]}, timeout=0)]))
        """,
    )
    assert told == ["cup", 2, "charged for cup", "cup"]


def test_each_run_has_a_fresh_connection_and_the_settings_hold(shop: Project) -> None:
    """Django's connection is closed after a run, as after a request; one that broke harms no later run."""
    settings = shop.directory / "settings.py"
    more = """
from datetime import timedelta
SCHEDD = {
    "pools": {"medium": {"slots": 1, "async_slots": 1}},
    "worker": {"queues": ["default", "mail"], "lease": timedelta(seconds=20)},
    "tasks": {"path": ["a,b"], "modules": ["more"]},
}
"""
    settings.write_text(settings.read_text() + more)
    shop.write("more.py", "")
    shop.write(
        "shop/tasks.py",
        """
        from asgiref.sync import sync_to_async
        from django.db import connection
        from scheduler.django import task
        from shop.models import Order

        def is_new():
            new = connection.connection is None
            Order.objects.count()
            return new

        @task
        def fresh():
            return is_new()

        @task
        async def fresh_async():
            return await sync_to_async(is_new)()

        @task
        def breaks():
            Order.objects.count()
            connection.connection.close()
            Order.objects.count()
        """,
    )
    shop.python(
        """
        from shop.tasks import breaks, fresh, fresh_async
        for one in (fresh, fresh_async, breaks, fresh, fresh_async, fresh):
            one.enqueue()
        fresh.using(queue="other").enqueue()
        """
    )
    shop.work()
    found = answers(
        shop,
        """
        import json
        from scheduler.django import get_jobs
        print(json.dumps([[str(one.state), one.result] for one in get_jobs().list_tasks()][::-1]))
        """,
    )
    good = ["success", True]
    assert found == [good, good, ["dead", None], good, good, good, ["scheduled", None]]
    shown = shop.manage("schedctl", "config", "check")
    assert "a,b" in shown
    assert "20" in shown


@one_database
def test_what_cannot_be_is_refused_at_once(shop: Project) -> None:
    found = answers(
        shop,
        """
        import datetime, json
        from django.db import connection
        from scheduler.django import standard, task
        from shop.tasks import note

        refused = []
        for options in (
            {"priority": 101}, {"priority": 1.5}, {"run_after": datetime.datetime(2030, 1, 1)}, {"retry": "often"},
            {"timeout": -1}, {"key": ""}, {"fairness_key": "x" * 65}, {"queue": "no name"}, {"depends_on": [None]},
        ):
            try:
                note.using(**options)
            except standard.InvalidTask as error:
                refused.append(str(error))
        try:
            note.using(depends_on=[99999]).enqueue("x")
        except standard.InvalidTask as error:
            refused.append(str(error))
        try:
            note.enqueue(object())
        except TypeError as error:
            refused.append(str(error))
        for wrong in ("99999", "no such", "-1", "9" * 40):
            try:
                note.get_result(wrong)
            except standard.TaskResultDoesNotExist as error:
                refused.append(str(error))
        print(json.dumps(refused))
        """,
    )
    assert len(found) == 15, found


@one_database
def test_any_function_of_a_module_can_be_a_task(shop: Project) -> None:
    """Also one that no worker knows beforehand."""
    shop.write("elsewhere.py", "from scheduler.django import task\n@task\ndef far(n):\n    return n + 1\n")
    shop.python("from elsewhere import far; open('id', 'w').write(far.enqueue(1).id)")
    shop.work()
    assert shop.python("from elsewhere import far; print(far.get_result(open('id').read()).return_value)") == "2\n"
    assert "django.task" in shop.manage("schedctl", "list")


def test_a_projects_own_tests(shop: Project, database: Database) -> None:
    """What a TestCase stores is seen in it and gone after it; a TransactionTestCase runs it, and flush empties it."""
    if database.is_sqlite:
        named = '\nDATABASES["default"]["TEST"] = {"NAME": "test.sqlite3"}\n'
        settings = shop.directory / "settings.py"
        settings.write_text(settings.read_text() + named)
    shop.write(
        "shop/tests.py",
        """
        from django.test import TestCase, TransactionTestCase
        from scheduler.django.testing import run_tasks
        from shop.models import Order
        from shop.tasks import broken, ship

        class InATransaction(TestCase):
            def test_stored(self):
                with self.captureOnCommitCallbacks(execute=True):
                    result = ship.using(key="a").enqueue(Order.objects.create(name="a").pk)
                self.assertEqual(ship.get_result(result.id).status, "READY")
                self.assertEqual(ship.get_result(int(result.id)).id, result.id)

            def test_gone(self):
                self.assertEqual(ship.using(key="a").enqueue(1).args, [1])

        class Committed(TransactionTestCase):
            def run_one(self):
                result = ship.using(key="b").enqueue(Order.objects.create(name="b").pk)
                self.assertEqual(run_tasks(), 1)
                result.refresh()
                self.assertEqual(result.return_value, "b")

            test_first = test_second = run_one

            def test_raised(self):
                broken.enqueue("so it goes")
                broken.using(queue="mail").enqueue("not here")
                with self.assertRaisesMessage(ValueError, "so it goes"):
                    run_tasks(queue="default", raise_errors=True)
        """,
    )
    output = shop.manage("test", "--noinput")
    assert "Ran 5 tests" in output, output


def test_priorities_order_the_tasks_over_all_pools(shop: Project) -> None:
    found = answers(
        shop,
        """
        import json, random
        from pathlib import Path
        from scheduler.django.testing import run_tasks
        from shop.tasks import note

        levels = list(range(-100, 101, 4))
        random.Random(1).shuffle(levels)
        for level in levels:
            made = note.using(priority=level).enqueue(str(level))
        assert note.get_result(made.id).task.priority == levels[-1]
        assert run_tasks() == len(levels) == 51
        print(json.dumps([int(line) for line in Path("ran.txt").read_text().split()]))
        """,
    )
    assert found == list(range(100, -101, -4))


def test_customers_take_turns(shop: Project) -> None:
    """A fairness key is whose turn it is; priorities go first."""
    found = answers(
        shop,
        """
        import json
        from pathlib import Path
        from scheduler.django.testing import run_tasks
        from shop.tasks import note

        for _ in range(40):
            note.using(fairness_key="large").enqueue("large")
        for _ in range(4):
            note.using(fairness_key="small").enqueue("small")
        note.using(fairness_key="small", priority=5).enqueue("urgent")
        run_tasks()
        print(json.dumps(Path("ran.txt").read_text().split()))
        """,
    )
    assert found[0] == "urgent"
    assert "small" not in found[20:]


@one_database
def test_the_example(tmp_path: Path, database: Database) -> None:
    shop = Project(tmp_path, database)
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    shop.manage("migrate", "--run-syncdb", "-v0")
    assert "Ran 2 tests" in shop.manage("test", "--noinput")
    shop.python("from shop.orders import place_order; place_order('ann@example.com')")
    shop.work()
    assert "success" in shop.manage("schedctl", "show", "2")


@one_database
def test_a_database_of_tests_in_memory(shop: Project) -> None:
    shop.write(
        "shop/tests.py",
        """
        from django.core.exceptions import ImproperlyConfigured
        from django.test import TestCase, TransactionTestCase
        from django.db import connection
        from scheduler import Scheduler, Task
        from scheduler.django.testing import run_tasks
        from shop.tasks import ship

        class Told(Task, on_success="sinks.shop"):
            def run(self, ctx):
                pass

        class InATransaction(TestCase):
            def test_stored(self):
                result = ship.enqueue(1)
                self.assertEqual(ship.get_result(result.id).status, "READY")

            def test_the_look_for_its_sink_is_in_that_transaction(self):
                jobs = Scheduler("sqlite:///elsewhere.db")  # not made: all is done on Django's connection
                jobs.register(Told)
                jobs.task(Told()).schedule(connection=connection)
                with jobs.batch(connection=connection) as batch:
                    batch.task(Told())

        class Committed(TransactionTestCase):
            def test_stored(self):
                result = ship.enqueue(1)
                self.assertEqual(ship.get_result(result.id).args, [1])
                self.assertRaises(ImproperlyConfigured, run_tasks)
        """,
    )
    assert "Ran 3 tests" in shop.manage("test", "--noinput")


@one_database
def test_a_store_elsewhere_gets_the_task_once_django_commits(database: Database, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.db"
    shop = Project(tmp_path, database, f'SCHEDD = {{"store": {{"url": "sqlite:///{elsewhere}"}}}}\n')
    shop.write("shop/tasks.py", TASKS)
    shop.migrate()
    shop.python(
        """
        from django.db import transaction
        from scheduler.django import standard
        from shop.tasks import note

        with transaction.atomic():
            result = note.enqueue("committed")
            try:
                note.get_result(result.id)
                raise SystemExit("it is stored before the commit")
            except standard.TaskResultDoesNotExist:
                pass
        assert note.get_result(result.id).status == "READY"
        try:
            with transaction.atomic():
                note.enqueue("rolled back")
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        assert note.enqueue("at once").id.isdigit()
        """
    )
    shop.work()
    assert sorted((tmp_path / "ran.txt").read_text().splitlines()) == ["at once", "committed"]


@one_database
def test_the_admin_leads_to_the_console(database: Database, tmp_path: Path) -> None:
    settings = """
    SCHEDD = {"console": {"listen": "127.0.0.1:8321"}}
    MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ]
    TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
        "context_processors": ["django.template.context_processors.request",
            "django.contrib.auth.context_processors.auth", "django.contrib.messages.context_processors.messages"]}}]
    STATIC_URL = "/static/"
    ALLOWED_HOSTS = ["testserver"]
    """
    apps = tuple(f"django.contrib.{name}" for name in ("contenttypes", "auth", "sessions", "messages", "admin"))
    shop = Project(tmp_path, database, settings, apps)
    shop.write(
        "urls.py",
        """
        from django.contrib import admin
        from django.urls import path
        urlpatterns = [path("admin/", admin.site.urls)]
        """,
    )
    shop.migrate()
    shop.manage("makemigrations", "--check", "schedd")
    found = shop.python(
        """
        from django.contrib.auth.models import User
        from django.test import Client

        client = Client()
        client.force_login(User.objects.create_superuser("ann", password="x"))
        assert b"/admin/schedd/console/" in client.get("/admin/").content
        answer = client.get("/admin/schedd/console/")
        print(answer.status_code, answer["Location"])
        """
    )
    assert found == "302 http://127.0.0.1:8321/\n"


# Django 6 checks backends in a project that imports its tasks anywhere; the backport always does.
USES_TASKS = """
import importlib.util
if importlib.util.find_spec("django.tasks"):
    import django.tasks
"""


@one_database
def test_mistakes_in_the_settings_are_named(shop: Project) -> None:
    settings = shop.directory / "settings.py"
    before = settings.read_text()
    for change, said in (
        ('TASKS["default"]["OPTIONS"] = {"databse": "x"}', "there is no option 'databse'"),
        ('TASKS["default"]["OPTIONS"] = {"database": "x"}', "there is no database 'x'"),
        (f'INSTALLED_APPS.remove("scheduler.django"){USES_TASKS}', "schedd.W001"),
        ('TASKS["default"]["OPTIONS"] = {"modules": ["nowhere"]}', "schedd.E002"),
    ):
        settings.write_text(f"{before}\n{change}\n")
        assert said in shop.manage("check", status=None), change
    settings.write_text(before)
    assert "no issues" in shop.manage("check")
    assert "TASKS has no backend 'x'" in shop.manage("schedd", "--backend", "x", status=2)
