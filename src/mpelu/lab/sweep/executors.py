"""Runs of a study, executed in this process, in processes on this machine, or on a Ray cluster."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpelu.lab.errors import UserError, one_line, plural
from mpelu.lab.files import parse_object
from mpelu.lab.run import folder as runs
from mpelu.lab.sweep.study import Job, Options

GRACE = 60.0
"""Seconds a run has to finish its step and write a checkpoint once it is asked to stop."""
RETRIES = 3
"""How often a run whose worker was lost is continued from its last checkpoint."""
_ASKED = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask a process to end, so that its run isn't continued."""
_WORKER = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "from mpelu.lab.sweep.executors import main; main()"
)
"""Stopped while it imports, a worker ends without a traceback."""


def perform(job: Job, *, progress: bool = False) -> Job:
    """Trains, or resumes a run that was stopped; says how it ended, also after an error."""
    from mpelu.lab.training.display import for_terminal
    from mpelu.lab.training.launch import resume, train

    display = for_terminal() if progress else None
    folder = Path(job.folder)
    try:
        if runs.is_run(folder):
            runs.wait_until_free(folder, GRACE)  # for a worker of a runner that died
            data_dir = job.config.data_dir
            changes = {} if data_dir is None else {"data_dir": data_dir}
            # The job comes from the user's own command, so the code it names is trusted.
            trust = runs.read_config(folder).references == job.config.references
            outcome = resume(folder, changes=changes, display=display, trust=trust)
        else:
            folder.parent.mkdir(parents=True, exist_ok=True)
            outcome = train(job.config, folder, display=display)
    except Exception as error:
        return failed(job, error)
    return replace(job, state=outcome.state, message=outcome.message)


def failed(job: Job, error: BaseException) -> Job:
    """The job after an error. A full disk is told apart, because other runs would meet it too."""
    if is_full(error):
        return replace(job, state="full", message=str(error))
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return replace(job, state="failed", message=kind + one_line(error))


def is_full(error: BaseException | None) -> bool:
    """Whether the error, or a cause of it, is that no space was left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


def main() -> None:
    """Reads a job as JSON from standard input and writes how it ended to standard output."""
    job = Job.from_json(sys.stdin.readline())
    threading.Thread(target=_end_with_runner, daemon=True).start()
    # What the run prints goes to standard error, so that the answer stands alone.
    answer = os.dup(1)
    os.dup2(2, 1)
    ended = perform(job, progress="--progress" in sys.argv)
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it; the folder holds the run
        told = {"state": ended.state, "message": ended.message}
        os.write(answer, (json.dumps(told) + "\n").encode())


def _end_with_runner() -> None:
    """Waits until standard input ends, which means that the runner died; then stops the run."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE)
    os._exit(1)


def inline(jobs: Sequence[Job]) -> Generator[Job, None, None]:
    """Runs one after the other in this process, which saves starting others."""
    for job in jobs:
        yield perform(job)


def local(
    jobs: Sequence[Job], *, processes: int, progress: bool = False, program: Sequence[str] = ()
) -> Generator[Job, None, None]:
    """Runs each job in a process of its own; the cores are divided among those at work.

    A run whose process is killed continues from its last checkpoint in another one. On Ctrl-C, when
    the generator is closed, and when this process dies, every process finishes its step and ends.

    Args:
        jobs: the runs.
        processes: how many run at a time.
        progress: print the progress of runs, to standard error.
        program: command to run instead of `mpelu.lab.sweep.executors.main` in Python, for tests.
    """
    processes = max(1, min(processes, len(jobs)))
    running: dict[int, subprocess.Popen[str]] = {}
    stopping = threading.Event()
    starting = threading.Lock()
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    command = [*(program or (sys.executable, "-c", _WORKER)), *["--progress"] * progress]

    def start() -> subprocess.Popen[str] | None:
        with starting:
            if stopping.is_set():
                return None
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                # A process group of its own: Ctrl-C arrives here, and is passed on once to each.
                start_new_session=True,
            )
            running[process.pid] = process
            return process

    def run(job: Job) -> Job:
        losses = 0
        while (process := start()) is not None:
            out = _converse(process, job)
            running.pop(process.pid, None)
            is_lost = process.returncode < 0 and -process.returncode not in _ASKED
            if not is_lost or stopping.is_set() or losses == RETRIES:
                return _answer(job, out, process.returncode, losses)
            losses += 1
        return replace(job, state="interrupted", message="not started")

    with ThreadPoolExecutor(processes) as pool:
        try:
            for each in as_completed([pool.submit(run, job) for job in jobs]):
                yield each.result()
        finally:
            with starting:
                stopping.set()
            _stop(list(running.values()))


def _converse(process: subprocess.Popen[str], job: Job) -> str:
    """Sends the job and returns all that the process answers until it ends.

    Its standard input stays open meanwhile: a worker takes its end for the end of this process.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout, contextlib.suppress(BrokenPipeError), process.stdin:
        with contextlib.suppress(BrokenPipeError):  # it died already
            process.stdin.write(job.to_json() + "\n")
            process.stdin.flush()
        out = process.stdout.read()
        process.wait()
    return out


def _answer(job: Job, out: str, code: int, losses: int) -> Job:
    times = plural(losses, "time")
    with contextlib.suppress(ValueError, IndexError, KeyError):
        told = parse_object(out.strip().splitlines()[-1])
        again = f" (its process was killed {times} and it continued)" if losses else ""
        return replace(job, state=told["state"], message=f"{told['message']}{again}")
    reason = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    if losses:
        reason += f", after it was killed {times} before"
    return replace(job, state="failed", message=f"its process {reason}")


def _stop(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
    for process in processes:
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ray(jobs: Sequence[Job], options: Options) -> Generator[Job, None, None]:
    """Hands the runs to Ray, which sends each to a worker that has room for it.

    A run whose worker is lost continues from its last checkpoint on another one. All machines need
    the output directory, and the data, at the same path. A cluster that is started on this machine
    has room for as many runs at a time as the options say.

    Raises:
        UserError: if Ray isn't installed, no cluster answers, or no machine has room for a run.
    """
    cpus, gpus = options.cpus_per_run, options.gpus_per_run
    module = load_ray()
    with _cluster(module, options):
        _check_room(module, cpus, gpus)
        task = module.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES)(_perform)
        threads = max(1, int(cpus))
        sent = {task.options(name=job.name).remote(job.to_json(), threads): job for job in jobs}
        waiting = list(sent)
        try:
            while waiting:
                ended, waiting = module.wait(waiting)
                for each in ended:
                    yield _outcome(module, each, sent[each])
        finally:
            for each in waiting:
                module.cancel(each)


def load_ray() -> Any:
    """Imports Ray.

    Raises:
        UserError: if it isn't installed.
    """
    # By default, Ray reports usage statistics to its developers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError(
            "Ray isn't installed; install it in the directory of mpelu with: pip install '.[ray]'",
            field="executor",
        ) from None
    return ray


def _perform(text: str, threads: int) -> Job:
    import torch

    torch.set_num_threads(threads)
    return perform(Job.from_json(text))


def _outcome(module: Any, reference: Any, job: Job) -> Job:
    try:
        ended: Job = module.get(reference)
    except module.exceptions.WorkerCrashedError:
        lost = f"its worker was lost {plural(RETRIES + 1, 'time')}"
        return replace(job, state="failed", message=lost)
    except module.exceptions.RayError as error:
        return failed(job, error)
    return ended


@contextlib.contextmanager
def _cluster(module: Any, options: Options) -> Iterator[None]:
    if module.is_initialized():
        yield
        return
    address, where = options.ray_address, f"the cluster at {options.ray_address}"
    how: dict[str, Any] = {"address": address}
    if address is None:
        cpus, where = max(1, int(options.at_a_time * options.cpus_per_run)), "a new cluster"
        how = {"include_dashboard": False, "num_cpus": cpus}
    try:
        module.init(log_to_driver=False, logging_level="ERROR", **how)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"can't connect to {where}: {one_line(error)}", field="ray_address"
        ) from error
    try:
        yield
    finally:
        module.shutdown()


def _check_room(module: Any, cpus: float, gpus: float) -> None:
    """Raises UserError if no machine has room for a run, for which Ray would wait forever."""
    machines = [node["Resources"] for node in module.nodes() if node["Alive"]]
    for field, name, wanted in (("cpus_per_run", "CPU", cpus), ("gpus_per_run", "GPU", gpus)):
        most = max((machine.get(name, 0) for machine in machines), default=0)
        if wanted > most:
            raise UserError(
                f"expected at most {most:g}, the largest number on a machine of the cluster, "
                f"got {wanted:g}",
                field=field,
            )
