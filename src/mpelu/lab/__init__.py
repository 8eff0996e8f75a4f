"""Training, inspecting and reproducing networks: what the command line does, from Python.

Functions print nothing. They log to the logger "mpelu.lab" and raise UserError, a ValueError, for
anything that is the caller's to fix.

Example:
    >>> from mpelu.lab import Config, load_network, train
    >>> outcome = train(Config(model="resnet-8", epochs=1), "runs/first")  # doctest: +SKIP
    >>> trained = load_network("runs/first")  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpelu.lab.config import Config
    from mpelu.lab.errors import UserError
    from mpelu.lab.inspecting import Inspection, inspect_config, inspect_run
    from mpelu.lab.paper import reproduce
    from mpelu.lab.reporting import WrittenReport, write_report
    from mpelu.lab.training.display import Display
    from mpelu.lab.training.launch import resume, train
    from mpelu.lab.training.step import evaluate
    from mpelu.lab.training.trained import TrainedNetwork, load_network
    from mpelu.lab.training.trainer import Outcome

__all__ = [
    "Config",
    "Display",
    "Inspection",
    "Outcome",
    "TrainedNetwork",
    "UserError",
    "WrittenReport",
    "evaluate",
    "inspect_config",
    "inspect_run",
    "load_network",
    "reproduce",
    "resume",
    "train",
    "write_report",
]

# Everything waits for its first use, so that `mpelu --help` doesn't import torch.
_HOMES = {
    "Config": "config",
    "Display": "training.display",
    "Inspection": "inspecting",
    "Outcome": "training.trainer",
    "TrainedNetwork": "training.trained",
    "UserError": "errors",
    "WrittenReport": "reporting",
    "evaluate": "training.step",
    "inspect_config": "inspecting",
    "inspect_run": "inspecting",
    "load_network": "training.trained",
    "reproduce": "paper",
    "resume": "training.launch",
    "train": "training.launch",
    "write_report": "reporting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
