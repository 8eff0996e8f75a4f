"""Runs on a Ray cluster. All machines need the output folder, and the data, at the same path."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from mpelu.lab.errors import UserError
from mpelu.lab.studies.work import Done, Job, failed, perform

RETRIES = 3
"""How often a run is taken up again after its worker was lost."""


def distribute(
    jobs: Sequence[Job],
    *,
    address: str | None = None,
    cpus: float = 1,
    gpus: float = 0,
    workers: int | None = None,
) -> Generator[Done, None, None]:
    """Hands the runs to Ray, which sends each to a worker with room for it.

    A run whose worker is lost is given to another one and goes on from its last checkpoint.

    Args:
        jobs: the runs.
        address: of a cluster; None for one on this machine, made for this and shut down after.
        cpus: that a run takes.
        gpus: that a run takes.
        workers: runs at a time in a cluster made here; as many as there are cores if None.

    Raises:
        UserError: if Ray isn't installed, no cluster answers, or no run would ever have room.
    """
    ray = load()
    with _cluster(ray, address, cpus, gpus, workers):
        _check_room(ray, cpus, gpus)
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES)(_perform)
        names = {
            task.options(name=job.name).remote(job.to_json(), max(1, int(cpus))): job.name
            for job in jobs
        }
        waiting = list(names)
        try:
            while waiting:
                ended, waiting = ray.wait(waiting)
                for each in ended:
                    yield _result(ray, each, names[each])
        finally:
            for each in waiting:
                ray.cancel(each)


def _perform(text: str, threads: int) -> Done:
    import torch

    torch.set_num_threads(threads)
    return perform(Job.from_json(text))


def _result(ray: Any, reference: Any, name: str) -> Done:
    try:
        done = ray.get(reference)
    except ray.exceptions.WorkerCrashedError:
        lost = f"its worker was lost {RETRIES + 1} times"
        return Done(name=name, state="failed", message=lost)
    except ray.exceptions.RayError as error:
        return failed(name, error)
    assert isinstance(done, Done)
    return done


def load() -> Any:
    """Ray itself.

    Raises:
        UserError: if it isn't installed.
    """
    # Ray would otherwise send how it is used to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError(
            "executor ray: expected Ray, got none; pip install 'mpelu[ray]' adds it"
        ) from None
    return ray


@contextlib.contextmanager
def _cluster(
    ray: Any, address: str | None, cpus: float, gpus: float, workers: int | None
) -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is not None:
        options["address"] = address
    else:
        options["include_dashboard"] = False
        if workers is not None:
            options["num_cpus"] = max(1, int(workers * cpus))
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        line = str(error).strip().splitlines()[0]
        raise UserError(f"ray address: expected a cluster, got {address}: {line}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_room(ray: Any, cpus: float, gpus: float) -> None:
    """Ray would wait for ever for a machine that large."""
    most = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for name, wanted in (("CPU", cpus), ("GPU", gpus)):
        there = max((node.get(name, 0) for node in most), default=0)
        if wanted > there:
            raise UserError(
                f"executor ray: expected a machine with {wanted:g} {name}s for a run, "
                f"got at most {there:g}"
            )
