"""On what a run ran: environment.json."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mpelu import __version__, kernels

if TYPE_CHECKING:
    from mpelu.lab.training.distributed import World

_PACKAGES = ("numpy", "safetensors", "scikit-learn", "pillow")


def machine() -> dict[str, Any]:
    """Versions and hardware that measurements depend on."""
    return {
        "mpelu": __version__,
        "kernel": str(kernels.backend()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def describe(world: World) -> dict[str, Any]:
    """Versions, processor, threads, revision and command."""
    cuda = world.device.type == "cuda"
    return {
        **machine(),
        "command": sys.argv,
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "threads": torch.get_num_threads(),
        "device": str(world.device),
        "gpu": torch.cuda.get_device_name(world.device) if cuda else None,
        "processes": world.size,
        "revision": _revision(Path(__file__).parent),
    }


def changes(before: dict[str, Any], world: World) -> list[str]:
    """What differs from an environment before, of all that the bits of a result hang on."""
    now = describe(world)
    names = ("mpelu", "kernel", "torch", "cpu", "threads", "device", "gpu", "processes")
    return [
        f"{name} {before[name]} then, {now[name]} now"
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
    """Of the git repository mpelu is run from, with a mark if files were changed since."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
