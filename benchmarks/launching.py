"""Runs of several processes under torchrun, which leave none of them behind."""

import os
import subprocess
import sys
from collections.abc import Sequence


def launch(num_ranks: int, arguments: Sequence[str], limit_seconds: float) -> None:
    """Runs a module on some ranks of this machine, with one thread each.

    Args:
        num_ranks: Number of ranks.
        arguments: The module's name and its arguments.
        limit_seconds: How long at most.

    Raises:
        RuntimeError: If it failed; the end of what it said is told.
        subprocess.TimeoutExpired: If it took longer.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(num_ranks), "-m"]
    run_to_end([*command, *arguments], limit_seconds)


def run_to_end(command: Sequence[str], limit_seconds: float) -> None:
    """Runs a command, and asks it to end where it takes too long or this process is interrupted.

    Args:
        command: The command.
        limit_seconds: How long at most.

    Raises:
        RuntimeError: If it failed; the end of what it said is told.
        subprocess.TimeoutExpired: If it took longer.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            _, errors = process.communicate(timeout=limit_seconds)
        except BaseException:
            process.terminate()  # torchrun ends its ranks then; killed, it would leave them behind
            raise
    if process.returncode:
        said = errors.decode(errors="replace")[-4000:]
        raise RuntimeError(f"{' '.join(command)} failed with status {process.returncode}:\n{said}")
