"""CIFAR's pickles are read without running code in them."""

import contextlib
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_files import pickled
from hypothesis import given, settings
from hypothesis import strategies as st

from mpelu.lab.data import unpickle
from mpelu.lab.errors import UserError


def test_values_of_the_format() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    value = {b"labels": [1, 2, 300], b"data": pixels, b"name": b"a\xff"}
    read = unpickle.loads(pickled(value), "batch")
    assert read["labels"] == [1, 2, 300]
    assert read["name"] == b"a\xff"
    assert torch.equal(unpickle.to_tensor(read["data"], "batch"), torch.from_numpy(pixels))


def test_column_major_array() -> None:
    pixels = np.asfortranarray(np.arange(24, dtype=np.uint8).reshape(4, 6))
    read = unpickle.loads(pickled({b"data": pixels}), "batch")
    assert torch.equal(
        unpickle.to_tensor(read["data"], "batch"), torch.from_numpy(np.ascontiguousarray(pixels))
    )


class Payload:
    """Creates a directory when it is unpickled in the usual way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_payload_does_not_run(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "ran"
    data = pickle.dumps({"data": Payload(target)}, protocol)
    with pytest.raises(UserError, match=r"data_batch_1: expected plain data, .*mkdir"):
        unpickle.loads(data, "data_batch_1")
    assert not target.exists()
    pickle.loads(data)
    assert target.exists()


@pytest.mark.parametrize(
    "name",
    [
        "os\nsystem", "posix\nsystem", "builtins\neval", "__builtin__\ngetattr",
        "subprocess\nPopen",
        "numpy\nload", "numpy\nfromfile", "numpy.core.multiarray\nscalar", "numpy\nndarray.dump",
        "numpy.testing._private.utils\nrunstring", "torch\nload", "copyreg\n_reconstructor",
    ],
)  # fmt: skip
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="expected plain data"):
        unpickle.loads(b"\x80\x02c" + name.encode() + b"\n(tR.", "batch")


def test_refusal_is_one_line() -> None:
    with pytest.raises(UserError) as caught:
        unpickle.loads(b"\x80\x04\x8c\x03a\nb\x8c\x03c\nd\x93.", "batch")
    assert "\n" not in str(caught.value)


def test_persistent_objects_are_refused() -> None:
    with pytest.raises(UserError, match="expected plain data"):
        unpickle.loads(b"\x80\x02K\x01Q.", "batch")


def test_every_truncation_is_an_error() -> None:
    whole = pickled({b"data": np.zeros((1, 6), np.uint8), b"labels": [1]})
    for length in range(len(whole)):
        with pytest.raises(UserError, match=r"batch: the pickle is damaged"):
            unpickle.loads(whole[:length], "batch")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 200))
def test_noise_is_never_anything_but_a_user_error(noise: bytes, place: int) -> None:
    whole = pickled({b"data": np.zeros((2, 6), np.uint8), b"labels": [1]})
    for data in (noise, whole[:place] + noise + whole[place:]):
        with contextlib.suppress(UserError):
            unpickle.to_tensor(unpickle.loads(data, "batch").get("data"), "batch")


@pytest.mark.parametrize(
    "value", [np.zeros(3, np.int16), np.zeros(3, np.float64), np.zeros(3, np.int8), [1, 2], b"ab"]
)
def test_anything_but_bytes_in_an_array(value: object) -> None:
    read = unpickle.loads(pickled({b"data": value}), "batch")
    with pytest.raises(UserError, match="batch: expected an array"):
        unpickle.to_tensor(read["data"], "batch")


def test_array_with_too_few_bytes() -> None:
    data = pickled({b"data": np.zeros((1, 6), np.uint8)}).replace(
        b"T\x06\0\0\0\0\0\0\0\0\0", b"T\x05\0\0\0\0\0\0\0\0"
    )
    with pytest.raises(UserError, match=r"expected \(1, 6\) bytes, got 5"):
        unpickle.to_tensor(unpickle.loads(data, "batch")["data"], "batch")


@pytest.mark.parametrize("number", [b"r\xff\xff\xff\x0f", b"r\x00\x00\x01\x00", b"p268435455\n"])
def test_a_number_that_would_need_gigabytes(number: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(UserError, match=r"batch: the pickle is damaged .*it numbers an object"):
        unpickle.loads(b"\x80\x02}" + number + b".", "batch")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
