"""What `mpelu.lab` offers from Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from refusals import refusal
from train_helpers import SMALL

from mpelu import lab


def test_a_run_from_start_to_end_in_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = lab.train(lab.Config(**{**SMALL, "epochs": 1}), tmp_path / "run")
    assert lab.resume(tmp_path / "run", changes={"epochs": 2}).step == 2 * outcome.step
    trained = lab.load_network(tmp_path / "run")
    assert isinstance(trained, lab.TrainedNetwork)
    assert trained.classes == tuple("0123456789")
    assert capsys.readouterr() == ("", "")


def test_paths_may_be_strings(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    lab.train(lab.Config(**{**SMALL, "epochs": 1}), run)
    assert lab.resume(run).state == "finished"
    assert lab.load_network(run).config.epochs == 1


def test_bad_input_is_a_value_error() -> None:
    with refusal(0, field="lr"):
        lab.Config(lr=0)


def test_public_names_exist_and_no_others_are_listed() -> None:
    assert dir(lab) == sorted(lab.__all__)
    for name in lab.__all__:
        assert getattr(lab, name).__name__ == name


def test_importing_it_does_not_import_torch() -> None:
    program = "import mpelu.lab, sys; mpelu.lab.Config; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_lists_and_paths_are_accepted(tmp_path: Path) -> None:
    config = lab.Config(milestones=[3, 5], data_dir=tmp_path)  # type: ignore[arg-type]
    assert config.milestones == (3, 5)
    assert config.data_dir == str(tmp_path)


@pytest.mark.parametrize("values", [{"lr": 10**400}, {"batch_size": 10**400}])
def test_huge_numbers_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(lab.UserError, match="expected a number <= 1,000,000,000, got 1"):
        lab.Config.from_values(values)


def test_an_unknown_device_is_refused(tmp_path: Path) -> None:
    lab.train(lab.Config(**{**SMALL, "epochs": 1}), tmp_path / "run")
    with pytest.raises(lab.UserError, match="device: unknown value 'tpu'; did you mean 'cpu'"):
        lab.load_network(tmp_path / "run", device="tpu")


def test_a_report_of_one_folder(tmp_path: Path) -> None:
    lab.train(lab.Config(**{**SMALL, "epochs": 1}), tmp_path / "run")
    assert lab.write_report(str(tmp_path / "run"), tmp_path / "page").runs == 1


def revision(package: Path) -> object:
    """The revision that runs of this copy of mpelu record."""
    spec = spec_from_file_location("copied_environment", package / "lab/environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.describe_process(torch.device("cpu"))["revision"]


def git(repository: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(
        ["git", *who, *words], cwd=repository, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="git isn't installed")
def test_the_recorded_revision_is_that_of_mpelu_and_never_of_a_users_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(lab.__file__).parents[1]
    own, users = tmp_path / "checkout", tmp_path / "users"
    copies = [own / "src/mpelu", users / ".venv/lib/site-packages/mpelu", users / "src/mpelu"]
    for copy in copies:
        (copy / "lab").mkdir(parents=True)
        shutil.copyfile(source / "lab/environment.py", copy / "lab/environment.py")
    (own / "pyproject.toml").write_text('[project]\nname = "mpelu"\n')
    (users / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    for repository in (own, users):
        git(repository, "init", "-q")
        git(repository, "add", ".")
        git(repository, "commit", "-q", "-m", "first")
    commit = git(own, "rev-parse", "HEAD")
    assert revision(copies[0]) == commit
    assert [revision(copy) for copy in copies[1:]] == [None, None]
    monkeypatch.setenv("GIT_DIR", str(users / ".git"))  # as in a hook of another repository
    assert revision(copies[0]) == commit
    (own / "pyproject.toml").write_text('[project]\nname = "mpelu"\nversion = "2"\n')
    assert revision(copies[0]) == f"{commit}-dirty"
