"""Crops and flips of a batch are those of its images, one by one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from mpelu.lab.config import Config
from mpelu.lab.data import augment, load
from mpelu.lab.data.augment import Cropper, centre_crop
from mpelu.lab.errors import UserError

CPU = torch.device("cpu")


def one_by_one(image: torch.Tensor, code: int, size: int, pad: int, room: int) -> torch.Tensor:
    """What a script does with a single image, [channels, side, side]."""
    top, left, flip = code // 2 // room, code // 2 % room, code % 2
    image = functional.pad(image, (pad, pad, pad, pad))
    image = image[:, top : top + size, left : left + size]
    return image.flip(2) if flip else image


def check_all(whole: int, size: int, pad: int, dtype: torch.dtype) -> None:
    cropper = Cropper(whole=whole, size=size, pad=pad, device=CPU)
    codes = torch.arange(cropper.codes)
    images = torch.randint(1, 200, (cropper.codes, 2, whole, whole)).to(dtype)
    crops, mask = cropper.crop(images, codes)
    assert crops.dtype == dtype
    assert (mask is None) == (pad == 0)
    if mask is not None:
        crops = crops * mask
    for image, code, crop in zip(images, codes.tolist(), crops, strict=True):
        expected = one_by_one(image, code, size, pad, cropper.room)
        assert torch.equal(crop, expected.to(crop.dtype))


@settings(max_examples=25, deadline=None)
@given(
    whole=st.integers(1, 9),
    less=st.integers(0, 8),
    pad=st.sampled_from([0, 1, 4]),
    dtype=st.sampled_from([torch.uint8, torch.float32]),
    table=st.booleans(),
)
def test_every_crop_and_flip(whole: int, less: int, pad: int, dtype, table: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(augment, "_LARGEST_TABLE", augment._LARGEST_TABLE if table else 0)
        check_all(whole, max(1, whole - less), pad, dtype)


@pytest.mark.parametrize(("whole", "size", "pad"), [(32, 32, 4), (32, 28, 0)])
def test_every_crop_of_the_paper(whole: int, size: int, pad: int) -> None:
    check_all(whole, size, pad, torch.uint8)


def test_draws_are_even_and_depend_on_the_seed() -> None:
    cropper = Cropper(whole=8, size=8, pad=4, device=CPU)
    codes = cropper.draw(3, 162_000)
    counts = codes.bincount(minlength=cropper.codes)
    assert len(counts) == 162
    # Each is 1000 +- 32; six standard deviations.
    assert counts.min() > 800
    assert counts.max() < 1200
    assert torch.equal(codes, cropper.draw(3, 162_000))
    assert not torch.equal(codes, cropper.draw(4, 162_000))


@pytest.mark.parametrize("augment", ["none", "pad-crop-flip", "crop-flip"])
@pytest.mark.parametrize("preprocess", ["channel", "gcn-zca", "mean-image", "none"])
def test_a_sample_depends_on_seed_and_index_alone(
    tmp_path, monkeypatch, augment: str, preprocess: str
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
def test_training_batches_are_crops_of_normalised_images(preprocess: str) -> None:
    plain = load(Config(preprocess=preprocess), CPU)
    images, _ = next(plain.train([torch.arange(100)], 0))
    data = load(Config(preprocess=preprocess, augment="pad-crop-flip"), CPU)
    seen, _ = next(data.train([torch.arange(100)], 9))
    cropper = Cropper(whole=8, size=8, pad=4, device=CPU)
    codes = cropper.draw(9, data.train_count)[:100].tolist()
    for image, code, crop in zip(images, codes, seen, strict=True):
        assert torch.equal(crop, one_by_one(image, code, 8, 4, cropper.room))


def test_batches_can_be_changed_in_place() -> None:
    data = load(Config(), CPU)
    batch = [torch.arange(8)]
    first = next(data.test(batch))[0]
    kept = first.clone()
    first.zero_()
    assert torch.equal(next(data.test(batch))[0], kept)


def test_centre() -> None:
    images = torch.arange(25).view(1, 1, 5, 5)
    assert centre_crop(images, 3).flatten().tolist() == [6, 7, 8, 11, 12, 13, 16, 17, 18]
    assert torch.equal(centre_crop(images, 5), images)


def test_test_images_are_the_middle() -> None:
    whole = load(Config(preprocess="none"), CPU)
    middle = load(Config(preprocess="none", crop=6, augment="crop-flip"), CPU)
    batch = [torch.arange(50)]
    expected = next(whole.test(batch))[0][:, :, 1:7, 1:7]
    assert torch.equal(next(middle.test(batch))[0], expected)
    assert middle.size == 6


def test_crop_larger_than_the_image() -> None:
    with pytest.raises(UserError, match="crop: expected at most the side of the images, 8, got 9"):
        load(Config(crop=9, augment="pad-crop-flip"), CPU)
