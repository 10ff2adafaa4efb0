"""ImageResizerTask, with real pictures drawn by Pillow."""

from __future__ import annotations

import io
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from PIL import Image, ImageCms, ImageOps

from scheduler import PermanentError
from scheduler.errors import Cancelled
from scheduler.model.registry import Registry
from scheduler.tasks import ImageResizerTask
from scheduler.tasks.files.blob_store import BlobStore
from scheduler.tasks.files.image_scaling import fit

from .fake import FakeContext
from .pictures import (
    BLUE,
    GREEN,
    ORIENTATION,
    RED,
    WHITE,
    corners,
    encoded,
    near,
    photo,
    quarters,
    resize,
    result_of,
    upload,
)

# The usual way


@pytest.mark.parametrize("format", ["avif", "webp", "jpeg"])
def test_every_format(format: str, settings: dict[str, Any]) -> None:
    source = upload(encoded(quarters(200, 100), "JPEG", quality=95), settings)
    record = resize(source, settings, format=format)
    image = result_of(record, settings)
    assert image.format == format.upper()
    assert image.size == (64, 32)
    assert all(near(found, wanted) for found, wanted in zip(corners(image), (RED, GREEN, BLUE, WHITE), strict=True))
    assert record["content_type"] == f"image/{format}"
    assert record["source_file_id"] == source
    assert record["variant"] == "tn"
    store = BlobStore.from_settings(settings)
    known = store.metadata(7, source)
    assert known is not None
    assert known["variants"] == [record]
    own = store.metadata(7, record["file_id"])
    assert own is not None
    assert (own["source_file_id"], own["size"], own["original_filename"]) == (
        source,
        record["size"],
        "photo.jpg",
    )


def test_a_photo_of_twelve_megapixels(settings: dict[str, Any]) -> None:
    source = upload(encoded(photo(4000, 3000), "JPEG", quality=90), settings)
    record = resize(source, settings, variant="hd", target_width=1920, target_height=1080, format="avif", quality=50)
    assert result_of(record, settings).size == (1440, 1080)
    thumbnail = resize(source, settings)
    wanted = photo(4000, 3000).resize((64, 48), Image.Resampling.LANCZOS)
    found = result_of(thumbnail, settings).convert("RGB")
    assert all(near(a, b) for a, b in zip(corners(found), corners(wanted), strict=True))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(orientation: int, settings: dict[str, Any]) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    image = quarters(120, 60)
    data = encoded(image, "JPEG", quality=95, exif=exif)
    record = resize(upload(data, settings), settings, format="jpeg", quality=95, target_width=40, target_height=30)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    found = result_of(record, settings)
    assert found.size == fit(upright.size, (40, 30))
    assert found.size == ((40, 20) if orientation <= 4 else (15, 30))
    assert all(near(a, b) for a, b in zip(corners(found), corners(upright), strict=True))
    assert ORIENTATION not in found.getexif()


def test_nothing_is_enlarged(settings: dict[str, Any]) -> None:
    source = upload(encoded(quarters(30, 20)), settings, "small.png")
    assert result_of(resize(source, settings), settings).size == (30, 20)


@pytest.mark.parametrize(
    ("size", "box", "expected"),
    [
        ((4000, 3000), (1920, 1080), (1440, 1080)),
        ((3000, 4000), (1920, 1080), (810, 1080)),
        ((100, 100), (100, 100), (100, 100)),
        ((10, 10), (100, 100), (10, 10)),
        ((10000, 1), (100, 100), (100, 1)),
        ((3, 2), (1, 1), (1, 1)),
    ],
)
def test_fit(size: tuple[int, int], box: tuple[int, int], expected: tuple[int, int]) -> None:
    assert fit(size, box) == expected


def test_transparency(settings: dict[str, Any]) -> None:
    image = quarters(80, 80).convert("RGBA")
    image.paste((0, 0, 0, 0), (0, 0, 40, 40))
    for name, data in (("a.png", encoded(image)), ("p.png", encoded(image.quantize(16)))):
        source = upload(data, settings, name)
        assert near(corners(result_of(resize(source, settings, format="jpeg"), settings))[0], WHITE)
        kept = result_of(resize(source, settings, format="webp"), settings)
        assert kept.mode == "RGBA"
        assert kept.getpixel((10, 10))[3] < 24  # type: ignore[index]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "I;16", "CMYK", "F"])
@pytest.mark.parametrize("format", ["avif", "webp", "jpeg"])
def test_every_mode(mode: str, format: str, settings: dict[str, Any]) -> None:
    grey = Image.linear_gradient("L")  # dark above, light below
    if mode == "I;16":
        image = Image.frombytes("I;16", grey.size, b"".join(bytes((v, v)) for v in grey.tobytes()))
    else:
        image = grey.convert(mode)
    data = encoded(image, "TIFF" if mode in ("CMYK", "F") else "PNG")
    found = corners(result_of(resize(upload(data, settings), settings, format=format), settings))
    assert near(found[0], (64, 64, 64))
    assert near(found[3], (192, 192, 192))


def test_the_colour_profile_stays_and_exif_goes(settings: dict[str, Any]) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    exif = Image.Exif()
    exif[0x010F] = "maker of cameras"
    data = encoded(quarters(80, 80), "JPEG", exif=exif, icc_profile=profile, comment=b"where I live")
    source = upload(data, settings)
    for format in ("avif", "webp", "jpeg"):
        found = result_of(resize(source, settings, format=format), settings)
        assert found.info["icc_profile"] == profile
        assert not found.getexif()
        assert "comment" not in found.info


def test_a_profile_that_does_not_fit_goes(settings: dict[str, Any]) -> None:
    profile = b"\0" * 16 + b"CMYK" + b"\0" * 108
    source = upload(encoded(quarters(80, 80), "JPEG", icc_profile=profile), settings)
    assert "icc_profile" not in result_of(resize(source, settings, format="jpeg"), settings).info


def test_the_first_picture_of_an_animation(settings: dict[str, Any]) -> None:
    data = encoded(
        Image.new("RGB", (50, 50), RED),
        "GIF",
        save_all=True,
        append_images=[Image.new("RGB", (50, 50), BLUE)],
    )
    found = result_of(resize(upload(data, settings), settings), settings)
    assert getattr(found, "n_frames", 1) == 1
    assert near(corners(found)[0], RED)


# Again, in parallel, after its parent


def test_it_can_run_again(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    source = upload(encoded(quarters(80, 80)), settings)
    first = resize(source, settings)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "scheduler.tasks.files.image_scaling", None)  # it does not need to draw again
        assert resize(source, settings) == first
    # Killed between the blob and the listing, or the blob lost: it is made again.
    store = BlobStore.from_settings(settings)
    store.path(first["file_id"]).unlink()
    assert resize(source, settings)["file_id"] == first["file_id"]
    assert store.exists(first["file_id"])


def test_other_parameters_replace_a_variant(settings: dict[str, Any]) -> None:
    source = upload(encoded(photo(80, 80)), settings)
    resize(source, settings)
    small = resize(source, settings, target_width=20)
    webp = resize(source, settings, format="jpeg")
    known = BlobStore.from_settings(settings).metadata(7, source)
    assert known is not None
    assert known["variants"] == [webp, small]


def test_variants_in_parallel_lose_nothing(settings: dict[str, Any]) -> None:
    source = upload(encoded(photo(400, 300), "JPEG"), settings)
    sizes = {"tn": 32, "sd": 64, "md": 128, "hd": 256, "xd": 400}

    def make(variant: str) -> dict[str, Any]:
        side = sizes[variant]
        return resize(source, settings, variant=variant, target_width=side, target_height=side)

    with ThreadPoolExecutor(10) as threads:
        records = list(threads.map(make, [*sizes, *sizes]))
    known = BlobStore.from_settings(settings).metadata(7, source)
    assert known is not None
    assert {variant["variant"]: variant["width"] for variant in known["variants"]} == sizes
    assert {record["file_id"] for record in records} == {variant["file_id"] for variant in known["variants"]}


def test_the_source_from_the_parents_result(settings: dict[str, Any]) -> None:
    source = upload(encoded(quarters(80, 80)), settings)
    ctx = FakeContext(settings, results={1: {"file_id": source}, 2: None, 3: {"else": 1}})
    assert resize("", settings, ctx=ctx)["source_file_id"] == source
    for results in ({}, {1: {"file_id": source}, 2: {"file_id": "f1~" + "A" * 43}}):
        with pytest.raises(PermanentError, match="exactly one file_id"):
            resize("", settings, ctx=FakeContext(settings, results=results))
    with pytest.raises(PermanentError, match="not a file id"):
        resize("", settings, ctx=FakeContext(settings, results={1: {"file_id": "../x"}}))


def test_cancelling(settings: dict[str, Any]) -> None:
    source = upload(encoded(quarters(80, 80)), settings)
    for checks in (1, 2, 3, 4):
        ctx = FakeContext(settings, cancel_when=lambda ctx, checks=checks: ctx.checks >= checks)
        with pytest.raises(Cancelled):
            resize(source, settings, ctx=ctx)
    known = BlobStore.from_settings(settings).metadata(7, source)
    assert known is not None
    assert known["variants"] == []


def test_it_runs_in_a_process_of_its_own() -> None:
    registry = Registry()
    registry.add(ImageResizerTask)
    assert [kind.options.isolation for kind in registry] == ["process"]
