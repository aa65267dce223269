"""Copies of the model for FSDP2 and DeepSpeed, which take over the model that a trainer is given."""

import copy
import dataclasses

import torch
from accelerate.utils import broadcast
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import TrainingArguments

from mixer import MixingTrainer
from mixer.trainer.checks.engines import is_requested


class ModelCopies:
    """Gives each task a copy of the model to train, and takes its weights back when the task ends.

    FSDP2 replaces the parameters of a model with shards, and DeepSpeed attaches itself to them, both for good: a second
    trainer needs a model without traces of the first. The model itself stays whole, on the CPU of each rank. Without
    such an engine the model itself is trained.

    Args:
        args: The training arguments.
    """

    def __init__(self, args: TrainingArguments):
        self._args, self._are_made = args, is_requested(args)

    def new(self, model: nn.Module) -> nn.Module:
        """Returns the model that a task trains."""
        return copy.deepcopy(model) if self._are_made else model

    def arguments(self, output_dir: str) -> TrainingArguments:
        """Returns the arguments of a task; those for DeepSpeed anew, with nothing filled in by the task before."""
        args = dataclasses.replace(self._args) if self._args.deepspeed_plugin else copy.copy(self._args)
        args.output_dir = output_dir
        return args

    @torch.no_grad()
    def take_back(self, trainer: MixingTrainer, model: nn.Module) -> None:
        """Gives the model the weights that a trainer's copy has now; all ranks have to call it.

        Shards are gathered one tensor at a time; what is not sharded, such as running statistics, is that of rank 0.
        """
        if self._are_made:
            whole = model.state_dict()
            for name, part in trainer.auxiliary_passes.model.state_dict().items():
                tensor = part.to(trainer.args.device)  # with offloading it is elsewhere, where ranks cannot gather it
                whole[name].copy_(tensor.full_tensor() if isinstance(tensor, DTensor) else broadcast(tensor))
