"""Engines for GPUs, on ranks that have none: FSDP2 and DeepSpeed through gloo."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import transformers.training_args
from accelerate.state import PartialState
from accelerate.utils import DistributedType


@contextmanager
def as_on_gpus() -> Iterator[None]:
    """Has accelerate take ranks on the CPU for ranks on GPUs: else it gives them DDP whatever they ask for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
        patch.setattr(PartialState, "_prepare_backend", lambda *_, **__: ("gloo", DistributedType.MULTI_GPU))
        patch.setattr(transformers.training_args, "is_torch_bf16_gpu_available", lambda: True)
        yield


def fsdp(**config: Any) -> dict[str, Any]:
    return {"fsdp": True, "fsdp_config": config, "use_cpu": False}


def deepspeed(stage: int, **config: Any) -> dict[str, Any]:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    automatic = dict.fromkeys(names, "auto")
    zero = {"stage": stage, **config.pop("zero_optimization", {})}
    own = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, **config}
    return {"deepspeed": {**automatic, "zero_optimization": zero, **own}, "use_cpu": False}


def without_compiling() -> None:
    """Has DeepSpeed talk through gloo alone, and not compile an operation for ranks that share memory."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # Not by `import`: the package's own star-import puts torch itself in the place of its module of that name.
    vars(importlib.import_module("deepspeed.comm.torch"))["build_shm_op"] = lambda: None
