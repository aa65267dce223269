"""The trainers of a recipe: ours, or one of TRL's on a mixture."""

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from mixer.tools.recipe.model import ModelRecipe, Task
from mixer.tools.recipe.places import placed
from mixer.trainer.trainer import MixingTrainer
from mixer.utils.errors import require

TrainerName = Literal["sft", "dpo", "reward"]


class TrainerKind(NamedTuple):
    """A trainer that recipes name.

    Args:
        module: The module of its classes.
        trainer: Its class.
        config: The class of its training arguments.
        task: The task of its model.
    """

    module: str
    trainer: str
    config: str
    task: Task

    def load(self, name: str) -> Any:
        """Imports one of its classes.

        Raises:
            ValueError: If TRL is not installed.
        """
        with placed("trainer"):
            return getattr(importlib.import_module(self.module), name)


KINDS: Mapping[str, TrainerKind] = {
    "sft": TrainerKind("mixer.trainer.trl.sft", "MixingSFTTrainer", "MixingSFTConfig", "causal-lm"),
    "dpo": TrainerKind("mixer.trainer.trl.preferences", "MixingDPOTrainer", "MixingDPOConfig", "causal-lm"),
    "reward": TrainerKind(
        "mixer.trainer.trl.preferences", "MixingRewardTrainer", "MixingRewardConfig", "sequence-classification"
    ),
}


def trainer_class(name: str | None) -> type[Any]:
    """Returns the class of the trainer, by its name; `None` for `MixingTrainer`."""
    return MixingTrainer if name is None else KINDS[name].load(KINDS[name].trainer)


def fitted_model(name: str, model: ModelRecipe) -> ModelRecipe:
    """Gives a model the head that a trainer of TRL needs.

    Raises:
        ValueError: If it has another task.
    """
    task = KINDS[name].task
    require(model.task in ("causal-lm", task), "model.task", f"{task} for trainer {name}", model.task)
    if name != "reward":
        return model
    return replace(model, task=task, config={"num_labels": 1, **model.config})
