"""FileIdGeneratorTask: crashes between any two steps, two attempts at a time, files that change."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scheduler.errors import Cancelled
from scheduler.tasks import FileIdGeneratorTask
from scheduler.tasks.files.blob_store import BlobStore

from .commands import descriptors
from .fake import FakeContext, file_settings
from .uploads import DATA, id_of, run, store_of, tree, without_created

# Crashes


class Crash(BaseException):
    pass


STEPS = ("link", "replace", "unlink", "fsync", "mkdir", "fchmod", "write")


@contextmanager
def crash_at(number: int) -> Iterator[Callable[[], int]]:
    """From step ``number`` on nothing is done any more, as after kill -9: no cleaning up either."""
    done = 0

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal done
            done += 1
            if done >= number:
                raise Crash
            return real(*args, **kwargs)

        return step

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, wrap(getattr(os, name)))
        yield lambda: done


def shape_of(store: BlobStore) -> set[str]:
    """What is in the store, without tmp and the names of receipts, which depend on the upload's directory."""
    names = {name for name in tree(store.root) if not name.startswith("tmp/")}
    return {re.sub(r"[0-9a-f]{2}/[0-9a-f]{64}", "*", name) for name in names}


@pytest.mark.parametrize("copied", [False, True])
def test_a_crash_at_any_step_and_then_again(copied: bool, tmp_path: Path) -> None:
    def fresh(name: str) -> tuple[dict[str, Any], Path]:
        directory = tmp_path / name
        directory.mkdir()
        settings = file_settings(directory)
        upload = directory / "incoming" / "upload"
        upload.write_bytes(DATA)
        if copied:
            os.link(upload, directory / "other-link")
        return settings, upload

    settings, upload = fresh("whole")
    with crash_at(10**6) as steps:
        expected = without_created(run(upload, settings))
        count = steps()
    shape = shape_of(store_of(settings))
    assert count >= 10

    for number in range(1, count + 1):
        settings, upload = fresh(f"crash-{number}")
        with crash_at(number), pytest.raises(Crash):
            run(upload, settings)
        store = store_of(settings)
        # Never is anything lost, nor anything half written to be found.
        assert upload.exists() or store.receipt(7, str(upload)) is not None
        if store.exists(id_of(DATA)):
            assert store.path(id_of(DATA)).read_bytes() == DATA
        first = store.metadata(7, id_of(DATA))

        result = run(upload, settings)

        assert without_created(result) == expected
        assert not upload.exists()
        assert store.path(id_of(DATA)).read_bytes() == DATA
        known = store.metadata(7, id_of(DATA))
        assert known is not None
        assert known["created"] == result["created"]
        assert first is None or first["created"] == result["created"]
        assert shape_of(store) == shape
        assert run(upload, settings) == result


def test_two_attempts_at_a_time(upload: Path, settings: dict[str, Any]) -> None:
    """A late worker runs the body a second time: both may succeed, neither may lose the file."""
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda _: run(upload, settings), range(8)))
    assert {result["file_id"] for result in results} == {id_of(DATA)}
    assert store_of(settings).path(id_of(DATA)).read_bytes() == DATA


# Large files, cancelling, changes


def test_progress_of_a_large_file(upload: Path, settings: dict[str, Any]) -> None:
    with upload.open("wb") as file:
        file.truncate(20 << 20)
    ctx: Any = FakeContext(settings)
    FileIdGeneratorTask(7, str(upload), "big").run(ctx)
    percents = [percent for percent, _ in ctx.progress]
    assert percents == sorted(percents)
    assert percents[-1] == 100
    assert 10 <= len(percents) <= 20


def test_cancelling_leaves_the_upload(upload: Path, settings: dict[str, Any]) -> None:
    with upload.open("wb") as file:
        file.truncate(20 << 20)
    ctx: Any = FakeContext(settings, cancel_when=lambda ctx: ctx.checks > 5)
    before = descriptors()
    with pytest.raises(Cancelled):
        FileIdGeneratorTask(7, str(upload), "big").run(ctx)
    assert upload.exists()
    assert tree(store_of(settings).root) == set()
    assert descriptors() <= before


@pytest.mark.parametrize("copied", [False, True])
def test_a_file_that_changes_meanwhile_is_an_ordinary_failure(
    copied: bool, upload: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    if copied:
        os.link(upload, tmp_path / "other-link")

    def append(ctx: FakeContext) -> bool:
        with upload.open("ab") as file:
            file.write(b"more")
        return False

    ctx: Any = FakeContext(settings, cancel_when=append)
    with pytest.raises(OSError, match="changed while it was read"):
        FileIdGeneratorTask(7, str(upload), "x").run(ctx)
    assert upload.exists()
    assert tree(store_of(settings).root) == set()


def test_a_new_upload_under_the_same_name_is_not_removed(upload: Path, settings: dict[str, Any]) -> None:
    def exchange(ctx: FakeContext) -> bool:
        upload.unlink()
        upload.write_bytes(b"the next one")
        return False

    ctx: Any = FakeContext(settings, cancel_when=exchange)
    # The file that was open lost its last name, so it is copied from the descriptor.
    assert FileIdGeneratorTask(7, str(upload), "x").run(ctx)["file_id"] == id_of(DATA)
    assert upload.read_bytes() == b"the next one"
