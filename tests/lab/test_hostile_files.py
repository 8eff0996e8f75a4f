"""Files made to do harm: they are refused in one line, quickly, and start nothing."""

from __future__ import annotations

import io
import os
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from refusals import refusal
from report_runs import write_run
from train_helpers import small

from mpelu.lab import data
from mpelu.lab.config import Config
from mpelu.lab.data.own import read_npz
from mpelu.lab.data.registry import DATA_SETS
from mpelu.lab.files import parse_json, read_bytes
from mpelu.lab.reporting.runs import read_run
from mpelu.lab.run.verification import verify

GRAY = small(image_size=8)


def decode(path: Path, config: Config = GRAY) -> torch.Tensor:
    return data.read_image(path, config, channels=1)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def black_png(width: int, height: int) -> bytes:
    """A valid PNG, a thousandth of the size of its pixels."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compressobj(9)
    body = b"".join(rows.compress(bytes(1 + (width + 7) // 8)) for _ in range(height))
    body += rows.flush()
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


def saved(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def test_a_program_named_like_an_image_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow would hand PostScript to Ghostscript, in which this one loops forever."""
    ran = tmp_path / "ran"
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    path = tmp_path / "cat.jpg"
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n{} loop\n")
    with refusal(path, "an image"):
        decode(path)
    assert not ran.exists()


@pytest.mark.parametrize("kind", ["GIF", "ICO", "PCX", "TGA", "PDF", "JPEG2000"])
def test_other_formats_are_refused_whatever_their_suffix(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(saved(Image.new("L", (16, 16)), kind))
    with refusal(path, "an image"):
        decode(path)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF"])
def test_documented_formats_are_read_whatever_their_suffix(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "image.dat"
    path.write_bytes(saved(Image.new("L", (16, 16), 200), kind))
    assert (decode(path).float() - 200).abs().max() <= 2


def test_a_small_file_with_very_many_pixels(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    path.write_bytes(black_png(13_000, 13_000))
    assert path.stat().st_size < 100_000
    with refusal(path, "--max-pixels", "13,000 x 13,000"):
        decode(path)
    path.write_bytes(black_png(600, 400))
    with refusal(path, "200,000 pixels"):
        decode(path, small(image_size=8, max_pixels=200_000))
    assert decode(path, small(image_size=8, max_pixels=240_000)).sum() == 0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (numpy.full((4, 4), -3, numpy.int32), "-3 to -3"),
        (numpy.full((4, 4), 70_000, numpy.int32), "70000 to 70000"),
        (numpy.full((4, 4), numpy.nan, numpy.float32), "nan to nan"),
        (numpy.full((4, 4), 256, numpy.float32), "256.0 to 256.0"),
    ],
)
def test_values_out_of_range_do_not_wrap(
    tmp_path: Path, values: numpy.typing.NDArray[numpy.generic], said: str
) -> None:
    path = tmp_path / "image.tif"
    Image.fromarray(values).save(path)
    with refusal(path, said):
        decode(path)


def test_values_in_range_are_scaled(tmp_path: Path) -> None:
    path = tmp_path / "image.tif"
    Image.fromarray(numpy.full((4, 4), 51_400, numpy.int32)).save(path)
    assert decode(path).unique().tolist() == [200]
    Image.fromarray(numpy.full((4, 4), 200, numpy.float32)).save(path)
    assert decode(path).unique().tolist() == [200]


def in_time(task: Callable[[], object]) -> None:
    """Runs a task that must not wait for anything."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            task()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it waits"
    if raised:
        raise raised[0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are of POSIX")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "image.png"
    os.mkfifo(pipe)
    with refusal(pipe, "regular file"):
        in_time(lambda: decode(pipe))
    with refusal("regular file", kind=ValueError):
        in_time(lambda: read_bytes(pipe))
    run = tmp_path / "run"
    write_run(run, epochs=1)
    for name in ("status.json", "data.json", "metrics.jsonl"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
    in_time(lambda: read_run(run))
    in_time(lambda: verify(run))


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_to_itself_is_passed_over(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        (tmp_path / split / "b").mkdir()
        for name in "ab":
            Image.new("RGB", (8, 8)).save(tmp_path / split / name / "0.png")
        (tmp_path / split / "a" / "loop.png").symlink_to("loop.png")
    config = Config(data="folder", data_dir=str(tmp_path), image_size=8, crop=8)
    assert data.load(config, torch.device("cpu")).train_count == 2


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 65 + "]" * 65])
def test_json_nested_too_deeply(text: str) -> None:
    with refusal("64", kind=ValueError):
        parse_json(text)
    parse_json("[" * 64 + "]" * 64)


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(2 << 30)
    with refusal("1,073,741,824 bytes", "2,147,483,648", kind=ValueError):
        read_bytes(tmp_path / "file")


def test_an_array_that_claims_to_be_huge(tmp_path: Path) -> None:
    import zipfile

    text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000,), }"
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    for name in ("train.npz", "test.npz"):
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            file.writestr("images.npy", header + bytes(10))
            file.writestr("labels.npy", header + bytes(10))
    with refusal("train.npz"):
        read_npz(DATA_SETS["npz"], tmp_path)
