"""ImageResizerTask: bombs, damaged files and bad fields."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from typing import Any

import msgspec
import pytest

from scheduler import PermanentError
from scheduler.tasks import ImageResizerTask
from scheduler.tasks.files.blob_store import BlobStore
from scheduler.tasks.files.image_scaling import make_variant

from .pictures import (
    encoded,
    photo,
    quarters,
    resize,
    upload,
)


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [9000, 30000, 65535])
@pytest.mark.filterwarnings("error::PIL.Image.DecompressionBombWarning")
def test_decompression_bombs_are_refused(side: int, settings: dict[str, Any]) -> None:
    with pytest.raises(PermanentError, match="decompression bomb"):
        resize(upload(png_header(side, side), settings), settings)


def test_the_pixel_limit_is_a_setting(settings: dict[str, Any]) -> None:
    source = upload(encoded(quarters(100, 100)), settings)
    settings["files"]["max_pixels"] = 9999
    with pytest.raises(PermanentError, match=r"100 x 100 pixels are more than the 9999 that \[files\] max_pixels"):
        resize(source, settings)
    settings["files"]["max_pixels"] = 10000
    resize(source, settings)
    settings["files"]["max_pixels"] = 0
    with pytest.raises(PermanentError, match="max_pixels"):
        resize(source, settings)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_images(settings: dict[str, Any]) -> None:
    whole = {
        "JPEG": encoded(photo(300, 200), "JPEG"),
        "PNG": encoded(photo(300, 200), "PNG"),
        "WEBP": encoded(photo(300, 200), "WEBP"),
        "AVIF": encoded(photo(300, 200), "AVIF"),
        "GIF": encoded(photo(300, 200), "GIF"),
        "TIFF": encoded(photo(300, 200), "TIFF"),
    }
    for name, data in whole.items():
        for part in (0, 1, 12, 40, len(data) // 2):
            with pytest.raises(PermanentError, match="damaged"):
                resize(upload(data[:part] or b"\0", settings, name), settings)
    for data in (b"", b"not an image", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"):
        with pytest.raises(PermanentError, match="damaged"):
            resize(upload(data, settings), settings)


def test_an_error_of_the_disk_is_an_ordinary_failure() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        make_variant(Broken(), box=(10, 10), format="webp", quality=50, max_pixels=1000)


def test_no_such_file_of_this_tenant(settings: dict[str, Any]) -> None:
    source = upload(encoded(quarters(80, 80)), settings)
    with pytest.raises(PermanentError, match="tenant 8 has no file f1~"):
        resize(source, settings, tn_id=8)
    BlobStore.from_settings(settings).path(source).unlink()
    with pytest.raises(PermanentError, match="there is no blob"):
        resize(source, settings)


def test_without_pillow(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    source = upload(encoded(quarters(80, 80)), settings)
    monkeypatch.delitem(sys.modules, "scheduler.tasks.files.image_scaling")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PermanentError, match=r"pip install 'schedd\[images\]'"):
        resize(source, settings)


def test_a_pillow_without_the_format(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    source = upload(encoded(quarters(80, 80)), settings)
    monkeypatch.setattr("PIL.features.check", lambda name: name != "avif")
    with pytest.raises(PermanentError, match="cannot write avif"):
        resize(source, settings, format="avif")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tn_id": -1}, "tn_id|>= 0"),
        ({"source_file_id": "../x"}, "file id"),
        ({"variant": "xxl"}, "variant|matching"),
        ({"format": "bmp"}, "format|matching"),
        ({"format": "AVIF"}, "format|matching"),
        ({"quality": 0}, "quality|>= 1"),
        ({"quality": 101}, "quality|<= 100"),
        ({"target_width": 0}, "target_width|>= 1"),
        ({"target_height": 16384}, "target_height|<= 16383"),
    ],
)
def test_bad_fields_are_refused_when_built(fields: dict[str, Any], text: str) -> None:
    all_fields = {
        "tn_id": 1,
        "source_file_id": "f1~" + "A" * 43,
        "variant": "tn",
        "target_width": 10,
        "target_height": 10,
        "format": "webp",
        "quality": 50,
        **fields,
    }
    with pytest.raises(ValueError, match=text):
        ImageResizerTask(**all_fields)
    with pytest.raises(msgspec.ValidationError, match=text):
        msgspec.convert(all_fields, ImageResizerTask)
