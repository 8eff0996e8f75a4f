"""Image folders through worker processes."""

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refusal
from torch.nn import functional
from train_helpers import AtStep, equal, final, rows

from mpelu.lab.config import Config
from mpelu.lab.data import dataset, load
from mpelu.lab.data import folder as readers
from mpelu.lab.data.augment import RandomResizedCrop
from mpelu.lab.data.folder import decode
from mpelu.lab.errors import UserError
from mpelu.lab.training.launch import resume, train

CPU = torch.device("cpu")
CLASSES = ("ant", "bee", "cow")


def make(folder: Path, each: int = 4, halves: tuple[str, ...] = ("train", "val")) -> Path:
    """Creates images of many modes and sizes, `each` per class."""
    random = np.random.default_rng(0)
    modes = ("RGB", "L", "RGBA", "CMYK")
    for half in halves:
        for label, name in enumerate(CLASSES):
            (folder / half / name).mkdir(parents=True)
            for index in range(each):
                mode = modes[index % len(modes)]
                size = (20 + 3 * index, 25 + label)
                pixels = random.integers(0, 256, (*size, 3), dtype=np.uint8)
                suffix = {"RGBA": "png", "CMYK": "JPEG"}.get(mode, "jpg")
                path = folder / half / name / f"{index:03}.{suffix}"
                Image.fromarray(pixels).convert(mode).save(path)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("images"))


def config(folder: Path, **changes: Any) -> Config:
    given: dict[str, Any] = {"image_size": 16, "crop": 12, "preprocess": "none"} | changes
    return Config(data="folder", data_dir=str(folder), **given)


def test_what_is_there(images: Path) -> None:
    data = load(config(images), CPU)
    assert data.classes == CLASSES
    assert (data.train_count, data.test_count) == (12, 12)
    assert (data.channels, data.size) == (3, 12)
    assert load(config(images), CPU).fingerprint == data.fingerprint
    assert load(config(images, train_limit=5), CPU).fingerprint != data.fingerprint


def test_batches_in_order(images: Path) -> None:
    """Classes take turns, and the center of each file is used."""
    data = load(config(images), CPU)
    batches = torch.tensor([11, 0, 3, 4, 8, 1, 2, 10, 9, 7, 6, 5]).split(5)
    seen = list(data.test(batches))
    assert [len(labels) for _, labels in seen] == [5, 5, 2]
    for batch, (pictures, labels) in zip(batches, seen, strict=True):
        assert pictures.dtype == torch.float32
        assert labels.tolist() == [index % 3 for index in batch.tolist()]
        for index, picture in zip(batch.tolist(), pictures, strict=True):
            (path,) = (images / "val" / CLASSES[index % 3]).glob(f"{index // 3:03}.*")
            expected = decode(path, 16, 3, 10**6)[:, 2:14, 2:14].float() / 255
            assert torch.equal(picture, expected)


@pytest.mark.parametrize("augment", ["none", "crop-flip", "pad-crop-flip", "resized-crop-flip"])
def test_a_sample_depends_on_seed_and_index_alone(images: Path, augment: str) -> None:
    data = load(config(images, augment=augment, preprocess="channel"), CPU)
    whole, labels = next(data.train([torch.arange(12)], 5))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    parts = list(data.train(order.split(5), 5))
    assert torch.equal(torch.cat([pictures for pictures, _ in parts]), whole[order])
    assert torch.equal(torch.cat([each for _, each in parts]), labels[order])
    other = next(data.train([torch.arange(12)], 6))[0]
    assert torch.equal(other, whole) == (augment == "none")


def part_by_torch(path: Path, box: list[int], size: int) -> torch.Tensor:
    """A part of an image file, scaled by torch to values from 0 to 1."""
    pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1).float()
    top, left, height, width, mirrored = box
    part = pixels[None, :, top : top + height, left : left + width]
    scaled = functional.interpolate(part, (size, size), mode="bilinear", antialias=True)[0] / 255
    return scaled.flip(2) if mirrored else scaled


def test_resized_crops_are_parts_of_the_whole_file(images: Path) -> None:
    data = load(config(images, augment="resized-crop-flip"), CPU)
    seen, labels = next(data.train([torch.arange(12)], 5))
    assert labels.tolist() == [index % 3 for index in range(12)]
    random_crop = RandomResizedCrop(image_size=16, size=12, device=CPU)
    numbers = random_crop.numbers(5, 12)
    for index, picture in enumerate(seen):
        (path,) = (images / "train" / CLASSES[index % 3]).glob(f"{index // 3:03}.*")
        with Image.open(path) as file:
            box = random_crop.boxes(numbers[index : index + 1], file.height, file.width)[0].tolist()
        expected = part_by_torch(path, box, 12)
        # Pillow and torch both round to whole numbers of 255.
        assert (picture - expected).abs().max() < 2 / 255
    # Test images are scaled as a whole, and cropped in the center.
    plain = load(config(images), CPU)
    tests = [next(each.test([torch.arange(12)]))[0] for each in (data, plain)]
    assert torch.equal(*tests)


def test_a_part_of_a_large_jpeg_has_twice_the_pixels_it_needs(tmp_path: Path) -> None:
    """The file is decoded at a fraction of its size, the same part all the same."""
    x, y = np.meshgrid(np.linspace(0, 255, 800), np.linspace(0, 255, 600))
    path = tmp_path / "a.jpg"
    Image.fromarray(np.stack([x, y, x * 0], 2).astype(np.uint8)).save(path, quality=95)
    box = [100, 200, 400, 300, 1]
    seen = decode(path, 24, 3, 10**6, lambda height, width: box).float() / 255
    assert (seen - part_by_torch(path, box, 24)).abs().max() < 0.03


@pytest.mark.parametrize("workers", [0, 2])
def test_resized_crops_after_a_resume_and_with_other_workers(
    images: Path, tmp_path: Path, workers: int
) -> None:
    settings = run_config(images, augment="resized-crop-flip", workers=0)
    interrupting = AtStep(1, lambda: os.kill(os.getpid(), signal.SIGINT))
    train(settings, tmp_path / "whole")
    first = train(settings, tmp_path / "run", display=interrupting)
    assert first.state == "interrupted"
    assert resume(tmp_path / "run", changes={"workers": workers}).state == "finished"
    ends = [final(tmp_path / name) for name in ("run", "whole")]
    for end in ends:
        del end["config.json"]  # it has the number of workers
    assert equal(*ends)


def test_resized_crops_of_files_are_normalized_by_channel(images: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(config(images, augment="resized-crop-flip", preprocess="mean-image"), CPU)
    assert str(caught.value) == (
        "augment: resized-crop-flip of image files requires --preprocess channel or none, got "
        "mean-image"
    )


def test_nothing_else_random_is_touched(images: Path) -> None:
    before = torch.get_rng_state()
    data = load(config(images, augment="crop-flip", preprocess="channel"), CPU)
    list(data.train([torch.arange(12)], 5))
    list(data.test([torch.arange(12)]))
    digits = load(Config(augment="crop-flip", crop=6), CPU)
    list(digits.train([torch.arange(12)], 5))
    assert torch.equal(torch.get_rng_state(), before)


def test_sizes_left_to_us(images: Path) -> None:
    data = load(Config(data="folder", data_dir=str(images), preprocess="none"), CPU)
    assert data.size == 224
    assert next(data.test([torch.arange(2)]))[0].shape == (2, 3, 224, 224)
    small = Config(data="folder", data_dir=str(images), preprocess="none", image_size=48)
    assert load(small, CPU).size == 48


def test_limits(images: Path) -> None:
    data = load(config(images, train_limit=4, test_limit=2), CPU)
    assert (data.train_count, data.test_count) == (4, 2)
    assert next(data.train([torch.arange(4)], 0))[1].tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("kind", ["channel", "mean-image", "gcn-zca"])
def test_fitted_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    make(tmp_path)
    data = load(config(tmp_path, preprocess=kind), CPU)
    (kept,) = (tmp_path / "cache").glob(f"{kind}-*.safetensors")
    everything = next(load(config(tmp_path, crop=16), CPU).train([torch.arange(12)], 0))[0] * 255
    if kind == "mean-image":
        assert torch.allclose(data.preprocess.state()["mean"], everything.mean(0), atol=1e-3)
    if kind == "channel":
        assert torch.allclose(data.preprocess.state()["mean"], everything.mean((0, 2, 3)))
    monkeypatch.setattr(readers.FileReader, "read", lambda *_: pytest.fail("read again"))
    again = load(config(tmp_path, preprocess=kind), CPU)
    for name, tensor in data.preprocess.state().items():
        assert torch.equal(tensor, again.preprocess.state()[name])
    assert kept.exists()


def test_fitted_on_evenly_spaced_images(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "MAX_FITTED", 4)
    asked = []
    real = readers.FileReader.read

    def read(
        self: readers.FileReader, batches: Iterable[torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        batches = list(batches)
        asked.extend(batches)
        return real(self, batches)

    monkeypatch.setattr(readers.FileReader, "read", read)
    load(config(images, preprocess="mean-image", image_size=13), CPU)
    assert torch.cat(asked).tolist() == [0, 3, 6, 9]


def test_test_folder_in_place_of_val(tmp_path: Path) -> None:
    make(tmp_path, each=1, halves=("train", "test"))
    data = load(config(tmp_path), CPU)
    assert data.test_count == 3


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    make(tmp_path, each=1)
    (tmp_path / "train" / "ant" / "notes.txt").write_text("x")
    (tmp_path / "train" / "ant" / ".hidden.jpg").write_text("x")
    (tmp_path / "train" / ".hidden").mkdir()
    (tmp_path / "train" / "README").write_text("x")
    data = load(config(tmp_path), CPU)
    assert (data.train_count, data.classes) == (3, CLASSES)


def damage(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.write_bytes(path.read_bytes()[:-150])


def test_too_many_damaged_files(tmp_path: Path) -> None:
    make(tmp_path)
    damage(tmp_path, *(f"{half}/{name}" for half in ("train", "val") for name in TWO))
    data = load(config(tmp_path), CPU)
    expected = (
        r"2 of 12 images are damaged, where at most 1 may be; remove or replace them: "
        r"bee/001\.jpg, cow/002\.png"
    )
    with pytest.raises(UserError, match=rf"train: {expected}$"):
        list(data.train(torch.arange(12).split(12), 0))
    with pytest.raises(UserError, match=rf"val: {expected}$"):
        list(data.test(torch.arange(12).split(12)))
    with pytest.raises(UserError, match=rf"train: {expected}$"):
        load(config(tmp_path, preprocess="channel"), CPU)


TWO = ("bee/001.jpg", "cow/002.png")


def test_an_error_names_some_files(tmp_path: Path) -> None:
    make(tmp_path)
    damage(tmp_path, *(f"train/{name}/{i:03}.jpg" for name in CLASSES for i in (0, 1)))
    with pytest.raises(UserError, match=r"6 of 12 images .*: ant/000\.jpg, .* and 1 more$"):
        list(load(config(tmp_path), CPU).train([torch.arange(12)], 0))


@pytest.mark.parametrize(
    ("count", "most"),
    [(1, 0), (2, 1), (39, 1), (40, 2), (199, 9), (200, 10), (10_999, 10), (11_000, 11)],
)
def test_how_many_files_may_be_damaged(count: int, most: int) -> None:
    assert readers.most_damaged(count) == most


def test_few_damaged_files_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(tmp_path)
    damage(tmp_path, "train/bee/001.jpg")  # index 4
    data = load(config(tmp_path, augment="crop-flip"), CPU)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            seen = list(data.train(torch.arange(12).split(6), 3))
    assert caplog.text.count("bee/001.jpg, which can't be decoded") == 1
    assert [labels.tolist() for _, labels in seen] == [[0, 1, 2, 0, 2], [0, 1, 2, 0, 1, 2]]
    assert [len(pictures) for pictures, _ in seen] == [5, 6]
    # The others keep their crops.
    rest = next(data.train([torch.tensor([5])], 3))[0]
    assert torch.equal(seen[0][0][4:], rest)


@pytest.mark.parametrize("augment", ["none", "crop-flip"])
def test_batch_without_an_image(tmp_path: Path, augment: str) -> None:
    make(tmp_path)
    damage(tmp_path, "train/bee/001.jpg", "val/bee/001.jpg")
    data = load(config(tmp_path, augment=augment), CPU)
    ((images, labels),) = data.train([torch.tensor([4])], 0)
    assert (images.shape, labels.shape) == ((0, 3, 12, 12), (0,))
    assert [len(labels) for _, labels in data.test(torch.tensor([3, 4, 5]).split(1))] == [1, 1]


def run_config(folder: Path, **changes: Any) -> Config:
    values = {
        "preprocess": "channel", "augment": "crop-flip", "model": "resnet-8", "epochs": 3,
        "model_options": {"width": 2}, "log_every": 1, "threads": 1,
    }  # fmt: skip
    return config(folder, **{**values, **changes})


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3")  # more than processors
@pytest.mark.parametrize("changes", [{"batch_size": 1}, {"batch_size": 4, "accumulate": 4}, {}])
def test_a_run_leaves_damaged_files_out_to_the_same_end_after_a_resume(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = make(tmp_path / "images")
    damage(folder, "train/bee/001.jpg", "val/cow/002.png")
    settings = run_config(folder, **{"batch_size": 11, **changes})
    interrupting = AtStep(2, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert train(settings, tmp_path / "run", display=interrupting).state == "interrupted"
    assert resume(tmp_path / "run", changes={"workers": 3}).state == "finished"
    train(replace(settings, workers=3), tmp_path / "whole")
    assert equal(final(tmp_path / "run"), final(tmp_path / "whole"))
    # 11 of 12 test images count.
    tests = [row for row in rows(tmp_path / "whole") if row["kind"] == "test"]
    assert all(round(row["test_error"] * 11 / 100, 9) % 1 == 0 for row in tests)


def test_file_that_vanishes(tmp_path: Path) -> None:
    make(tmp_path)
    data = load(config(tmp_path), CPU)
    (tmp_path / "train" / "ant" / "000.jpg").unlink()
    with refusal("ant/000.jpg", "FileNotFoundError"):
        list(data.train([torch.arange(12)], 0))


@pytest.mark.parametrize(
    "ending", ["data = None", "pass", "batches = data.train(twice, 1); next(batches)"]
)
def test_a_script_ends_though_workers_are_left(images: Path, ending: str) -> None:
    program = (
        "import torch\n"
        "from mpelu.lab.config import Config\n"
        "from mpelu.lab.data import load\n"
        f"config = Config(data='folder', data_dir={str(images)!r}, image_size=16, crop=12, "
        "preprocess='none', workers=2)\n"
        "data, twice = load(config, torch.device('cpu')), torch.arange(12).split(6)\n"
        f"print(len(list(data.train(twice, 0))))\n{ending}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True
    )
    assert (ended.stdout, ended.stderr) == ("2\n", "")


def kill_this_process(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_killed_worker(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load(config(images), CPU)
    monkeypatch.setattr(readers, "decode", kill_this_process)
    with refusal(images, "process"):
        list(data.train([torch.arange(12)], 0))
    # The thread that fed the dead process complains on its own; not in the next test.
    for thread in threading.enumerate():
        if thread.name.startswith("QueueFeeder"):
            thread.join(10)


def test_left_early(images: Path) -> None:
    data = load(config(images), CPU)
    batches = data.train((torch.tensor([index % 12]) for index in range(10**9)), 0)
    assert isinstance(batches, Generator)
    next(batches)
    batches.close()


def test_workers_share_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert readers._worker_count() == 6
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert readers._worker_count() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(200)), raising=False)
    assert readers._worker_count() == 16
    assert readers._worker_count(threads=3) == 3


def test_on_the_cpu_there_are_no_more_workers_than_threads(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        batches = load(config(images), CPU).train(torch.arange(12).split(1), 0)
        next(batches)
        assert len(multiprocessing.active_children()) == 2
        batches.close()  # type: ignore[attr-defined]
    finally:
        torch.set_num_threads(before)


def pids() -> set[int | None]:
    return {child.pid for child in multiprocessing.active_children()}


def test_workers_stay_from_one_epoch_to_the_next_until_the_data_set_is_closed(
    images: Path,
) -> None:
    others = pids()
    data = load(config(images, workers=2), CPU)
    seen, workers = [], []
    for _ in range(3):
        seen.append(torch.cat([batch for batch, _ in data.train(torch.arange(12).split(5), 7)]))
        workers.append(pids() - others)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    assert len(workers[0]) == 2
    assert workers[0] == workers[1] == workers[2]
    # One that is left early, or begun before another has ended, disturbs none.
    first, second = (data.train(torch.arange(12).split(5), 7) for _ in range(2))
    assert torch.equal(next(first)[0], next(second)[0])
    assert torch.equal(torch.cat([batch for batch, _ in first]), seen[0][5:])
    batches = data.train(torch.arange(12).split(1), 7)
    next(batches)
    del batches, first, second
    again = torch.cat([batch for batch, _ in data.train(torch.arange(12).split(5), 7)])
    assert torch.equal(again, seen[0])
    data.close()
    assert pids() <= others


def test_without_workers_the_training_process_decodes(images: Path) -> None:
    others = pids()
    data = load(config(images, workers=0), CPU)
    with_workers = load(config(images), CPU)
    for each, other in zip(
        data.train(torch.arange(12).split(5), 7),
        with_workers.train(torch.arange(12).split(5), 7),
        strict=True,
    ):
        assert torch.equal(each[0], other[0])
    with_workers.close()
    list(data.train(torch.arange(12).split(5), 7))
    assert pids() <= others


def remove(path: Path) -> None:
    for each in sorted(path.rglob("*"), reverse=True):
        each.rmdir() if each.is_dir() else each.unlink()
    path.rmdir()


@pytest.mark.parametrize(
    ("missing", "found"),
    [
        ("", "No such file or directory"),
        ("train", "found val/"),
        ("val", "found train/"),
        ("val/bee", "'bee'"),
        ("train/bee", "'bee'"),
    ],
)
def test_missing_folders(tmp_path: Path, missing: str, found: str) -> None:
    folder = make(tmp_path / "images", each=1)
    remove(folder / missing)
    with refusal(folder, found, field="data_dir"):
        load(config(folder), CPU)


def test_empty_folders(tmp_path: Path) -> None:
    for half in ("train", "val"):
        (tmp_path / half).mkdir()
    with refusal(tmp_path / "train", field="data_dir"):
        load(config(tmp_path), CPU)
    for half in ("train", "val"):
        (tmp_path / half / "ant").mkdir()
    with refusal("ant", field="data_dir"):
        load(config(tmp_path), CPU)


def test_signals_to_the_workers_leave_them_at_work(images: Path) -> None:
    """A signal to a whole group of processes: the one that trains wants to end its step."""
    data = load(config(images), CPU)
    batches = data.test(torch.arange(12).repeat(20).split(4))
    next(batches)
    children = multiprocessing.active_children()
    assert children
    for number in (signal.SIGINT, signal.SIGTERM):
        for child in children:
            assert child.pid is not None
            os.kill(child.pid, number)
    assert len(list(batches)) == 59
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "val" / "ant"
    try:
        (path / "000.jpg").rename(os.fsdecode(os.fsencode(path) + b"/\xff.jpg"))
    except OSError:
        pytest.skip("the file system takes UTF-8 only")
    data = load(config(tmp_path), CPU)
    assert sum(len(labels) for _, labels in data.test([torch.arange(12)])) == 12


def test_a_file_as_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("folder", "cifar10"):
        with refusal(tmp_path / "file", field="data_dir"):
            load(Config(data=name, data_dir=str(tmp_path / "file")), CPU)
