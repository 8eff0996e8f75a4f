"""Random crops and flips of a batch, compared with the same operations image by image."""

import math
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal
from torch.nn import functional

from mpelu.lab import cli
from mpelu.lab.config import Config
from mpelu.lab.data import load
from mpelu.lab.data.augment import RandomCrop, RandomResizedCrop
from mpelu.lab.data.preprocess import center_crop

CPU = torch.device("cpu")


def one_by_one(
    image: torch.Tensor, code: int, size: int, padding: int, positions: int
) -> torch.Tensor:
    """What a script does with a single image, [channels, height, width]."""
    top, left, flip = code // 2 // positions, code // 2 % positions, code % 2
    image = functional.pad(image, (padding,) * 4)
    image = image[:, top : top + size, left : left + size]
    return image.flip(2) if flip else image


def check_all(image_size: int, size: int, padding: int, dtype: torch.dtype) -> None:
    random_crop = RandomCrop(image_size=image_size, size=size, padding=padding, device=CPU)
    codes = torch.arange(random_crop.code_count)
    images = torch.randint(1, 200, (random_crop.code_count, 2, image_size, image_size)).to(dtype)
    crops, mask = random_crop(images, codes)
    assert crops.dtype == dtype
    assert (mask is None) == (padding == 0)
    if mask is not None:
        crops = crops * mask
    for image, code, crop in zip(images, codes.tolist(), crops, strict=True):
        expected = one_by_one(image, code, size, padding, random_crop.positions)
        assert torch.equal(crop, expected.to(crop.dtype))


@settings(max_examples=25, deadline=None)
@given(
    image_size=st.integers(1, 9),
    less=st.integers(0, 8),
    padding=st.sampled_from([0, 1, 4]),
    dtype=st.sampled_from([torch.uint8, torch.float32]),
)
def test_every_crop_and_flip(image_size: int, less: int, padding: int, dtype: torch.dtype) -> None:
    check_all(image_size, max(1, image_size - less), padding, dtype)


@pytest.mark.parametrize(("image_size", "size", "padding"), [(32, 32, 4), (32, 28, 0)])
def test_every_crop_of_the_paper(image_size: int, size: int, padding: int) -> None:
    check_all(image_size, size, padding, torch.uint8)


def test_draws_are_even_and_depend_on_the_seed() -> None:
    random_crop = RandomCrop(image_size=8, size=8, padding=4, device=CPU)
    codes = random_crop.draw(3, 162_000)
    counts = codes.bincount(minlength=random_crop.code_count)
    assert len(counts) == 162
    # Each is 1000 +- 32; six standard deviations.
    assert counts.min() > 800
    assert counts.max() < 1200
    assert torch.equal(codes, random_crop.draw(3, 162_000))
    assert not torch.equal(codes, random_crop.draw(4, 162_000))


@pytest.mark.parametrize("augment", ["none", "pad-crop-flip", "crop-flip", "resized-crop-flip"])
@pytest.mark.parametrize("preprocess", ["channel", "gcn-zca", "mean-image", "none"])
def test_a_sample_depends_on_seed_and_index_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, augment: str, preprocess: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = Config(crop=6, augment=augment, preprocess=preprocess, train_limit=90)
    data, again = load(config, CPU), load(config, CPU)
    (whole, labels), *_ = data.train([torch.arange(90)], 5)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(1))
    for size in (1, 7, 64):
        parts = list(again.train(order.split(size), 5))
        assert [len(each) for _, each in parts] == [len(each) for each in order.split(size)]
        assert torch.equal(torch.cat([images for images, _ in parts]), whole[order])
        assert torch.equal(torch.cat([each for _, each in parts]), labels[order])
    other = next(data.train([torch.arange(90)], 6))[0]
    assert torch.equal(other, whole) == (augment == "none")


@pytest.mark.parametrize("preprocess", ["channel", "mean-image", "none"])
def test_training_batches_are_crops_of_normalized_images(preprocess: str) -> None:
    plain = load(Config(preprocess=preprocess), CPU)
    images, _ = next(plain.train([torch.arange(100)], 0))
    data = load(Config(preprocess=preprocess, augment="pad-crop-flip"), CPU)
    seen, _ = next(data.train([torch.arange(100)], 9))
    random_crop = RandomCrop(image_size=8, size=8, padding=4, device=CPU)
    codes = random_crop.draw(9, data.train_count)[:100].tolist()
    for image, code, crop in zip(images, codes, seen, strict=True):
        assert torch.equal(crop, one_by_one(image, code, 8, 4, random_crop.positions))


def test_batches_can_be_changed_in_place() -> None:
    data = load(Config(), CPU)
    batch = [torch.arange(8)]
    first = next(data.test(batch))[0]
    kept = first.clone()
    first.zero_()
    assert torch.equal(next(data.test(batch))[0], kept)


def test_center_crop() -> None:
    images = torch.arange(25).view(1, 1, 5, 5)
    assert center_crop(images, 3).flatten().tolist() == [6, 7, 8, 11, 12, 13, 16, 17, 18]
    assert torch.equal(center_crop(images, 5), images)


def test_test_images_are_the_center() -> None:
    whole = load(Config(preprocess="none"), CPU)
    middle = load(Config(preprocess="none", crop=6, augment="crop-flip"), CPU)
    batch = [torch.arange(50)]
    expected = next(whole.test(batch))[0][:, :, 1:7, 1:7]
    assert torch.equal(next(middle.test(batch))[0], expected)
    assert middle.size == 6


def test_crop_larger_than_the_image() -> None:
    with refusal("8", "got 9", field="crop"):
        load(Config(crop=9, augment="pad-crop-flip"), CPU)


def resized(image_size: int, size: int) -> RandomResizedCrop:
    return RandomResizedCrop(image_size=image_size, size=size, device=CPU)


def by_torch(image: torch.Tensor, box: list[int], size: int) -> torch.Tensor:
    """The part of an image, [channels, height, width], scaled by torch."""
    top, left, height, width, mirrored = box
    part = image[None, :, top : top + height, left : left + width].float()
    scaled = functional.interpolate(
        part, (size, size), mode="bilinear", align_corners=False, antialias=True
    )[0]
    return scaled.flip(2) if mirrored else scaled


@pytest.mark.parametrize(("image_size", "size"), [(8, 8), (32, 32), (32, 24), (40, 13), (9, 1)])
def test_a_resized_crop_is_torchs_own_scaling_of_the_part(image_size: int, size: int) -> None:
    random_crop = resized(image_size, size)
    boxes = random_crop.draw(1, 200)
    images = torch.randint(0, 256, (200, 3, image_size, image_size)).float()
    crops, mask = random_crop(images, boxes)
    assert mask is None
    for image, box, crop in zip(images, boxes.tolist(), crops, strict=True):
        torch.testing.assert_close(crop, by_torch(image, box, size), atol=1e-3, rtol=0)


def test_a_resized_crop_does_not_depend_on_its_batch() -> None:
    random_crop = resized(32, 24)
    images, boxes = torch.rand(50, 3, 32, 32), random_crop.draw(1, 50)
    whole, _ = random_crop(images, boxes)
    for size in (1, 7):
        parts = zip(images.split(size), boxes.split(size), strict=True)
        assert torch.equal(torch.cat([random_crop(*each)[0] for each in parts]), whole)


@pytest.mark.parametrize(("height", "width"), [(1000, 1000), (1200, 900)])
def test_areas_and_ratios_of_resized_crops_are_even(height: int, width: int) -> None:
    """Compared with draws one by one, as many scripts make them."""
    random_crop = resized(8, 8)
    boxes = random_crop.boxes(random_crop.numbers(0, 20_000), height, width).double()
    top, left, rows, columns, mirrored = boxes.unbind(1)
    areas, ratios = rows * columns / (height * width), columns / rows
    assert 0.079 < areas.min() < areas.max() <= 1
    assert 0.745 < ratios.min() < ratios.max() < 1.34
    assert ((top >= 0) & (left >= 0) & (top + rows <= height) & (left + columns <= width)).all()
    assert abs(mirrored.mean() - 0.5) < 0.02
    # The place is even in what is free: six standard deviations of the mean of 20,000.
    for start, length, whole in ((top, rows, height), (left, columns, width)):
        free = whole - length
        assert abs(((start + 0.5) / (free + 1)).mean() - 0.5) < 6 * 12**-0.5 / 20_000**0.5

    drawn = random.Random(1)
    expected = torch.tensor([one_draw(drawn, height, width) for _ in range(20_000)])
    shares = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    for ours, theirs in ((areas, expected[:, 0]), (ratios, expected[:, 1])):
        difference = ours.quantile(shares) - theirs.double().quantile(shares)
        assert difference.abs().max() < 0.02


def one_draw(drawn: random.Random, height: int, width: int) -> tuple[float, float]:
    """Share of the area, and ratio of width to height."""
    while True:
        area = height * width * drawn.uniform(0.08, 1)
        ratio = math.exp(drawn.uniform(math.log(3 / 4), math.log(4 / 3)))
        columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < columns <= width and 0 < rows <= height:
            return columns * rows / (height * width), columns / rows


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(1, 10_000, [0, 4999, 1, 1]), (100, 10_000, [0, 4933, 100, 133]), (900, 3, [448, 0, 4, 3])],
)
def test_very_long_images_are_cropped_in_the_center(
    height: int, width: int, expected: list[int]
) -> None:
    random_crop = resized(8, 8)
    boxes = random_crop.boxes(random_crop.numbers(0, 2000), height, width)
    ratio = boxes[:, 3] / boxes[:, 2]
    assert ((boxes[:, 2] >= 1) & (boxes[:, 2] <= height)).all()
    assert ((boxes[:, 3] >= 1) & (boxes[:, 3] <= width)).all()
    assert (boxes[:, :4] == torch.tensor(expected)).all(1).any()
    assert ratio.max() < 2


def test_draws_of_resized_crops_depend_on_seed_and_sample() -> None:
    random_crop = resized(32, 32)
    first = random_crop.draw(3, 100)
    assert torch.equal(first, random_crop.draw(3, 100))
    assert not torch.equal(first, random_crop.draw(4, 100))
    assert torch.equal(random_crop.numbers(3, 50), random_crop.numbers(3, 100)[:50])


@pytest.mark.parametrize("preprocess", ["channel", "gcn-zca", "mean-image", "none"])
def test_resized_crops_are_of_normalized_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preprocess: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    whole = load(Config(preprocess=preprocess), CPU)
    images, _ = next(whole.test([torch.arange(20)]))
    data = load(Config(preprocess=preprocess, crop=6, augment="resized-crop-flip"), CPU)
    assert torch.equal(next(data.test([torch.arange(20)]))[0], images[:, :, 1:7, 1:7])
    images, labels = next(whole.train([torch.arange(20)], 5))
    seen, same = next(data.train([torch.arange(20)], 5))
    assert torch.equal(same, labels)
    boxes = resized(8, 6).draw(5, data.train_count)[:20].tolist()
    for image, box, crop in zip(images, boxes, seen, strict=True):
        torch.testing.assert_close(crop, by_torch(image, box, 6), atol=1e-4, rtol=1e-4)


def test_settings_name_the_resized_crop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "resnet-8", "--augment", "resized-crop-flip", "--crop", "6"]
    assert cli.main(["train", *arguments, "--iterations", "1", "--out", str(tmp_path / "run")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "random part with 8% to 100% of the area and aspect ratio 0.75 to 1.33" in said
    assert "scaled to 6 x 6, random horizontal flip" in said
