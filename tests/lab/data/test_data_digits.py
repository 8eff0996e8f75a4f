"""The built-in digits, and single image files."""

import doctest
import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refusal

from mpelu.lab.config import Config
from mpelu.lab.data import dataset, load, read_image, registry, restore_preprocess
from mpelu.lab.data import images as data_images
from mpelu.lab.data.images import DIGITS, LabeledImages
from mpelu.lab.errors import UserError

CPU = torch.device("cpu")


def read_digits() -> tuple[LabeledImages, LabeledImages]:
    train, test, *_ = data_images.read_digits(registry.find("digits"), None)
    assert isinstance(train, LabeledImages)
    assert isinstance(test, LabeledImages)
    return train, test


def test_split() -> None:
    train, test = read_digits()
    assert train.images.shape == (1437, 1, 8, 8)
    assert test.images.shape == (360, 1, 8, 8)
    pixels, whole = (
        np.load(DIGITS)["images"],
        np.bincount(np.load(DIGITS)["labels"]),
    )
    for half, share in ((train, 0.8), (test, 0.2)):
        assert half.images.dtype == torch.uint8
        assert (half.images.min().item(), half.images.max().item()) == (0, 255)
        counts = half.labels.bincount().numpy()
        assert np.abs(counts - share * whole).max() < 1
    # Nothing lost and nothing twice.
    both = torch.cat([train.images, test.images]).flatten(1).tolist()
    file = (pixels * (255 / 16)).round().astype(int).reshape(1797, 64).tolist()
    assert sorted(both) == sorted(file)
    # Few images are of all classes too.
    assert len(train.labels[:50].unique()) == 10


def test_the_file_is_small_and_unchanged() -> None:
    assert DIGITS.stat().st_size < 100_000
    with np.load(DIGITS) as file:
        images, labels = file["images"], file["labels"]
    assert (images.shape, labels.shape) == ((1797, 8, 8), (1797,))
    assert hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest() == (
        "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
    )
    notice = DIGITS.with_suffix(".txt").read_text()
    assert "CC BY 4.0" in notice
    assert "https://doi.org/10.24432/C50P49" in notice


def test_the_file_holds_what_scikit_learn_has() -> None:
    theirs = pytest.importorskip("sklearn.datasets").load_digits()
    with np.load(DIGITS) as file:
        assert file["images"].astype(theirs.images.dtype).tobytes() == theirs.images.tobytes()
        assert file["labels"].astype(theirs.target.dtype).tobytes() == theirs.target.tobytes()


def test_always_the_same() -> None:
    first, second = load(Config(), CPU), load(Config(), CPU)
    assert first.fingerprint == second.fingerprint
    assert first.fingerprint.startswith("afdc76aa")
    assert first.classes == tuple("0123456789")
    assert (first.name, first.channels, first.size) == ("digits", 1, 8)
    assert (first.train_count, first.test_count) == (1437, 360)
    batches = torch.arange(360).split(100)
    for one, other in zip(first.test(batches), second.test(batches), strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_limits() -> None:
    data = load(Config(train_limit=20, test_limit=9999), CPU)
    assert (data.train_count, data.test_count) == (20, 360)


def test_docstring() -> None:
    result = doctest.testmod(dataset)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_registry_has_the_facts_of_the_digits() -> None:
    data, info = load(Config(), CPU), registry.find("digits")
    assert (data.train_count, data.test_count) == (info.train_count, info.test_count)
    assert (data.channels, data.size) == (info.channels, info.image_size)
    assert len(data.classes) == info.num_classes


def test_the_registry_is_read_without_torch() -> None:
    program = "import sys, mpelu.lab.data.registry; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def saved(path: Path, mode: str, format: str | None = None) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path, format=format)
    return path


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("RGB", "a.png"), ("L", "a.png"), ("RGBA", "a.png"), ("LA", "a.png"), ("1", "a.png"),
        ("P", "a.png"), ("CMYK", "a.jpg"), ("YCbCr", "a.jpg"), ("RGB", "a.webp"), ("RGB", "a.bmp"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("channels", [1, 3])
def test_file_of_any_mode(tmp_path: Path, mode: str, name: str, channels: int) -> None:
    path = saved(tmp_path / name, mode)
    image = read_image(path, Config(data="cifar10"), channels=channels)
    assert image.shape == (1, channels, 32, 32)
    assert image.dtype == torch.uint8
    assert image.is_contiguous()
    assert image.float().std() > 1


def test_transparent_palette(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    file = Image.new("P", (4, 4), 1)
    file.putpalette([0, 0, 0, 10, 20, 30])
    file.save(path, transparency=bytes([0, 128]))
    image = read_image(path, Config(data="cifar10"), channels=3)
    assert image[0, :, 5, 5].tolist() == [10, 20, 30]


def test_sixteen_bits(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(np.full((5, 5), 40_000, np.uint16)).save(path)
    image = read_image(path, Config(data="cifar10"), channels=3)
    assert torch.equal(image, torch.full_like(image, round(40_000 / 257)))


def test_large_jpeg_in_its_colours(tmp_path: Path) -> None:
    """Decoded at a fraction of its size."""
    path = tmp_path / "a.jpg"
    colours = Image.new("RGB", (2, 1))
    colours.putdata([(200, 40, 90), (10, 220, 60)])
    colours.resize((1600, 1200), Image.Resampling.NEAREST).save(path, quality=95)
    image = read_image(path, Config(data="cifar10"), channels=3)[0].int()
    assert (image[:, 16, 4] - torch.tensor([200, 40, 90])).abs().max() <= 4
    assert (image[:, 16, 28] - torch.tensor([10, 220, 60])).abs().max() <= 4


@pytest.mark.parametrize("kind", ["channel", "gcn-zca", "mean-image", "none"])
def test_file_of_a_test_image_gives_the_test_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = Config(preprocess=kind, crop=6, augment="crop-flip")
    data = load(config, CPU)
    _, test = read_digits()
    path = tmp_path / "digit.png"
    Image.fromarray(test.images[7, 0].numpy()).save(path)
    restored = restore_preprocess(config, data.preprocess.state())
    image = restored(read_image(path, config, channels=1))
    expected = next(data.test([torch.tensor([7])]))[0]
    assert torch.allclose(image, expected, atol=1e-4)


@pytest.mark.parametrize("content", [b"", b"text", None])
def test_file_that_is_no_image(tmp_path: Path, content: bytes | None) -> None:
    path = saved(tmp_path / "a.jpg", "RGB")
    path.write_bytes(path.read_bytes()[:200] if content is None else content)
    with refusal("a.jpg") as caught:
        read_image(path, Config(), channels=1)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with refusal("a.png"):
        read_image(tmp_path / "a.png", Config(), channels=1)
    with pytest.raises(UserError, match="expected an image, got"):
        read_image(tmp_path, Config(), channels=1)


def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    page = Path(__file__).parents[3] / "docs" / "data.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_data_depends_on_no_other_package_of_the_lab() -> None:
    program = (
        "import sys, mpelu.lab.data.dataset, mpelu.lab.data.cifar\n"
        "names = {name.split('.')[2] for name in sys.modules if name.startswith('mpelu.lab.')}\n"
        "assert names == {'data', 'errors', 'files', 'references'}, names"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
