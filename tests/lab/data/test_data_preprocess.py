"""What preprocessing computes, how it is cached, and that it survives being saved."""

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mpelu.lab import files
from mpelu.lab.config import PREPROCESS, Config
from mpelu.lab.data import load, preprocess, restore_preprocess
from mpelu.lab.data.images import LabeledImages, resize
from mpelu.lab.data.preprocess import Preprocess
from mpelu.lab.errors import UserError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def images() -> torch.Tensor:
    """Correlated, as photographs are."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(600, 3, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (6, 6), mode="bilinear")
    noise = torch.rand(600, 3, 6, 6, generator=generator)
    return (200 * smooth + 50 * noise).to(torch.uint8)


def fitted(kind: str, images: torch.Tensor) -> Preprocess:
    return Preprocess(kind, preprocess.fit(kind, images.split(70)), images.shape[-1])


def test_channel(images: torch.Tensor) -> None:
    result = fitted("channel", images)(images)
    assert result.dtype == torch.float32
    assert result.mean((0, 2, 3)).abs().max() < 1e-5
    assert (result.std((0, 2, 3), unbiased=False) - 1).abs().max() < 1e-5
    state = fitted("channel", images).state()
    assert torch.allclose(state["mean"], images.double().mean((0, 2, 3)).float())
    assert torch.allclose(state["std"], images.double().std((0, 2, 3), unbiased=False).float())


def test_channel_of_one_value() -> None:
    images = torch.full((4, 1, 3, 3), 7, dtype=torch.uint8)
    assert torch.equal(fitted("channel", images)(images), torch.zeros(4, 1, 3, 3))


def test_mean_image(images: torch.Tensor) -> None:
    result = fitted("mean-image", images)(images)
    expected = images.float() - images.float().mean(0)
    assert torch.allclose(result, expected, atol=1e-3)


def test_mean_image_is_cropped_with_the_image(images: torch.Tensor) -> None:
    whole = fitted("mean-image", images)
    middle = Preprocess("mean-image", whole.state(), 4)
    assert torch.equal(middle(images), whole(images)[:, :, 1:5, 1:5])


def test_none(images: torch.Tensor) -> None:
    assert torch.equal(fitted("none", images)(images), images.float() / 255)


def test_contrast_normalization(images: torch.Tensor) -> None:
    flat = preprocess.contrast_normalize(images)
    assert flat.mean(1).abs().max() < 1e-5
    assert torch.allclose(flat.norm(dim=1), torch.tensor(55.0))
    one = images[:1].flatten().double()
    expected = 55 * (one - one.mean()) / (one - one.mean()).norm()
    assert torch.allclose(flat[0], expected.float(), atol=1e-5)
    # Brighter, with less contrast: the same.
    assert torch.allclose(preprocess.contrast_normalize(images.float() / 3 + 90), flat, atol=1e-4)
    plain = torch.full((1, 3, 6, 6), 9, dtype=torch.uint8)
    assert torch.equal(preprocess.contrast_normalize(plain), torch.zeros(1, 108))


def test_whitening(images: torch.Tensor) -> None:
    """Covariance l becomes l / (l + 0.1): 1 wherever there is variance, here all but the mean."""
    flat = preprocess.contrast_normalize(images).double()
    values, vectors = torch.linalg.eigh(torch.cov(flat.T, correction=0))
    white = fitted("gcn-zca", images)(images).flatten(1).double()
    assert white.mean(0).abs().max() < 1e-4
    covariance = torch.cov(white.T, correction=0)
    expected = (vectors * (values / (values + 0.1))) @ vectors.T
    assert torch.allclose(covariance, expected, atol=1e-4)
    large = values > 5
    assert large.sum() > 40
    along = vectors[:, large].T @ covariance @ vectors[:, large]
    assert torch.allclose(along, torch.eye(len(along), dtype=torch.float64), atol=0.021)


def test_whitening_stays_close_to_the_image(images: torch.Tensor) -> None:
    """Zero-phase: the matrix is symmetric, with no negative direction."""
    matrix = fitted("gcn-zca", images).state()["matrix"]
    assert torch.allclose(matrix, matrix.T, atol=1e-6)
    assert torch.linalg.eigvalsh(matrix).min() > 0


def test_crops_are_taken_after_whitening() -> None:
    whole = load(Config(preprocess="gcn-zca"), CPU)
    middle = load(Config(preprocess="gcn-zca", crop=6), CPU)
    batch = [torch.arange(40)]
    expected = next(whole.test(batch))[0][:, :, 1:7, 1:7]
    assert torch.equal(next(middle.test(batch))[0], expected)


@pytest.mark.parametrize("kind", PREPROCESS)
@pytest.mark.parametrize("crop", [None, 5])
def test_restored_gives_what_testing_sees(kind: str, crop: int | None) -> None:
    config = Config(preprocess=kind, crop=crop, image_size=10)
    data = load(config, CPU)
    state = {name: each.clone() for name, each in data.preprocess.state().items()}
    restored = restore_preprocess(Config.from_json(config.to_json()), state)
    seen = next(data.test([torch.arange(30)]))[0]
    raw = load(replace(config, preprocess="none", crop=None), CPU)
    pixels = next(raw.test([torch.arange(30)]))[0].mul(255).round().to(torch.uint8)
    assert torch.allclose(restored(pixels), seen, atol=1e-4)
    assert seen.shape == (30, 1, crop or 10, crop or 10)


def test_state_of_another_config() -> None:
    state = load(Config(preprocess="mean-image"), CPU).preprocess.state()
    for config in (Config(), Config(preprocess="mean-image", image_size=9), Config(data="cifar10")):
        with pytest.raises(UserError, match="saved preprocessing doesn't fit the config: expected"):
            restore_preprocess(config, state)
    state["mean"][0, 0, 0] = float("nan")
    with pytest.raises(UserError, match="expected finite float32"):
        restore_preprocess(Config(preprocess="mean-image"), state)


def test_whitening_of_large_images() -> None:
    for config in (
        Config(preprocess="gcn-zca", image_size=65),
        Config(preprocess="gcn-zca", data="folder", data_dir="nowhere"),
    ):
        with pytest.raises(UserError, match="preprocess: gcn-zca takes images of at most 64x64"):
            load(config, CPU)


def test_fitted_on_the_training_set_only() -> None:
    states = [
        load(config, CPU).preprocess.state()["mean"]
        for config in (
            Config(preprocess="mean-image"),
            Config(preprocess="mean-image", test_limit=5),
            Config(preprocess="mean-image", train_limit=50),
        )
    ]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def cached(folder: Path) -> list[Path]:
    return sorted(folder.glob("gcn-zca-*.safetensors"))


def count_fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    fits: list[int] = []
    real = preprocess.fit_whitening

    def fit(chunks: Iterable[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        fits.append(1)
        return real(chunks)

    monkeypatch.setattr(preprocess, "fit_whitening", fit)
    return fits


def test_whitening_is_fitted_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = count_fits(monkeypatch)
    config = Config(preprocess="gcn-zca")
    states = [load(config, CPU).preprocess.state() for _ in range(3)]
    assert len(fits) == 1
    assert len(cached(home / ".cache" / "mpelu")) == 1
    for state in states:
        assert torch.equal(state["matrix"], states[0]["matrix"])
        assert torch.equal(state["mean"], states[0]["mean"])
    # Other data, other settings, another folder: other files.
    load(Config(preprocess="gcn-zca", train_limit=99), CPU)
    load(Config(preprocess="gcn-zca", image_size=7), CPU)
    assert len(fits) == 3
    load(Config(preprocess="gcn-zca", image_size=6, data_dir=str(tmp_path / "data")), CPU)
    assert len(fits) == 4
    assert len(cached(tmp_path / "data" / "cache")) == 1
    assert len(cached(home / ".cache" / "mpelu")) == 3


def flip_a_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage",
    [lambda content: b"", lambda content: content[:-9], lambda content: b"x" * 5000, flip_a_bit],
    ids=["empty", "truncated", "noise", "a bit"],
)
def test_damaged_cache_is_computed_again(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[bytes], bytes],
) -> None:
    fits = count_fits(monkeypatch)
    config = Config(preprocess="gcn-zca")
    good = load(config, CPU).preprocess.state()
    (path,) = cached(home / ".cache" / "mpelu")
    content = path.read_bytes()
    path.write_bytes(damage(content))
    with caplog.at_level(logging.WARNING):
        again = load(config, CPU).preprocess.state()
    assert f"{path} is damaged" in caplog.text
    assert len(fits) == 2
    assert torch.equal(again["matrix"], good["matrix"])
    assert path.read_bytes() == content


@pytest.mark.parametrize("stage", ["fsync", "replace"])
def test_interrupted_write_leaves_no_file(
    home: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, stage, fail)
        with pytest.raises(KeyboardInterrupt):
            load(Config(preprocess="gcn-zca"), CPU)
    assert list((home / ".cache" / "mpelu").iterdir()) == []


def test_cache_that_cannot_be_written(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next directory is tried; without any, there is a warning."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cache").write_bytes(b"a file")
    config = Config(preprocess="gcn-zca", data_dir=str(tmp_path / "data"))
    first = load(config, CPU)
    assert len(cached(home / ".cache" / "mpelu")) == 1
    for path in cached(home / ".cache" / "mpelu"):
        path.unlink()
    (home / ".cache" / "mpelu").rmdir()
    (home / ".cache" / "mpelu").write_bytes(b"a file")
    with caplog.at_level(logging.WARNING):
        second = load(config, CPU)
    assert "gcn-zca could not be cached and will be computed again" in caplog.text
    assert torch.equal(first.preprocess.state()["matrix"], second.preprocess.state()["matrix"])


def test_nothing_is_written_to_a_read_only_folder(home: Path, tmp_path: Path) -> None:
    """Not even by root, whom the system would allow it."""
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o555)
    load(Config(preprocess="gcn-zca", data_dir=str(folder)), CPU)
    assert list(folder.iterdir()) == []
    assert len(cached(home / ".cache" / "mpelu")) == 1


def test_resizing() -> None:
    images = torch.randint(0, 256, (3, 2, 8, 8), dtype=torch.uint8)
    assert resize(images, 8) is images
    assert torch.equal(resize(torch.full_like(images, 200), 5), torch.full((3, 2, 5, 5), 200))
    ramp = torch.tensor([[0, 100], [0, 100]], dtype=torch.uint8)[None, None]
    assert resize(ramp, 4)[0, 0, 0].tolist() == [0, 25, 75, 100]


@pytest.mark.parametrize("size", [3, 5, 20])
def test_resizing_is_that_of_image_files(size: int) -> None:
    images = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    for image, result in zip(images, resize(images, size), strict=True):
        file = Image.fromarray(image[0].numpy()).resize((size, size), Image.Resampling.BILINEAR)
        expected = torch.from_numpy(np.array(file))
        assert (result[0].int() - expected.int()).abs().max() <= 1


def test_resized_data() -> None:
    data = load(Config(image_size=24, augment="pad-crop-flip", preprocess="none"), CPU)
    assert data.size == 24
    images, labels = next(data.train([torch.arange(6)], 0))
    assert images.shape == (6, 1, 24, 24)
    assert labels.shape == (6,)
    assert 0 <= images.min() <= images.max() <= 1


def test_fingerprint_sees_every_change() -> None:
    images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    labels = torch.arange(4)
    prints = {LabeledImages(images=images, labels=labels).fingerprint()}
    changed = images.clone()
    changed[3, 0, 1, 1] = 1
    prints.add(LabeledImages(images=changed, labels=labels).fingerprint())
    prints.add(LabeledImages(images=images, labels=labels.flip(0)).fingerprint())
    prints.add(LabeledImages(images=images.view(4, 1, 1, 4), labels=labels).fingerprint())
    assert len(prints) == 4


def test_processes_that_fit_at_the_same_time_all_leave_a_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process starts writing the same file while this one is about to rename its own."""
    path, rename = tmp_path / "cached", os.replace

    def rename_late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "getpid", lambda: 2)
        monkeypatch.setattr(os, "replace", rename)
        files.write(path, b"x" * 1000, shared=True)
        rename(source, target)

    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(os, "replace", rename_late)
    files.write(path, b"x" * 1000, shared=True)
    assert path.read_bytes() == b"x" * 1000
    assert list(tmp_path.iterdir()) == [path]
