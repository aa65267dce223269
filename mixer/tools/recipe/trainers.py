"""The trainers of a recipe: ours, or one of TRL's or of sentence-transformers on a mixture."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from mixer.tools.recipe.model import ModelRecipe, Task
from mixer.tools.recipe.places import placed
from mixer.tools.recipe.streams import COLUMN_TRAINERS, IMAGE_TASK, Factory, call_by_name, named
from mixer.trainer.trainer import MixingTrainer
from mixer.utils.errors import require, wrong_value

TrainerName = Literal[
    "sft", "dpo", "reward", "grpo", "sentence-transformer", "cross-encoder", "sparse-encoder", "multi-vector-encoder"
]
Loss = str | Factory
_SENTENCES = "mixer.trainer.sentence_transformers.trainers"


class TrainerKind(NamedTuple):
    """A trainer that recipes name.

    Args:
        module: The module of its classes.
        trainer: Its class.
        config: The class of its training arguments.
        task: The task of its model.
        package: The package of sentence-transformers that has the model and its losses; empty for other trainers.
        model: The class of the model there.
    """

    module: str
    trainer: str
    config: str
    task: Task
    package: str = ""
    model: str = ""

    def load(self, name: str) -> Any:
        """Imports one of its classes.

        Raises:
            ValueError: If its package is not installed.
        """
        with placed("trainer"):
            return getattr(importlib.import_module(self.module), name)


KINDS: Mapping[str, TrainerKind] = {
    "sft": TrainerKind("mixer.trainer.trl.sft", "MixingSFTTrainer", "MixingSFTConfig", "causal-lm"),
    "dpo": TrainerKind("mixer.trainer.trl.preferences", "MixingDPOTrainer", "MixingDPOConfig", "causal-lm"),
    "reward": TrainerKind(
        "mixer.trainer.trl.preferences", "MixingRewardTrainer", "MixingRewardConfig", "sequence-classification"
    ),
    "grpo": TrainerKind("mixer.trainer.grpo.trainers", "MixingGRPOTrainer", "MixingGRPOConfig", "causal-lm"),
    "sentence-transformer": TrainerKind(
        *(_SENTENCES, "MixingSentenceTransformerTrainer", "MixingSentenceTransformerConfig", "encoder"),
        *("sentence_transformers.sentence_transformer", "SentenceTransformer"),
    ),
    "cross-encoder": TrainerKind(
        *(_SENTENCES, "MixingCrossEncoderTrainer", "MixingCrossEncoderConfig", "sequence-classification"),
        *("sentence_transformers.cross_encoder", "CrossEncoder"),
    ),
    "sparse-encoder": TrainerKind(
        *(_SENTENCES, "MixingSparseEncoderTrainer", "MixingSparseEncoderConfig", "masked-lm"),
        *("sentence_transformers.sparse_encoder", "SparseEncoder"),
    ),
    "multi-vector-encoder": TrainerKind(
        *(_SENTENCES, "MixingMultiVectorEncoderTrainer", "MixingMultiVectorEncoderConfig", "encoder"),
        *("sentence_transformers.multi_vector_encoder", "MultiVectorEncoder"),
    ),
}


def trainer_class(name: str | None) -> type[Any]:
    """Returns the class of the trainer, by its name; `None` for `MixingTrainer`."""
    return MixingTrainer if name is None else KINDS[name].load(KINDS[name].trainer)


def fitted_model(name: str, model: ModelRecipe) -> ModelRecipe:
    """Gives a model the task, or the head, that a trainer needs.

    Raises:
        ValueError: If it has another task.
    """
    task = KINDS[name].task
    tasks = ("causal-lm", task, *((IMAGE_TASK,) if name == "sft" else ()))
    require(
        model.task in tasks, "model.task", f"{' or '.join(dict.fromkeys(tasks[1:]))} for trainer {name}", model.task
    )
    if name in COLUMN_TRAINERS:
        return replace(model, task=task)
    if name != "reward":
        return model
    return replace(model, task=task, config={"num_labels": 1, **model.config})


def column_model(name: str, model: ModelRecipe) -> Any:
    """Loads the model of a trainer of sentence-transformers.

    Args:
        name: The trainer.
        model: The recipe's model: `name_or_path` with the arguments of the package's class in `config`, or `factory`.

    Raises:
        ValueError: If it has options that these models do not take.
    """
    unused = [field for field in ("gguf_file", "heads", "lora", "quantization") if getattr(model, field)]
    if unused:
        text = f"is not for trainer {name}: write a function that makes the model, and name it as factory."
        raise wrong_value(unused[0], text)
    if model.factory is not None:
        return call_by_name("factory", model.factory, model.arguments)
    require(model.loaded_from is not None, "name_or_path", f"given for trainer {name}, or factory", None)
    kind = KINDS[name]
    return getattr(importlib.import_module(kind.package), kind.model)(model.loaded_from, **model.config)


def reward_functions(rewards: str | Sequence[str] | Mapping[str, str | list[str]]) -> Any:
    """Returns the reward functions of GRPO by their dotted names; names with a slash are those of reward models.

    Args:
        rewards: A name, several, or such by stream.

    Raises:
        ValueError: If there is no such function.
    """
    if isinstance(rewards, Mapping):
        return {stream: reward_functions(own) for stream, own in rewards.items()}
    names = [rewards] if isinstance(rewards, str) else rewards
    return [name if "/" in name else named("rewards", name) for name in names]


def column_losses(name: str, losses: Loss | Mapping[str, Loss], model: Any) -> Any:
    """Makes the loss of a trainer of sentence-transformers, or those by stream.

    Args:
        name: The trainer.
        losses: The name of a loss of the package, a dotted name, or either with arguments; or such by stream.
        model: The model, the first argument of each.

    Raises:
        ValueError: If there is none of the name, or it does not take the arguments.
    """
    if isinstance(losses, Mapping):
        return {stream: column_losses(name, own, model) for stream, own in losses.items()}
    own = Factory(losses) if isinstance(losses, str) else losses
    dotted = own.factory if "." in own.factory else f"{KINDS[name].package}.losses.{own.factory}"
    return call_by_name("loss", dotted, own.arguments, model)
