"""FileIdGeneratorTask and the blob store beneath it: real files, and crashes between any two steps."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler import PermanentError
from scheduler.tasks import FileIdGeneratorTask
from scheduler.tasks.files import blob_store
from scheduler.tasks.files.blob_store import BlobMissing

from .commands import descriptors
from .fake import FakeContext
from .uploads import DATA, id_of, run, store_of, tree, without_created

# The usual way


def test_a_file_becomes_a_blob(upload: Path, settings: dict[str, Any]) -> None:
    inode = upload.stat().st_ino
    result = run(upload, settings)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", result["created"])
    assert without_created(result) == {
        "file_id": id_of(DATA),
        "tn_id": 7,
        "original_filename": "fox.txt",
        "size": len(DATA),
        "content_type": "text/plain",
    }
    store = store_of(settings)
    assert not upload.exists()
    assert store.path(id_of(DATA)).read_bytes() == DATA
    assert store.path(id_of(DATA)).stat().st_ino == inode  # moved, not copied
    assert not store.path(id_of(DATA)).stat().st_mode & 0o222
    assert store.metadata(7, id_of(DATA)) == {**result, "variants": []}
    assert store.metadata(8, id_of(DATA)) is None
    assert not list((store.root / "tmp").iterdir())


def test_it_can_run_again(upload: Path, settings: dict[str, Any]) -> None:
    first = run(upload, settings)
    assert run(upload, settings) == first


def test_it_can_run_again_when_the_directory_is_gone(tmp_path: Path, settings: dict[str, Any]) -> None:
    directory = tmp_path / "incoming" / "one"
    directory.mkdir()
    (directory / "upload").write_bytes(DATA)
    first = run(directory / "upload", settings)
    directory.rmdir()
    assert run(directory / "upload", settings) == first


def test_the_same_content_again_is_one_blob(upload: Path, settings: dict[str, Any]) -> None:
    first = run(upload, settings)
    upload.write_bytes(DATA)
    again = run(upload, settings, name="other.txt")
    assert not upload.exists()
    assert (again["file_id"], again["created"]) == (first["file_id"], first["created"])
    upload.write_bytes(DATA)
    run(upload, settings, tn_id=8)
    known = store_of(settings).metadata(7, first["file_id"])
    assert known is not None
    assert known["original_filename"] == "fox.txt"
    assert len(tree(store_of(settings).root / "data")) == 1


def test_another_file_at_the_same_path(upload: Path, settings: dict[str, Any]) -> None:
    run(upload, settings)
    upload.write_bytes(b"new")
    assert run(upload, settings)["file_id"] == id_of(b"new")
    assert run(upload, settings)["file_id"] == id_of(b"new")


def test_an_empty_file(upload: Path, settings: dict[str, Any]) -> None:
    upload.write_bytes(b"")
    assert run(upload, settings)["size"] == 0


@pytest.mark.parametrize(
    ("head", "name", "expected"),
    [
        (b"\xff\xd8\xff\xe0", "lies.png", "image/jpeg"),
        (b"\0\0\0\x1cftypavif", "x", "image/avif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "x", "image/webp"),
        (b"text", "page.html", "text/html"),
        (b"text", "no-idea", "application/octet-stream"),
    ],
)
def test_content_type(head: bytes, name: str, expected: str, upload: Path, settings: dict[str, Any]) -> None:
    upload.write_bytes(head)
    assert run(upload, settings, name=name)["content_type"] == expected


# When it must be copied


def test_a_file_with_another_link_is_copied(upload: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    os.link(upload, tmp_path / "still-mine")
    result = run(upload, settings)
    (tmp_path / "still-mine").write_bytes(b"changed later")
    assert store_of(settings).path(result["file_id"]).read_bytes() == DATA
    assert not upload.exists()


@pytest.mark.needs("a filesystem at /dev/shm")
def test_another_filesystem(tmp_path: Path, settings: dict[str, Any]) -> None:
    upload = Path("/dev/shm") / f"schedd-test-{os.getpid()}"
    upload.write_bytes(DATA)
    try:
        settings["files"]["roots"].append("/dev/shm")
        result = run(upload, settings)
        assert not upload.exists()
        assert store_of(settings).path(result["file_id"]).read_bytes() == DATA
        assert not list((store_of(settings).root / "tmp").iterdir())
    finally:
        upload.unlink(missing_ok=True)


def test_without_hard_links(upload: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert store_of(settings).path(run(upload, settings)["file_id"]).read_bytes() == DATA


def test_a_damaged_blob_is_replaced(upload: Path, settings: dict[str, Any]) -> None:
    target = store_of(settings).path(id_of(DATA))
    target.parent.mkdir(parents=True)
    target.write_bytes(DATA[:10])
    run(upload, settings)
    assert target.read_bytes() == DATA


def test_what_crashed_writers_left_is_swept(settings: dict[str, Any]) -> None:
    store = store_of(settings)
    store.put(b"one")
    old, new = store.root / "tmp" / "old", store.root / "tmp" / "new"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    store.put(b"two")
    assert not old.exists()
    assert new.exists()


# Bad input


def refused(path: Path | str, settings: dict[str, Any], text: str) -> None:
    before = descriptors()
    with pytest.raises(PermanentError, match=text):
        run(path, settings)
    assert descriptors() <= before
    assert tree(store_of(settings).root / "data") == set()


def test_a_file_that_never_was(tmp_path: Path, settings: dict[str, Any]) -> None:
    refused(tmp_path / "incoming" / "nothing", settings, "there is no file .*was not stored before")
    refused(tmp_path / "incoming" / "no" / "directory", settings, "there is no file")


def test_a_receipt_without_its_blob(upload: Path, settings: dict[str, Any]) -> None:
    store_of(settings).path(run(upload, settings)["file_id"]).unlink()
    refused(upload, settings, "that blob is gone")


def test_paths_are_confined(tmp_path: Path, upload: Path, settings: dict[str, Any]) -> None:
    incoming, outside = tmp_path / "incoming", tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"s")
    (tmp_path / "incoming-too").mkdir()
    (tmp_path / "incoming-too" / "x").write_bytes(b"s")
    (incoming / "link").symlink_to(outside)
    (incoming / "file-link").symlink_to(outside / "secret")
    (incoming / "inner-link").symlink_to(upload)
    os.mkfifo(incoming / "fifo")
    refused(outside / "secret", settings, r"not allowed: it must lie inside .*\[files\] roots")
    refused(tmp_path / "incoming-too" / "x", settings, "not allowed")
    refused(f"{incoming}/../outside/secret", settings, r"without '\.\.'")
    refused(incoming / "link" / "secret", settings, "not allowed")
    refused(incoming / "file-link", settings, "symbolic link")
    refused(incoming / "inner-link", settings, "symbolic link")
    refused(incoming / "fifo", settings, "not a regular file")
    refused(incoming, settings, "not allowed")
    (incoming / "sub").mkdir()
    refused(incoming / "sub", settings, "not a regular file")
    assert (outside / "secret").exists()


def test_a_directory_that_is_exchanged_for_a_link(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the path and its use."""
    inside, outside = tmp_path / "incoming" / "sub", tmp_path / "outside"
    for directory in (inside, outside):
        directory.mkdir()
        (directory / "x").write_text(directory.name)
    real = os.path.realpath

    def look(path: Any) -> str:
        found = real(path)
        if found == str(inside) and not inside.is_symlink():
            inside.rename(tmp_path / "away")
            inside.symlink_to(outside)
        return str(found)

    monkeypatch.setattr(os.path, "realpath", look)
    with pytest.raises(PermanentError, match="exchanged for a link"):
        FileIdGeneratorTask(7, str(inside / "x"), "x").run(FakeContext(settings))  # type: ignore[arg-type]
    assert (outside / "x").exists()


def test_links_that_stay_inside_are_followed(upload: Path, settings: dict[str, Any]) -> None:
    (upload.parent / "real").mkdir()
    upload.rename(upload.parent / "real" / "upload")
    (upload.parent / "link").symlink_to("real")
    assert run(upload.parent / "link" / "upload", settings)["file_id"] == id_of(DATA)


def test_the_store_itself_is_no_source(tmp_path: Path, settings: dict[str, Any]) -> None:
    settings["files"]["roots"] = [str(tmp_path)]
    blob = store_of(settings).put(DATA)
    with pytest.raises(PermanentError, match="not allowed"):
        run(store_of(settings).path(blob.file_id), settings)


def test_missing_settings_say_how_to_set_them(upload: Path) -> None:
    with pytest.raises(PermanentError, match=r'\[files\] blobs = "/var/lib/schedd/blobs"'):
        run(upload, {})
    with pytest.raises(PermanentError, match=r'\[files\] roots = \["/var/lib/schedd/incoming"\]'):
        run(upload, {"files": {"blobs": str(upload.parent / "b"), "roots": ()}})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tn_id": -1}, "tn_id|>= 0"),
        ({"temp_file_path": "relative"}, "absolute"),
        ({"temp_file_path": "/a\0b"}, "absolute"),
        ({"original_filename": ""}, "name of a file|length"),
        ({"original_filename": "../x"}, "name of a file"),
        ({"original_filename": "a\0b"}, "name of a file"),
    ],
)
def test_bad_fields_are_refused_when_built(fields: dict[str, Any], text: str) -> None:
    all_fields = {"tn_id": 1, "temp_file_path": "/x/y", "original_filename": "y", **fields}
    with pytest.raises(ValueError, match=text):
        FileIdGeneratorTask(**all_fields)
    with pytest.raises(msgspec.ValidationError, match=text):
        msgspec.convert(all_fields, FileIdGeneratorTask)


# The store alone


def test_ids_are_checked_before_they_become_paths(settings: dict[str, Any]) -> None:
    store = store_of(settings)
    for bad in ("", "f1~", "f1~../../../etc/passwd", id_of(b"") + "\n", "x" + id_of(b"")):
        with pytest.raises(ValueError, match="not a file id"):
            store.path(bad)
        with pytest.raises(ValueError, match="not a file id"):
            store.metadata(1, bad)


def test_put_and_open(settings: dict[str, Any]) -> None:
    store = store_of(settings)
    blob = store.put(DATA)
    assert blob == blob_store.Blob(id_of(DATA), len(DATA))
    assert store.put(DATA) == blob
    with store.open(blob.file_id) as file:
        assert file.read() == DATA
    with pytest.raises(BlobMissing, match="there is no blob"):
        store.open(id_of(b"other"))
