"""Random crops and flips of a batch, compared with the same operations image by image."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal
from torch.nn import functional

from mpelu.lab.config import Config
from mpelu.lab.data import load, preprocess
from mpelu.lab.data.preprocess import RandomCrop, center_crop

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
    table=st.booleans(),
)
def test_every_crop_and_flip(
    image_size: int, less: int, padding: int, dtype: torch.dtype, table: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preprocess, "_LARGEST_TABLE", preprocess._LARGEST_TABLE if table else 0)
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


@pytest.mark.parametrize("augment", ["none", "pad-crop-flip", "crop-flip"])
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
