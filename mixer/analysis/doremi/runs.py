"""The runs that DoReMi consists of: reference model, proxy, and the weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from transformers import TrainingArguments
from transformers.trainer_utils import SaveStrategy
from transformers.utils import logging

from mixer.policies import DoReMi, Policy, Wrapper, as_policy
from mixer.policies.contract import Unit, weights_array
from mixer.recipe.files import differences, read_recipe
from mixer.recipe.recipe import Recipe
from mixer.trainer.checkpointing.choose import newest_complete
from mixer.trainer.trainer import MixingTrainer
from mixer.utils.files import read_json, write_json, write_text

FINISHED_FILE = "finished.json"
RECIPE_FILE = "recipe.yaml"
_RESULTS = (FINISHED_FILE, "checkpoint-*", "training_args.bin")  # the last one stands beside a model
_OF_THE_COMMAND = ("reference_model",)  # the step before, wherever that stands
_MOST_NAMED = 4
logger = logging.get_logger(__name__)
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Step:
    """One of the runs.

    Args:
        recipe: What is trained, into the folder `training.output_dir`.
        written: The same as YAML, as `mixer train` takes it.
        given_as: What the user calls fields of the recipe that were given by another name.
    """

    recipe: Recipe
    written: str
    given_as: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where it is trained."""
        return Path(str(self.recipe.training.output_dir))


def finish(step: Step, gather: Callable[[MixingTrainer], dict[str, Any]] = lambda trainer: {}) -> dict[str, Any]:
    """Trains a step to its end, from its newest checkpoint if it has one, and only if it is not at its end.

    Args:
        step: The step.
        gather: What is noted of it in the end, as plain data.

    Returns:
        What was noted.

    Raises:
        ValueError: If it was begun by another recipe.
    """
    training, file = step.recipe.training, step.folder / FINISHED_FILE
    noted = on_main(training, lambda: _begin(step))
    if noted is not None:
        return noted
    trainer = step.recipe.build(model_field=step.given_as.get("model", "model"))
    trainer.train(resume_from_checkpoint=trainer.newest_checkpoint())
    trainer.save_model()
    noted = gather(trainer)
    trainer.accelerator.wait_for_everyone()  # the model is whole before the step is at its end
    on_main(training, lambda: write_json(file, noted, sealed=True))
    trainer.accelerator.free_memory()
    return noted


def on_main(training: TrainingArguments, work: Callable[[], _Result]) -> _Result:
    """Lets the main process look at or write files, and tells the other ranks; all ranks have to call it.

    Args:
        training: The training arguments.
        work: What the main process does.

    Returns:
        What it gave, on all ranks.

    Raises:
        ValueError: On all ranks, if it failed.
    """
    found: list[Any] = [None, None]
    if training.process_index == 0:
        try:
            found[0] = work()
        except (OSError, ValueError) as error:
            found[1] = str(error)
    if training.world_size > 1:
        dist.broadcast_object_list(found, src=0, device=training.device)
    if found[1] is not None:
        raise ValueError(found[1])
    result: _Result = found[0]
    return result


def _begin(step: Step) -> dict[str, Any] | None:
    """Gives what was noted of a step that is at its end; notes by which recipe it is trained, otherwise."""
    recipe, finished = step.folder / RECIPE_FILE, step.folder / FINISHED_FILE
    had_begun = recipe.exists()
    if had_begun and any(path for results in _RESULTS for path in step.folder.glob(results)):
        _check_same(step, recipe)  # where it left nothing, there is nothing that another recipe could spoil
    if finished.exists():
        return _read_finished(finished)
    write_text(recipe, step.written)
    _warn_of_starting_over(step, had_begun)
    return None


def _check_same(step: Step, recipe: Path) -> None:
    try:
        before = read_recipe(recipe)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"training.output_dir: {recipe} cannot be read ({error}), so that it is not known what {step.folder} was "
            "trained by. If it was this same recipe, delete that file to go on; or give another training.output_dir "
            "to begin anew."
        ) from None
    different = [name for name in differences(before, step.written) if name not in _OF_THE_COMMAND]
    if different:
        named = ", ".join(different[:_MOST_NAMED]) + (", ..." if len(different) > _MOST_NAMED else "")
        raise ValueError(
            f"training.output_dir: {step.folder} was trained by another recipe, which differs in {named}. Give the "
            "recipe that it was trained by, or another training.output_dir to begin anew."
        )


def _read_finished(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except ValueError:
        raise ValueError(
            f"training.output_dir: {path} cannot be read, so that it is not known what came of that step. Delete that "
            "file to go on from the step's newest checkpoint; it starts over where there is none."
        ) from None


def _warn_of_starting_over(step: Step, had_begun: bool) -> None:
    training = step.recipe.training
    if had_begun and newest_complete(step.folder).checkpoint is None:
        logger.warning("%s was begun before, but has no whole checkpoint: it starts over.", step.folder)
    reason = "save_strategy is 'no'" if training.save_strategy == SaveStrategy.NO else "save_only_model is set"
    if training.save_strategy == SaveStrategy.NO or training.save_only_model:
        logger.warning(
            "%s is trained without checkpoints to go on from (training.%s): cut off, it would start over.",
            step.folder,
            reason,
        )


POLICY = DoReMi.__name__  # the proxy's, unless the recipe has another one


@dataclass(frozen=True)
class FoundWeights:
    """What came of reference and proxy.

    Args:
        weights: Weights by stream; they sum to 1.
        unit: Whether they are shares of samples or of tokens.
    """

    weights: dict[str, float]
    unit: Unit


def find_weights(make: Callable[[str, Mapping[str, Any]], Step]) -> FoundWeights:
    """Trains the reference and the proxy, as far as they are not trained yet; all ranks have to call it.

    Args:
        make: Makes a step by its name, `"reference"` or `"proxy"`, with some fields of its recipe given.

    Returns:
        The averaged weights of the proxy.

    Raises:
        ValueError: If the proxy's policy does not average weights by a reference model, or a step was begun by another
            recipe.
    """
    reference = make("reference", {})
    proxy = make("proxy", {"reference_model": str(reference.folder)})
    _check_policy(POLICY if proxy.recipe.mixing is None else proxy.recipe.mixing)
    finish(reference)
    found = finish(proxy, _found)
    return FoundWeights(found["weights"], found["unit"])


def averaged_weights(policy: Policy, names: Sequence[str]) -> dict[str, float]:
    """Gives what a policy that searches for weights came to.

    Args:
        policy: A policy with a property `averaged_weights` (by name, or in the order of the streams), such as `DoReMi`,
            or one that is wrapped around it.
        names: Names of the streams.

    Returns:
        Weights by stream; they sum to 1.

    Raises:
        ValueError: If they are no weights of these streams.
    """
    inner: Any = _unwrapped(policy)
    weights = weights_array(inner.averaged_weights, names, f"{inner.name}.averaged_weights")
    return dict(zip(names, (weights / weights.sum()).tolist(), strict=True))


def _found(trainer: MixingTrainer) -> dict[str, Any]:
    policy = trainer.mixing.policy
    return {"weights": averaged_weights(policy, trainer.mixing.names), "unit": policy.unit}


def _unwrapped(policy: Policy) -> Policy:
    while isinstance(policy, Wrapper):
        policy = policy.policy
    return policy


def _check_policy(mixing: Any) -> None:
    policy = as_policy(mixing)
    if not hasattr(type(_unwrapped(policy)), "averaged_weights"):
        raise ValueError(
            f"mixing: {policy.name} does not average its weights over the run. It is the proxy's policy: give --mixing "
            f"{POLICY}, or another policy with averaged_weights."
        )
    if "excess_loss" not in policy.needs:
        raise ValueError(
            f"mixing: {policy.name}, as it is given, needs no reference model (it may have recorded losses of one). "
            "Leave out what replaces the model; or train by this recipe alone, with mixer train."
        )
