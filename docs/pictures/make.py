"""Takes the pictures of the console: ``make pictures``.

A real daemon works on a new store in a temporary directory, under load, for a while; then the console is served and
Debian's Chromium looks at it. Everything but the pictures is removed at the end.

    python docs/pictures/make.py [SECONDS]      how long the daemon works before, 120 unless given
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import shop_tasks
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from scheduler import Scheduler, TaskState

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
PATIENCE = 60.0  # seconds to wait for anything
LOAD_SECONDS = 120.0
PHOTOS_EVERY = 2.0  # seconds between two batches of photos
COLORS = 128  # of a picture's palette
MOST_BYTES = 120_000  # of one picture
DESK = {"width": 1200, "height": 800}
PHONE = {"width": 320, "height": 640}
TABLES = ("sales", "stock", "staff")
DAYS = ("2026-02-01", "2026-02-02", "2026-02-03")

CONFIG = """\
[store]
url = "sqlite:///{work}/schedd.db"

[tasks]
modules = ["shop_tasks"]
path = ["{work}"]

[worker]
queues = ["default", "photos", "mail"]

[console]
label = "shop"
"""


class Shot(NamedTuple):
    """One picture. ``height``: how much of the page, in pixels."""

    name: str
    path: str
    options: dict[str, Any]
    height: int


class Stored(NamedTuple):
    """What the pictures show."""

    report: int  # the last task of the graph
    waiting: int  # a task that waits for a dead one


def schedule(jobs: Scheduler) -> Stored:
    """The graph, the mail that fails, what runs long, what no worker serves, and a pause."""
    with jobs.batch(correlation="week-6") as batch:
        joins = []
        for day in DAYS:
            cleaned = [
                batch.task(shop_tasks.CleanPartition(table, day)).depend_on(
                    batch.task(shop_tasks.LoadPartition(table, day))
                )
                for table in TABLES
            ]
            joins.append(batch.task(shop_tasks.JoinTables(day)).depend_on(cleaned, otherwise="wait"))
        batch.task(shop_tasks.WriteReport("week 6")).subject("week 6").depend_on(joins, otherwise="wait")
    kinds = {id_: jobs.get_task(id_).kind for id_ in batch.ids}
    for order in range(1001, 1061):
        jobs.task(shop_tasks.SendInvoice(order, f"customer-{order}@example.com", "hunter2")).queue("mail").schedule()
    for customer in ("Lovelace & Co", "Hopper Ltd"):
        jobs.task(shop_tasks.Export(customer)).subject(customer).schedule()
    jobs.task(shop_tasks.ResizePhoto("/raw/0001.dng")).queue("darkroom").schedule()
    with jobs.acting("alice", reason="the mail server moves"):
        jobs.pause(queue="newsletter")
    joined = [id_ for id_, kind in kinds.items() if kind == "JoinTables"]
    report = next(id_ for id_, kind in kinds.items() if kind == "WriteReport")
    return Stored(int(report), int(joined[DAYS.index("2026-02-02")]))


def work_under_load(jobs: Scheduler, seconds: float) -> None:
    """Schedule photos and mail all the while."""
    began = time.monotonic()
    round_ = 0
    while time.monotonic() - began < seconds:
        with jobs.batch() as batch:
            for number in range(40 + 30 * (round_ % 7)):
                batch.task(shop_tasks.ResizePhoto(f"/photos/{round_}/{number}.jpg")).queue("photos")
            batch.task(shop_tasks.SendInvoice(2000 + round_, "ada@example.com")).queue("mail")
        round_ += 1
        time.sleep(PHOTOS_EVERY)


def wait_for(what: str, found: Callable[[], object]) -> None:
    """Wait until something is so."""
    until = time.monotonic() + PATIENCE
    while not found():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {PATIENCE:g} s")
        time.sleep(0.1)


def shots(jobs: Scheduler, stored: Stored) -> list[Shot]:
    """The pictures to take."""
    mail = jobs.list_tasks(TaskState.DEAD, kind="SendInvoice", limit=1)[0]
    light: dict[str, Any] = {"viewport": DESK, "color_scheme": "light"}
    return [
        Shot("now", "/", light, 800),
        Shot("task", f"/tasks/{stored.waiting}", light, 800),
        Shot("dead-task", f"/tasks/{mail.id}", light, 690),
        Shot("graph", f"/graphs/{stored.report}", light, 800),
        Shot("tasks", "/tasks?q=-state:success", light, 640),
        Shot("dead", "/dead", light, 560),
        Shot("dark", f"/graphs/{stored.report}", {"viewport": DESK, "color_scheme": "dark"}, 800),
        Shot("phone", "/", {"viewport": PHONE, "color_scheme": "light", "device_scale_factor": 2}, 640),
    ]


def take(browser: Browser, link: str, wanted: list[Shot]) -> None:
    """Take the pictures. One visitor logs in with the link; the others get its cookie."""
    first = browser.new_context()
    first.new_page().goto(link)
    cookies = first.cookies()
    base = link.partition("/?")[0]
    for shot in wanted:
        context = browser.new_context(**shot.options)
        context.add_cookies([{**cookie} for cookie in cookies])  # type: ignore[typeddict-item]
        page = context.new_page()
        page.goto(base + shot.path)
        page.wait_for_load_state("networkidle")
        width = shot.options["viewport"]["width"]
        raw = page.screenshot(clip={"x": 0, "y": 0, "width": width, "height": shot.height}, full_page=True)
        size = save(raw, HERE / f"{shot.name}.png")
        print(f"{shot.name}.png: {size / 1000:.0f} kB")
        context.close()


def save(raw: bytes, path: Path) -> int:
    """Save a picture with a palette. Returns its size in bytes; raises ValueError if it is too large to keep."""
    picture = Image.open(io.BytesIO(raw)).convert("RGB")
    # The colors that most pixels have stay as they are: a palette that is computed tints the background.
    colors = sorted(picture.getcolors(picture.width * picture.height) or [], reverse=True)[:COLORS]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, color in colors for part in color])  # type: ignore[union-attr]
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{path.name} has {size} bytes, more than {MOST_BYTES}")
    return size


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("make pictures needs Debian's chromium: apt-get install chromium fonts-dejavu-core")
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else LOAD_SECONDS
    with tempfile.TemporaryDirectory(prefix="schedd-pictures-") as place:
        work = Path(place)
        config = work / "config.toml"
        shutil.copy(HERE / "shop_tasks.py", work)  # tracebacks name its path
        config.write_text(CONFIG.format(work=work), encoding="utf-8")
        log = (work / "schedd.log").open("w")
        jobs = Scheduler.from_config(str(config))
        stored = schedule(jobs)
        daemon = subprocess.Popen(
            [BIN / "schedd", "--config", config], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        console = None
        try:
            wait_for("a worker", lambda: jobs.workers.list())
            work_under_load(jobs, seconds)
            wait_for("dead letters", lambda: jobs.list_tasks(TaskState.DEAD, kind="SendInvoice", limit=1))
            console = subprocess.Popen(
                [BIN / "schedctl", "console", "--config", config, "--listen", "127.0.0.1:0"],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
            assert console.stdout is not None
            link = console.stdout.readline().strip()
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
                take(browser, link, shots(jobs, stored))
                browser.close()
        finally:
            for process in (console, daemon):
                if process is not None:
                    process.terminate()
                    process.wait(PATIENCE)
            jobs.close()
            log.close()


if __name__ == "__main__":
    main()
