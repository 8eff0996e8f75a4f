"""The `mpelu` command as its users meet it: help, misuse, interrupts, odd outputs."""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from command_helpers import SETTINGS, refused

import mpelu
from mpelu.lab import cli
from mpelu.lab.errors import UserError

PROGRAM = "import sys; from mpelu.lab.cli import main; sys.exit(main())"
NO_ROWS = "from mpelu.lab.commands import models; models.rows = lambda: []; "
"""Before PROGRAM, makes `mpelu models` quick."""


def start(*arguments: str, program: str = PROGRAM, **settings: Any) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, text=True, **{**pipes, **settings})


def closed_pipe(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Closes the pipe that a process prints to; its exit code and what it says about that."""
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate()
    return process.returncode, err


# Help


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_help_fits_80_columns_and_says_what_the_command_does(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        cli.main([*command.split(), "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    usage, description, *_ = text.split("\n\n")
    assert usage.startswith(f"usage: mpelu {command}".rstrip())
    assert description.splitlines()[0].endswith(".")
    assert "\nexamples:\n  mpelu " in text


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_defaults_are_shown_in_one_style(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    _usage, *texts = capsys.readouterr().out.split("\n\n")
    for line in "\n".join(texts).splitlines():
        if "default" in line:
            assert re.search(r" \(default: [^()]+\)$", line), line
        assert not re.search(r" [\[(][^ ]+[\])]$", line), line


def test_the_bare_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    bare = capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert capsys.readouterr().out == bare
    for command, summary in cli.COMMANDS.items():
        assert f"  {command:<11}{summary}\n" in bare


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"mpelu {mpelu.__version__}\n"


@pytest.mark.parametrize("arguments", ["--help", "train --help", "eval --help", "--version"])
def test_help_loads_nothing_slow(arguments: str) -> None:
    program = (
        "import sys; from mpelu.lab import cli\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "slow = {'torch', 'numpy', 'matplotlib', 'rich', 'safetensors'}\n"
        "if sys.argv[1] != 'train' and sys.argv[1] != 'eval':\n"
        "    slow |= {'dataclasses', 'difflib', 'inspect', 'json', 'hashlib'}\n"
        "assert not slow & set(sys.modules), slow & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments.split()], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# Misuse; the lines are in ../test_lab_wording.py


def test_an_error_in_a_config_file_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"lr": -1, "batch_size": 4}')
    told = refused(["train", "--config", str(path)], capsys)
    assert told.startswith(f"--config: {path}: lr: "), told
    told = refused(["train", "--config", str(path), "--lr", "1", "--batch-size", "0"], capsys)
    assert told.startswith("--batch-size: "), told


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "mpelu: interrupted\n"),
        (UserError("expected x, got y"), 2, "mpelu: error: expected x, got y\n"),
        (
            UserError("expected x, got y", field="batch_size"),  # `mpelu models` has no such flag
            2,
            "mpelu: error: batch_size: expected x, got y\n",
        ),
        (OSError(36, "File name too long", "a"), 2, "mpelu: error: a: File name too long\n"),
        (OSError("lost"), 2, "mpelu: error: lost\n"),
        (BrokenPipeError(32, "Broken pipe"), 2, "mpelu: error: [Errno 32] Broken pipe\n"),
        (
            RuntimeError("you tried to allocate 9 bytes.\nstack"),
            2,
            "mpelu: error: out of memory: you tried to allocate 9 bytes.\n",
        ),
        (MemoryError(), 2, "mpelu: error: out of memory: MemoryError\n"),
    ],
)
def test_what_goes_wrong_in_a_command_is_one_line(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing(arguments: argparse.Namespace) -> None:
        raise error

    monkeypatch.setattr("mpelu.lab.commands.models.run", failing)
    with pytest.raises(SystemExit) as stop:
        cli.main(["models"])
    assert stop.value.code == code
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), ModuleNotFoundError("No module named 'mine'", name="mine")]
)
def test_a_bug_keeps_its_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(arguments: argparse.Namespace) -> None:
        raise error

    monkeypatch.setattr("mpelu.lab.commands.models.run", failing)
    with pytest.raises(type(error)) as raised:
        cli.main(["models"])
    assert raised.value is error


# Packages


def test_the_packages_of_the_lab_are_those_of_the_extra() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    extra = re.search(r"^lab = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    assert extra
    distributions = metadata.packages_distributions()
    assert {distributions[name][0].lower() for name in cli.LAB_PACKAGES} == set(
        re.findall(r'"([\w-]+)', extra[1])
    )


@pytest.mark.parametrize("missing", [*cli.LAB_PACKAGES, "all"])
@pytest.mark.parametrize("command", ["train", "models", "eval run"])
def test_without_a_package_of_the_lab_the_command_says_how_to_install_it(
    command: str,
    missing: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in cli.LAB_PACKAGES if missing == "all" else [missing]:
        monkeypatch.setitem(sys.modules, name, None)
    assert refused(command.split(), capsys) == (
        "the command line needs more packages; install them in the directory of mpelu with: "
        'pip install ".[lab]"'
    )
    assert list(tmp_path.iterdir()) == []


def test_help_needs_no_package_of_the_lab() -> None:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({cli.LAB_PACKAGES!r})); "
    for arguments in ([], ["--version"], ["train", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", blocked + PROGRAM, *arguments], capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")


# Interrupts


def test_ctrl_c_during_an_import_ends_the_command_with_one_line(tmp_path: Path) -> None:
    # As parts of torch do, this module swallows the interrupt.
    (tmp_path / "torch.py").write_text(
        "import time\nprint('importing', flush=True)\n"
        "for _ in range(600):\n"
        "    try: time.sleep(0.1)\n"
        "    except BaseException: print('swallowed', flush=True)\n"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    process = start("train", env={**os.environ, "PYTHONPATH": paths}, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "mpelu: interrupted\n")


def test_ctrl_c_elsewhere_is_an_exception(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(arguments: argparse.Namespace) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            print("cleaned up")

    monkeypatch.setattr("mpelu.lab.commands.models.run", interrupted)
    with pytest.raises(SystemExit) as stop:
        cli.main(["models"])
    assert stop.value.code == 130
    assert capsys.readouterr() == ("cleaned up\n", "mpelu: interrupted\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# Where the output goes


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_names_that_cannot_be_encoded_are_shown_as_far_as_they_can(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "grün-😀"
    run = ["train", *SETTINGS, "--out", name]
    for arguments in (run, ["eval", name], ["list"], ["train", "--help"]):
        output = io.BytesIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding=encoding))
            if "--help" in arguments:
                with pytest.raises(SystemExit):
                    cli.main(arguments)
            else:
                assert cli.main(arguments) == 0
            if "eval" in arguments:
                shown = f"{name}: test error".encode(encoding, "replace")
                assert output.getvalue().startswith(shown)


def test_an_encoding_of_the_environment_is_no_error(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    process = start("eval", "grün-😀", env=environment, cwd=tmp_path)
    _, err = process.communicate()
    assert process.returncode == 2
    assert err.startswith(r"mpelu: error: gr\xfcn-\U0001f600: expected a run folder")


def test_a_closed_pipe_ends_the_command_in_silence() -> None:
    assert closed_pipe(start("--help")) == (0, "")
    assert closed_pipe(start("models", program=NO_ROWS + PROGRAM)) == (1, "")
    assert closed_pipe(start("list")) == (1, "")


def test_a_closed_pipe_does_not_end_a_run(tmp_path: Path) -> None:
    assert closed_pipe(start("train", *SETTINGS, "--out", "run", cwd=tmp_path)) == (0, "")
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
def test_no_output_at_all_is_no_error(tmp_path: Path) -> None:
    command = f'exec "{sys.executable}" -c "{PROGRAM}" "$@" >&- 2>error'
    for arguments in ([], ["list"], ["train", *SETTINGS, "--out", "run"]):
        done = subprocess.run(["sh", "-c", command, "sh", *arguments], cwd=tmp_path)
        assert (tmp_path / "error").read_text() == ""
        assert done.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_the_output_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        process = start("models", program=NO_ROWS + PROGRAM, stdout=full)
        _, err = process.communicate()
    assert (process.returncode, err) == (2, "mpelu: error: No space left on device\n")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("studies", ["table9", "figure2"]),
        ("presets", ["resnet-cifar", "plain-imagenet"]),
        ("activations", ["mpelu", "MPELU", "relu", "α"]),
    ],
)
def test_list_names_studies_presets_and_activations(
    what: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["list", what]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in words)
    if what == "studies":
        assert cli.main(["list"]) == 0
        assert capsys.readouterr().out == printed


def test_list_models_is_the_models_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpelu.lab.commands import models

    monkeypatch.setattr(models, "rows", list)
    printed = []
    for arguments in (["list", "models"], ["models"]):
        assert cli.main(arguments) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mpelu", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("mpelu ")
