"""How the ranks of a command end."""

import gc
import importlib
import os
import sys


def import_early() -> None:
    """Imports DeepSpeed, where it is installed, before there is a group of ranks; to be called first of all.

    accelerate imports it once a model is prepared, whatever the engine. The group that is there by then becomes the
    default of an argument in DeepSpeed, which never lets go of it: `end_together` would end it in vain.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate.utils import is_deepspeed_available

        if is_deepspeed_available():
            importlib.import_module("deepspeed")


def end_together() -> None:
    """Ends the group of the ranks once all are done; to be called on all, when nothing of the run is needed any more.

    A rank that ends while another still writes can take it down, so they wait for each other. And whoever still holds
    the group, as trainers do, which only a collection of cycles takes away, keeps its threads alive: one that is at
    work while the interpreter ends aborts the process ("terminate called without an active exception").
    """
    if "torch" not in sys.modules:  # a command that only reads
        return
    import torch.distributed
    from accelerate import PartialState

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    state = PartialState()
    state.wait_for_everyone()
    state.destroy_process_group()
    gc.collect()
