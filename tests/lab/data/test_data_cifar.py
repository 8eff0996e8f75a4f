"""CIFAR from the archive, and from the directory it unpacks to."""

import os
import pickle
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import data_files
import numpy as np
import pytest
import torch

from mpelu.lab import cli
from mpelu.lab.config import Config
from mpelu.lab.data import cifar, load
from mpelu.lab.data.dataset import Dataset
from mpelu.lab.data.images import LabeledImages
from mpelu.lab.data.registry import DATA_SETS
from mpelu.lab.errors import UserError

CPU = torch.device("cpu")


@pytest.fixture(params=["cifar10", "cifar100"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def expected_images(files: dict[str, bytes], names: Iterable[str]) -> torch.Tensor:
    """The images as pickle and numpy read them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the old name of numpy's module
        parts = [pickle.loads(files[each], encoding="bytes")[b"data"] for each in names]
    return torch.from_numpy(np.concatenate(parts)).view(-1, 3, 32, 32)


def test_archive_folder_and_folder_itself_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    files = data_files.cifar(name)
    content = data_files.publish(monkeypatch, name, files)
    archive = cifar.ARCHIVES[name]
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / archive.name).write_bytes(content)
    folder = data_files.unpack(tmp_path / "unpacked" / archive.folder, files)
    prints = set()
    for place in (tmp_path / "packed", tmp_path / "unpacked", folder):
        train, test, classes, *_ = cifar.read(DATA_SETS[name], place)
        assert isinstance(train, LabeledImages)
        assert isinstance(test, LabeledImages)
        assert torch.equal(train.images, expected_images(files, archive.train))
        assert torch.equal(test.images, expected_images(files, archive.test))
        assert len(classes) == DATA_SETS[name].num_classes
        assert classes[1] == "class 1"
        assert train.labels.dtype == torch.int64
        assert len(train.labels) == 12 * len(archive.train)
        data = load(Config(data=name, data_dir=str(place)), CPU)
        assert (data.train_count, data.test_count) == (len(train.labels), 12)
        assert (data.channels, data.size, len(data.classes)) == (3, 32, DATA_SETS[name].num_classes)
        prints.add(data.fingerprint)
    assert len(prints) == 1
    # Nothing was unpacked.
    assert [each.name for each in (tmp_path / "packed").iterdir()] == [archive.name]


def test_limits_and_their_fingerprints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = data_files.cifar("cifar10")
    data_files.publish(monkeypatch, "cifar10", files)
    data_files.unpack(tmp_path / "cifar-10-batches-py", files)

    def limited(train: int | None, test: int | None) -> Dataset:
        return load(
            Config(data="cifar10", data_dir=str(tmp_path), train_limit=train, test_limit=test), CPU
        )

    whole, same = limited(None, None), limited(None, None)
    few, more = limited(5, 3), limited(1000, 1000)
    assert (few.train_count, few.test_count) == (5, 3)
    assert whole.fingerprint == same.fingerprint == more.fingerprint != few.fingerprint
    batch = [torch.tensor([4, 0])]
    labels = next(whole.train(batch, 0))[1]
    assert torch.equal(next(few.train(batch, 0))[1], labels)


def test_published_constants_for_the_whole_set_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    files = data_files.cifar(name)
    data_files.publish(monkeypatch, name, files)
    data_files.unpack(tmp_path / cifar.ARCHIVES[name].folder, files)
    state = load(Config(data=name, data_dir=str(tmp_path)), CPU).preprocess.state()
    mean, std = DATA_SETS[name].channel_mean, DATA_SETS[name].channel_std
    assert state["mean"].tolist() == pytest.approx(mean)
    assert state["std"].tolist() == pytest.approx(std)
    config = Config(data=name, data_dir=str(tmp_path))
    for other in (replace(config, train_limit=8), replace(config, image_size=16)):
        assert load(other, CPU).preprocess.state()["mean"].tolist() != pytest.approx(mean)


def test_wrong_checksum_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = data_files.cifar("cifar10")
    data_files.publish(monkeypatch, "cifar10", files)
    changed = files["data_batch_2"][:-1]
    folder = data_files.unpack(tmp_path / "x", {**files, "data_batch_2": changed})
    with pytest.raises(UserError) as caught:
        cifar.read(DATA_SETS["cifar10"], folder)
    message = str(caught.value)
    assert "data_batch_2" in message
    assert f"expected MD5 {data_files.md5(files['data_batch_2'])}" in message
    assert f"got {data_files.md5(changed)}" in message


class Payload:
    """Creates a directory when it is unpickled in the usual way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_code_in_a_pickle_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    """The checksum refuses it, and if it is right, the unpickler does."""
    target, files = tmp_path / "ran", data_files.cifar("cifar10")
    payload = pickle.dumps({b"data": Payload(target)}, protocol)
    folder = data_files.unpack(tmp_path / "x", {**files, "test_batch": payload})
    data_files.publish(monkeypatch, "cifar10", files)
    with pytest.raises(UserError, match="test_batch: expected MD5"):
        cifar.read(DATA_SETS["cifar10"], folder)
    data_files.publish(monkeypatch, "cifar10", {**files, "test_batch": payload})
    with pytest.raises(UserError, match="test_batch: can't be unpickled: it refers to"):
        cifar.read(DATA_SETS["cifar10"], folder)
    assert not target.exists()
    pickle.loads(payload)
    assert target.exists()


@pytest.mark.parametrize(
    "name",
    [
        "os\nsystem", "builtins\neval", "__builtin__\ngetattr", "numpy\nload", "numpy\nfromfile",
        "numpy.core.multiarray\nscalar", "numpy\nndarray.dump", "copyreg\n_reconstructor",
    ],
)  # fmt: skip
def test_a_pickle_names_nothing_but_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    content = b"\x80\x02c" + name.encode() + b"\n(tR."
    files = {**data_files.cifar("cifar10"), "test_batch": content}
    data_files.publish(monkeypatch, "cifar10", files)
    folder = data_files.unpack(tmp_path / "x", files)
    with pytest.raises(UserError, match="test_batch: can't be unpickled: it refers to") as caught:
        cifar.read(DATA_SETS["cifar10"], folder)
    assert "\n" not in str(caught.value)


def test_missing_file_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = data_files.cifar("cifar10")
    data_files.publish(monkeypatch, "cifar10", files)
    folder = data_files.unpack(tmp_path / "x", files)
    (folder / "data_batch_4").unlink()
    with pytest.raises(UserError, match="data_batch_4: no such file; unpack cifar-10-python"):
        cifar.read(DATA_SETS["cifar10"], folder)


def test_truncated_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = data_files.publish(monkeypatch, "cifar10", data_files.cifar("cifar10"))
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(content[:-100])
    with pytest.raises(UserError) as caught:
        load(Config(data="cifar10", data_dir=str(tmp_path)), CPU)
    message = str(caught.value)
    assert f"expected MD5 {data_files.md5(content)}" in message
    assert f"got {data_files.md5(content[:-100])}" in message
    assert "\n" not in message
    assert path.exists()


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ("cifar10", "where the data is, or where to download it"),
        ("cifar100", "where the data is, or where to download it"),
        ("folder", "where the data is"),
    ],
)
def test_no_data_dir(data: str, where: str) -> None:
    with pytest.raises(UserError) as caught:
        load(Config(data=data), CPU, download=True)
    assert str(caught.value) == f"data_dir: required for {data} ({where})"
    assert caught.value.on_command_line() == f"--data-dir: required for {data} ({where})"


@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_nothing_is_downloaded_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr(cifar, "fetch", lambda *_, **__: pytest.fail("was downloaded"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError) as caught:
        load(Config(data="cifar10", data_dir=str(tmp_path / folder)), CPU)
    assert str(caught.value) == (
        f"data_dir: no CIFAR-10 in {tmp_path / folder}; "
        "expected cifar-10-python.tar.gz or cifar-10-batches-py/ there"
    )
    assert [each.name for each in tmp_path.iterdir()] == ["empty"]


def test_published_checksums() -> None:
    """As published; CIFAR-10's were compared with the files."""
    ten, hundred = cifar.ARCHIVES["cifar10"], cifar.ARCHIVES["cifar100"]
    assert ten.md5 == "c58f30108f718f92721af3b95e74349a"
    assert hundred.md5 == "eb9058c3a382ffc7106e4002c42a8d85"
    assert ten.files["test_batch"] == "40351d587109b95175f43aff81a1287e"
    assert hundred.files["train"] == "16019d7e3df5f24257cddd939b257f8d"


def test_eval_does_not_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = data_files.cifar("cifar10")
    data_files.publish(monkeypatch, "cifar10", files)
    data_files.unpack(tmp_path / "data" / "cifar-10-batches-py", files)
    run, empty = tmp_path / "run", tmp_path / "empty"
    empty.mkdir()
    train = ["train", "--data", "cifar10", "--data-dir", str(tmp_path / "data"), "--epochs", "1"]
    assert cli.main([*train, "--model", "resnet-8", "--out", str(run), "--quiet"]) == 0
    monkeypatch.setattr(cifar, "fetch", lambda *_, **__: pytest.fail("was downloaded"))
    for command in ("eval", "inspect"):
        with pytest.raises(SystemExit, match="2"):
            cli.main([command, str(run), "--data-dir", str(empty)])
        assert f"no CIFAR-10 in {empty}; expected cifar-10-python" in capsys.readouterr().err
    assert list(empty.iterdir()) == []
    untrained = ["inspect", "--model", "resnet-8", "--data", "cifar10", "--data-dir", str(empty)]
    with pytest.raises(SystemExit, match="2"):
        cli.main(untrained)
    assert f"no CIFAR-10 in {empty}" in capsys.readouterr().err
