"""Drawing pictures in tests, and having them resized."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
from PIL import Image

from scheduler.tasks import FileIdGeneratorTask, ImageResizerTask
from scheduler.tasks.files.blob_store import BlobStore

from .fake import FakeContext

ORIENTATION = 0x0112
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def upload(data: bytes, settings: dict[str, Any], name: str = "photo.jpg", tn_id: int = 7) -> str:
    path = Path(settings["files"]["roots"][0]) / "upload"
    path.write_bytes(data)
    ctx: Any = FakeContext(settings)
    return str(FileIdGeneratorTask(tn_id, str(path), name).run(ctx)["file_id"])


def resize(file_id: str, settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    ctx: Any = more.pop("ctx", None) or FakeContext(settings)
    fields = {
        "tn_id": 7,
        "source_file_id": file_id,
        "variant": "tn",
        "target_width": 64,
        "target_height": 64,
        "format": "webp",
        "quality": 80,
        **more,
    }
    return msgspec.convert(fields, ImageResizerTask).run(ctx)


def result_of(record: dict[str, Any], settings: dict[str, Any]) -> Image.Image:
    with BlobStore.from_settings(settings).open(record["file_id"]) as file:
        image = Image.open(file)
        image.load()
    assert image.size == (record["width"], record["height"])
    return image


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def quarters(width: int, height: int) -> Image.Image:
    """Red, green; blue, white: so that one sees which way is up."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(GREEN, (width // 2, 0, width, height // 2))
    image.paste(BLUE, (0, height // 2, width // 2, height))
    image.paste(WHITE, (width // 2, height // 2, width, height))
    return image


def photo(width: int, height: int) -> Image.Image:
    return Image.merge(
        "RGB",
        [Image.linear_gradient("L").rotate(turn).resize((width, height)) for turn in (0, 90, 180)],
    )


def near(found: Any, wanted: tuple[int, ...], by: int = 24) -> bool:
    return all(abs(a - b) <= by for a, b in zip(found, wanted, strict=True))


def corners(image: Image.Image) -> list[Any]:
    x, y = image.width // 4, image.height // 4
    image = image.convert("RGB")
    return [image.getpixel(at) for at in ((x, y), (3 * x, y), (x, 3 * y), (3 * x, 3 * y))]
