"""What each rank does; the process that ranks are forked from imports it, and all that it needs, once."""

import contextlib
import gc
import importlib
import multiprocessing
import os
import signal
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed

import tasks  # noqa: F401  # imported once, for all ranks
from benchmarks.faults import controls, data, filling, waits  # noqa: F401  # likewise
from benchmarks.faults.run import Start, parts_of, train

with contextlib.suppress(ImportError):  # accelerate would, in every rank, where it is installed
    importlib.import_module("deepspeed")

_INTERRUPTED = 130


def be_a_rank(start: Start, console: str, environment: dict[str, str]) -> None:
    """Trains as one of several ranks, and ends the process.

    Args:
        start: What the ranks are to do.
        console: The file for what it writes to the console.
        environment: What torchrun would have set.
    """
    os.environ.clear()
    os.environ.update(environment)
    written = os.open(console, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(written, 1)
    os.dup2(written, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background command ignores
    gc.freeze()  # what was imported is not looked through by every collection
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # of loaders' workers; this process has another one
    code = 0
    try:
        parts = parts_of(start)
        if start.inside is not None:
            start.inside(parts, start, int(environment["RANK"]))
        train(start, parts)
        torch.distributed.destroy_process_group()
    except SystemExit as end:
        print(end, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        traceback.print_exc()
        code = _INTERRUPTED
    except BaseException:  # as an interpreter would end
        traceback.print_exc()
        code = 1
    Path(console).with_suffix(".code").write_text(str(code))  # what forked it loses the status now and then
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
