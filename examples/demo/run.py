"""The photo workflow on a real daemon, which is killed with -9 in the middle and started again.

    python examples/demo/run.py [PHOTO=path]

Without a photo it draws one, of 12 megapixels or of DEMO_MEGAPIXELS. Everything happens in a new temporary directory,
which is removed at the end unless DEMO_KEEP=1. Exit status: 0 if nothing was lost or done twice; 1 if something was;
2 for a photo that cannot be used; 130 when interrupted (128 + the signal).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import IO, NoReturn

import photo_tasks
from screen import Row, Screen, aligned

from scheduler import AttemptInfo, Priority, Scheduler, TaskInfo, TaskState
from scheduler.store.read.tasks import EdgeRecord
from scheduler.tasks import CommandTask, FileIdGeneratorTask, ImageResizerTask

TENANT = 7
SIZES = {"sd": 640, "md": 1280, "hd": 1920, "xd": 2560}
PATIENCE = 120.0  # seconds until the demo gives up
EVERY = 2  # seconds between the runs of the schedule
TICKS = "tick"
HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent

CONFIG = """\
[store]
url = "sqlite:///{work}/schedd.db"

[tasks]
modules = ["photo_tasks"]
path = ["{here}"]
builtin = ["CommandTask", "FileIdGeneratorTask", "ImageResizerTask"]

[worker]
lease = 10

[log]
format = "json"

[command]
enabled = true
roots = ["{work}"]

[files]
blobs = "{work}/blobs"
roots = ["{work}/incoming"]
"""


class DemoError(Exception):
    """The demo cannot go on; the text says why."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


class Daemon:
    """A real schedd in a process of its own."""

    def __init__(self, config: Path, log: IO[str]) -> None:
        self.process = subprocess.Popen([BIN / "schedd", "--config", config], stdin=subprocess.DEVNULL, stderr=log)

    def stop(self) -> int:
        """Ask it to end, as a service manager would; its exit status."""
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.wait()


class Demo:
    def __init__(self, work: Path, screen: Screen) -> None:
        self.work = work
        self.screen = screen
        self.config = work / "config.toml"
        self.log = work / "schedd.log"
        self.daemon: Daemon | None = None
        self.tasks: dict[int, str] = {}  # id -> what to call it
        self.interrupted: list[int] = []  # what ran when the daemon was killed
        self.failing = 0
        self.deadline = time.monotonic() + PATIENCE

    # the parts, in order

    def run(self, photo: Path | None) -> bool:
        """The whole demo; whether nothing was lost or done twice."""
        say = self.screen.say
        self.config.write_text(CONFIG.format(work=self.work, here=HERE), encoding="utf-8")
        self.start()
        source = self.prepare(photo)
        self.jobs = Scheduler.from_config(str(self.config))
        try:
            self.schedule(source)
            say(f"Scheduled {len(self.tasks)} tasks and a run every {EVERY} s, from another process ({os.getpid()}).")
            self.kill_in_the_middle()
            self.start()
            self.watch(self.is_over)
            self.jobs.schedules.delete(TICKS)
            self.watch(lambda tasks: all(task.state.terminal for task in tasks))
            self.screen.done()
            self.schedctl("status")
            self.schedctl("show", str(self.interrupted[0]))
            self.schedctl("logs", str(self.listing))
            assert self.daemon is not None
            status = self.daemon.stop()
            say(f"\nStopped schedd with SIGTERM; it ended with status {status}.")
            return self.prove(status)
        finally:
            self.jobs.close()

    def prepare(self, photo: Path | None) -> Path:
        """A copy of the photo, or a picture drawn, where the daemon may take it from."""
        incoming = self.work / "incoming"
        incoming.mkdir()
        target = incoming / "upload-1"
        if photo is None:
            self.photo_name = "drawn.jpg"
            size = draw(target, float(os.environ.get("DEMO_MEGAPIXELS", "12")))
            self.screen.say(f"Drew a picture of {size[0]} x {size[1]} pixels, {target.stat().st_size / 1e6:.1f} MB.")
        else:
            self.photo_name = photo.name
            shutil.copyfile(photo, target)
            self.screen.say(f"Took {photo}, {target.stat().st_size / 1e6:.1f} MB.")
        return target

    def start(self) -> None:
        with self.log.open("a", encoding="utf-8") as log:
            self.daemon = Daemon(self.config, log)
        self.screen.say(f"Started schedd, process {self.daemon.process.pid}.")

    def schedule(self, source: Path) -> None:
        """The photo workflow in one transaction, the other tasks one by one, and a schedule."""
        jobs, gallery = self.jobs, str(self.work / "gallery")
        with jobs.batch(correlation="photo-1") as batch:
            stored = batch.task(FileIdGeneratorTask(TENANT, str(source), self.photo_name)).subject("file id")
            variants = [
                batch.task(ImageResizerTask(TENANT, "", name, side, side, "avif", 60))
                .subject(f"resize to {name}")
                .priority(Priority.LOW)
                .depend_on(stored)
                for name, side in SIZES.items()
            ]
            archive = photo_tasks.ArchiveTask(str(self.work / "archive.jpg"))
            batch.task(archive).subject("archive, slowly").depend_on(stored)
            manifest = batch.task(photo_tasks.ManifestTask(gallery)).subject("manifest").depend_on(variants)
            listing = CommandTask(["ls", "-l", gallery])
            batch.task(listing).subject("list the gallery").depend_on(manifest)
        self.stored, self.variants, self.listing = batch.ids[0], batch.ids[1:5], batch.ids[-1]
        self.archive = batch.ids[5]
        flaky = jobs.task(photo_tasks.FlakyTask()).key("flaky-1").subject("flaky").schedule()
        self.failing = jobs.task(photo_tasks.ChargeTask(42)).subject("fails for good").schedule()
        apology = jobs.task(photo_tasks.ApologyTask()).subject("if that fails")
        others = [flaky, self.failing, apology.depend_on(self.failing, when="failure").schedule()]
        jobs.task(photo_tasks.tick).key(TICKS).subject("tick").every(EVERY).schedule()
        for task_id in (*batch.ids, *others):
            self.tasks[int(task_id)] = str(jobs.get_task(task_id).subject)

    def kill_in_the_middle(self) -> None:
        """kill -9 while tasks run and others wait; what is said of it comes from the database afterwards."""
        assert self.daemon is not None
        self.watch(self.is_in_the_middle, pause=0.02)
        self.daemon.kill()
        tasks = self.look()
        running = [task for task in tasks if task.state in (TaskState.RUNNING, TaskState.CLAIMED)]
        waiting = Counter(t.state for t in tasks if not t.state.terminal and t not in running)
        self.interrupted = [task.id for task in running]
        done = sum(task.state is TaskState.SUCCESS for task in tasks)
        self.screen.done()
        names = ", ".join(self.name(task).strip() for task in running) or "nothing"
        pending = ", ".join(f"{n} {state}" for state, n in waiting.items())
        self.screen.say(f"\nkill -9 {self.daemon.process.pid}: interrupted {names};")
        self.screen.say(f"{sum(waiting.values())} more were pending ({pending}), {done} had succeeded.\n")
        if not running or not waiting:
            raise DemoError("the daemon was not killed in the middle of anything: this run shows nothing")

    def is_in_the_middle(self, tasks: list[TaskInfo]) -> bool:
        """Some of the variants are made and others being made; at the latest, the slow copy is under way."""
        states = {task.id: task.state for task in tasks}
        of_variants = [states[task_id] for task_id in self.variants]
        running = TaskState.RUNNING in of_variants
        made = of_variants.count(TaskState.SUCCESS)
        return made > 0 and (running or (made == len(of_variants) and states[self.archive] is TaskState.RUNNING))

    def is_over(self, tasks: list[TaskInfo]) -> bool:
        return all(task.state.terminal for task in tasks if task.id in self.tasks)

    # looking

    def look(self) -> list[TaskInfo]:
        """All tasks, oldest first."""
        return sorted(self.jobs.list_tasks(limit=1000), key=lambda task: task.id)

    def watch(self, over: Callable[[list[TaskInfo]], bool], pause: float = 0.1) -> None:
        """Show how things stand until they are as wanted."""
        while True:
            tasks = self.look()
            self.screen.show(self.rows(tasks))
            if over(tasks):
                return
            assert self.daemon is not None
            if self.daemon.process.poll() is not None:
                raise DemoError(f"schedd ended with status {self.daemon.process.returncode}:\n{self.last_words()}")
            if time.monotonic() > self.deadline:
                raise DemoError(f"not done after {PATIENCE:g} s; schedd says:\n{self.last_words()}")
            time.sleep(pause)

    def rows(self, tasks: list[TaskInfo]) -> list[Row]:
        rows = [Row(self.name(t), t.state.value, t.attempt, note_of(t)) for t in tasks if t.id in self.tasks]
        ticks = [task for task in tasks if task.schedule == TICKS]
        if ticks:
            done = sum(task.state is TaskState.SUCCESS for task in ticks)
            rows.append(Row(f"every {EVERY} s", f"{done} of {len(ticks)} runs done", 0))
        return rows

    def name(self, task: TaskInfo) -> str:
        return f"{task.id:2} {self.tasks.get(task.id, task.subject)}"

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8").splitlines()[-10:])

    def schedctl(self, *arguments: str) -> None:
        self.screen.say(f"\n$ schedctl {' '.join(arguments)}")
        subprocess.run([BIN / "schedctl", "--config", self.config, *arguments], check=True)

    # the proof

    def prove(self, status: int) -> bool:
        """Print every task with its history, and what follows from it; whether all of it is as promised."""
        tasks = self.look()
        history = {task.id: self.jobs.get_attempts(task.id) for task in tasks}
        say = self.screen.say
        lines = [("task", "state", "attempts", "how they ended", "successes")]
        for task in tasks:
            told = [attempt.outcome.value for attempt in history[task.id]]
            name = self.name(task) + (f" of {clock(task.slot)}" if task.slot is not None else "")
            lines.append((name, task.state.value, str(len(told)), ", ".join(told), str(successes(history[task.id]))))
        say()
        for line in aligned(lines):
            say(line)
        states = Counter(task.state for task in tasks)
        ends = Counter(attempt.outcome for attempts in history.values() for attempt in attempts)
        say(f"\n{len(tasks)} tasks: {', '.join(f'{n} {state}' for state, n in states.items())}")
        say(f"{sum(ends.values())} attempts: {', '.join(f'{n} {end}' for end, n in ends.items())}\n")
        good = True
        for text, holds in self.promises(tasks, history, status):
            say(f"{'ok    ' if holds else 'FAILED'}  {text}")
            good = good and holds
        return good

    def promises(
        self, tasks: list[TaskInfo], history: dict[int, list[AttemptInfo]], status: int
    ) -> list[tuple[str, bool]]:
        by_id = {task.id: task for task in tasks}
        wanted = dict.fromkeys(by_id, TaskState.SUCCESS) | {self.failing: TaskState.DEAD}
        ticks = [task for task in tasks if task.schedule == TICKS]
        edges = [edge for task_id in self.tasks for edge in self.jobs.get_task_dependencies(task_id)]
        started = {i: min(a.started_at or a.finished_at for a in attempts) for i, attempts in history.items()}
        return [
            ("nothing is lost: every task that was scheduled is there", self.tasks.keys() <= by_id.keys()),
            ("every task has ended as it should", {i: t.state for i, t in by_id.items()} == wanted),
            (
                "nothing was run twice to completion: every task that succeeded did so exactly once",
                all(successes(history[i]) == (by_id[i].state is TaskState.SUCCESS) for i in by_id),
            ),
            (
                f"the {len(self.interrupted)} tasks that kill -9 interrupted have a lost attempt and one after it",
                all(has_lost(history[i]) and len(history[i]) > 1 for i in self.interrupted),
            ),
            ("no task began before what it depends on had ended", all(in_order(e, by_id, started) for e in edges)),
            ("no two runs of the schedule share a slot", len({task.slot for task in ticks}) == len(ticks) > 0),
            (f"the {len(SIZES)} variants and the manifest are on disk, whole", self.gallery_is_whole()),
            ("the daemon stopped cleanly", status == 0),
        ]

    def gallery_is_whole(self) -> bool:
        from scheduler.tasks.files.blob_store import BlobStore

        manifest = json.loads((self.work / "gallery" / "manifest.json").read_text(encoding="utf-8"))
        store = BlobStore(self.work / "gallery-check")  # gives every content its id anew
        return {entry["variant"] for entry in manifest} == SIZES.keys() and all(
            store.put((self.work / "gallery" / entry["name"]).read_bytes()).file_id == entry["file_id"]
            for entry in manifest
        )


def successes(attempts: list[AttemptInfo]) -> int:
    return sum(attempt.outcome.value == "succeeded" for attempt in attempts)


def has_lost(attempts: list[AttemptInfo]) -> bool:
    return any(attempt.outcome.value == "lost" for attempt in attempts)


def in_order(edge: EdgeRecord, by_id: dict[int, TaskInfo], started: dict[int, datetime]) -> bool:
    ended = by_id[edge.parent].finished_at
    return ended is not None and started[edge.child] >= ended


def clock(instant: datetime) -> str:
    """The time of day, UTC."""
    return instant.strftime("%H:%M:%S")


def note_of(task: TaskInfo) -> str:
    if task.state is TaskState.RUNNING and task.progress is not None:
        return f"{task.progress:.0f} %"
    if task.error is not None and task.state in (TaskState.RETRY, TaskState.DEAD, TaskState.FAILED):
        return task.error
    return ""


def draw(target: Path, megapixels: float) -> tuple[int, int]:
    """Draw a picture of so many million pixels, with detail in it, as a JPEG file."""
    from PIL import Image

    width = max(16, round((megapixels * 1e6 * 4 / 3) ** 0.5))
    size = (width, width * 3 // 4)
    red = Image.effect_mandelbrot(size, (-2.2, -1.3, 1.2, 1.25), 60)
    green = Image.linear_gradient("L").resize(size)  # pyright: ignore[reportUnknownMemberType]
    Image.merge("RGB", (red, green, Image.effect_noise(size, 40))).save(target, "JPEG", quality=92)
    return size


def photo_from(arguments: list[str]) -> Path | None:
    """The photo that the command line names. Raises DemoError."""
    try:
        from PIL import Image
    except ImportError:
        raise DemoError("the demo needs Pillow: pip install 'schedd[images]'", 2) from None
    if not arguments:
        return None
    name, _, value = arguments[0].partition("=")
    if len(arguments) > 1 or name != "PHOTO" or not value:
        raise DemoError("usage: python examples/demo/run.py [PHOTO=path]", 2)
    photo = Path(value).expanduser()
    try:
        with Image.open(photo) as picture:
            picture.verify()
    except (OSError, SyntaxError, ValueError) as error:
        raise DemoError(f"{photo} cannot be used: {error}", 2) from None
    return photo


def interrupt(number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt(number)


def main() -> int:
    for name in [name for name in os.environ if name.startswith("SCHEDD_")]:
        del os.environ[name]  # the demo's configuration is its own
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    screen, demo, work = Screen(), None, None
    began = time.monotonic()
    try:
        photo = photo_from(sys.argv[1:])
        work = Path(tempfile.mkdtemp(prefix="schedd-demo-"))
        demo = Demo(work, screen)
        good = demo.run(photo)
        seconds = time.monotonic() - began
        screen.say(f"\n{'The proof holds' if good else 'THE PROOF FAILS'}, after {seconds:.0f} s.")
        try_yourself(screen, work)
        return 0 if good else 1
    except DemoError as error:
        screen.say(f"demo: {error}")
        return error.status
    except KeyboardInterrupt as signalled:
        screen.say("\ninterrupted")
        return 128 + int(signalled.args[0])
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if demo is not None and demo.daemon is not None:
            demo.daemon.kill()
        if work is not None and keep():
            print(f"kept: {work}")
        elif work is not None:
            remove(work)


def remove(work: Path) -> None:
    """What the daemon had started ends a moment after it, and may put another file there meanwhile."""
    deadline = time.monotonic() + 2
    while True:
        shutil.rmtree(work, ignore_errors=True)
        if not work.exists() or time.monotonic() > deadline:
            return
        time.sleep(0.05)


def keep() -> bool:
    return os.environ.get("DEMO_KEEP", "") not in ("", "0")


def try_yourself(screen: Screen, work: Path) -> None:
    """Commands to go on with."""
    if not keep():
        screen.say("\nTo look around in what it leaves: make demo DEMO_KEEP=1")
        return
    screen.say("\nTo look around:\n")
    screen.say(f"  export SCHEDD_CONFIG={shlex.quote(str(work / 'config.toml'))} PATH={BIN}:$PATH")
    for line in (
        "schedctl list",
        "schedctl list --status Failed",
        "schedctl graph 1",
        "schedctl logs 7",
        "schedctl retry 10           # it will fail again, and its dependant is left alone",
        "schedctl run -- uname -a    # waits until a daemon runs",
        "schedd                      # in another terminal",
    ):
        screen.say(f"  {line}")


if __name__ == "__main__":
    sys.exit(main())
