"""The machine and the versions that a result depends on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from mpelu import __version__, kernels

_PACKAGES = ("numpy", "safetensors", "pillow")


def describe_machine() -> dict[str, Any]:
    """Processor, GPU, system and versions."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mpelu": __version__,
    }


def describe_process(device: torch.device, processes: int = 1) -> dict[str, Any]:
    """The machine, and how a run uses it: kernel, threads, packages, revision and command."""
    return {
        **describe_machine(),
        "kernel": str(kernels.backend(device)),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "processes": processes,
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "revision": _revision(Path(__file__).resolve().parent),
        "command": sys.argv,
    }


def changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between two environments of what can change the last bits of a result.

    Example:
        >>> changed({"torch": "2.13.0", "threads": 2}, {"torch": "2.13.0", "threads": 1})
        ['threads was 2, is 1']
    """
    names = ("mpelu", "kernel", "torch", "cpu", "threads", "device", "gpu", "processes")
    return [
        f"{name} was {before[name]}, is {now[name]}"
        for name in names
        if name in before and before[name] != now[name]
    ]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _revision(folder: Path) -> str | None:
    """The commit of mpelu's own repository, marked if files have changed; None outside of it.

    An installed package may lie inside a repository of the user's, whose commit says nothing of it.
    """
    root = folder.parent.parent.parent
    try:
        project = (root / "pyproject.toml").read_text()
        if folder != root / "src/mpelu/lab" or not re.search('^name = "mpelu"$', project, re.M):
            return None
        # Git sets these for its hooks, and they name the repository of the hook.
        hook = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
        answers = [
            subprocess.run(
                ["git", *words],
                cwd=folder,
                env={name: value for name, value in os.environ.items() if name not in hook},
                capture_output=True,
                check=True,
                text=True,
                timeout=10,
            ).stdout.strip()
            for words in (
                ("rev-parse", "--show-prefix"),
                ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
            )
        ]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return answers[1] if answers[0] == "src/mpelu/lab/" else None
