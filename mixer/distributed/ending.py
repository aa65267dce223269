"""How the ranks of a command end; imports neither torch nor DeepSpeed before a command trains."""

import gc
import importlib
import os
import sys


def import_early() -> None:
    """Imports DeepSpeed, if installed, before there is a process group; call it first.

    accelerate imports it when a model is prepared, for any engine. An existing group would become the default of an
    argument in DeepSpeed, which never releases it, so that `end_together` could not end it.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate.utils import is_deepspeed_available

        if is_deepspeed_available():
            importlib.import_module("deepspeed")


def end_together() -> None:
    """Ends the process group once all ranks are done; call it on all ranks, at the very end.

    A rank that ends while another still writes can crash it, so they wait for each other. Objects that still hold the
    group, such as trainers in reference cycles, keep its threads alive: a thread that works while the interpreter ends
    aborts the process ("terminate called without an active exception").
    """
    if "torch" not in sys.modules:  # commands that only read
        return
    import torch.distributed
    from accelerate import PartialState

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    state = PartialState()
    state.wait_for_everyone()
    state.destroy_process_group()
    gc.collect()
