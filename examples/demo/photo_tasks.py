"""The demo's own task types. The daemon imports this module because its configuration names it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from scheduler import AsyncContext, Context, PermanentError, Priority, RetryPolicy, Task, task
from scheduler.tasks.files.blob_store import BlobStore


class ArchiveTask(Task, retry=RetryPolicy(min_wait=1, max_wait=60)):
    """Copies the original over a slow line, in parts, and says how far it is."""

    target: str
    parts: int = 12
    pause: float = 0.25

    def run(self, ctx: Context) -> dict[str, Any]:
        [stored] = ctx.results().values()
        source = BlobStore.from_settings(ctx.settings).path(stored["file_id"])
        size = source.stat().st_size
        unfinished = Path(self.target + ".part")
        with source.open("rb") as original, unfinished.open("wb") as copy:
            for part in range(self.parts):
                copy.write(original.read(size // self.parts + 1))
                time.sleep(self.pause)
                ctx.report_progress(100 * (part + 1) / self.parts, f"part {part + 1} of {self.parts}")
        os.replace(unfinished, self.target)
        return {"bytes": size}


class ManifestTask(Task):
    """Puts the variants that it depends on into one directory, under names for people, and writes what they are."""

    gallery: str

    def run(self, ctx: Context) -> dict[str, Any]:
        store = BlobStore.from_settings(ctx.settings)
        gallery = Path(self.gallery)
        gallery.mkdir(exist_ok=True)
        manifest: list[dict[str, Any]] = []
        for variant in sorted(ctx.results().values(), key=lambda result: int(result["width"])):
            name = f"{variant['variant']}.{variant['format']}"
            put(gallery / name, store.path(variant["file_id"]).read_bytes())
            shown = {key: variant[key] for key in ("variant", "file_id", "width", "height", "size")}
            manifest.append({"name": name, **shown})
        put(gallery / "manifest.json", json.dumps(manifest, indent=2).encode() + b"\n")
        ctx.log.info("manifest written", variants=len(manifest))
        return {"gallery": self.gallery, "variants": manifest}


def put(path: Path, data: bytes) -> None:
    """Write a file as a whole: an attempt that is killed leaves the old one, or none."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(data)
    os.replace(unfinished, path)


class FlakyTask(Task, priority=Priority.HIGH, retry=RetryPolicy(min_wait=1, max_wait=10, max_attempts=5)):
    """Fails twice; the third attempt succeeds. An asynchronous handler, for a change."""

    async def run(self, ctx: AsyncContext) -> str:
        if ctx.attempt < 3:
            raise ConnectionError(f"the service is away (attempt {ctx.attempt})")
        return f"attempt {ctx.attempt} got through"


class ChargeTask(Task, retry=RetryPolicy(min_wait=1, max_wait=10, max_attempts=5)):
    """Meets an error that no further attempt would mend."""

    account: int

    def run(self, ctx: Context) -> None:
        raise PermanentError(f"account {self.account} is closed", status=403)


class ApologyTask(Task):
    """Depends on the failure of another task."""

    def run(self, ctx: Context) -> dict[str, str]:
        return {f"task {task_id}": end for task_id, end in ctx.dependency_failures().items()}


@task(kind="Tick")
def tick(ctx: Context) -> str:
    """Made once for every slot of its schedule."""
    return f"slot {ctx.slot:%H:%M:%S}" if ctx.slot else "no slot"
