"""Taking up a run where its newest usable checkpoint left it."""

from __future__ import annotations

import sys
from typing import Any

from mpelu.lab.errors import UserError
from mpelu.lab.run import checkpoint, files, folder
from mpelu.lab.run.metrics import LOGS, Log
from mpelu.lab.training.loop import Loop


def take_up(loop: Loop, quiet: bool) -> None:
    """Restores the newest checkpoint that can be used and cuts the logs to what it knows."""
    world = loop.stepper.world
    lengths: dict[str, Any] = dict.fromkeys(LOGS, 0)
    damaged = []
    if world.is_main:
        folder.make_directories(loop.run)
        files.remove_temporary(loop.run)
        files.remove_temporary(loop.run / folder.CHECKPOINTS)
    found = False
    for path in list(checkpoint.candidates(loop.run)):
        try:
            contents = checkpoint.load(path)
            loop.restore(contents)
        except checkpoint.CheckpointError as error:
            damaged.append(path)
            if world.is_main:
                print(f"{path} can't be used: {error}", file=sys.stderr, flush=True)
            continue
        lengths = contents["lengths"]
        found = True
        break
    if damaged and not found:
        raise UserError(f"{loop.run}: expected a checkpoint that can be used, got none")
    world.gather(None)
    if not world.is_main:
        return
    for path in damaged:
        checkpoint.set_aside(path)
    if found and loop.state.best_step == loop.state.step:
        checkpoint.mark_best(loop.run, loop.state.step)
    loop.logs = {name: Log(loop.run / name, lengths[name]) for name in LOGS}
    if not quiet:
        where = f"after step {loop.state.step}" if found else "from the start: no checkpoint yet"
        print(f"going on {where}", flush=True)
