"""Mixing weights from two small runs: a reference model, and a proxy that is compared with it.

DoReMi (Xie et al., arXiv 2305.10429, section 2) trains a reference model on a plain mixture (step 1), then a proxy
whose mixture follows by how much it loses more than the reference (step 2), and takes the average of the proxy's
weights over its run for the mixture of the run that counts (step 3).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
import yaml
from transformers import TrainingArguments

from mixer.checkpoint import write_json
from mixer.policies import DoReMi, Policy, Wrapper, as_policy
from mixer.policies.base import Unit, weights_array
from mixer.recipe import Recipe
from mixer.trainer import MixingTrainer

POLICY = DoReMi.__name__  # the proxy's, unless the recipe has another one
FINISHED_FILE = "finished.json"
RECIPE_FILE = "recipe.yaml"
_MOST_NAMED = 4

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Step:
    """One of the runs.

    Args:
        recipe: What is trained, into the folder `training.output_dir`.
        written: The same as YAML, as `mixer train` takes it.
    """

    recipe: Recipe
    written: str

    @property
    def folder(self) -> Path:
        """Where it is trained."""
        return Path(str(self.recipe.training.output_dir))


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
    trainer = step.recipe.build()
    trainer.train(resume_from_checkpoint=trainer.newest_checkpoint())
    trainer.save_model()
    noted = gather(trainer)
    trainer.accelerator.wait_for_everyone()  # the model is whole before the step is at its end
    on_main(training, lambda: write_json(file, noted))
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
            f"mixing: {policy.name} does not average its weights over the run. It is the proxy's policy: leave it out "
            f"for {POLICY}, or give a policy with averaged_weights."
        )
    if "excess_loss" not in policy.needs:
        raise ValueError(
            f"mixing: {policy.name}, as it is given, needs no reference model (it may have recorded losses of one). "
            "Leave out what replaces the model; or train by this recipe alone, with mixer train."
        )


def _begin(step: Step) -> dict[str, Any] | None:
    """Gives what was noted of a step that is at its end; notes by which recipe it is trained, otherwise."""
    recipe, finished = step.folder / RECIPE_FILE, step.folder / FINISHED_FILE
    if recipe.exists():
        before, now = (_flat(yaml.safe_load(text)) for text in (recipe.read_text(encoding="utf-8"), step.written))
        different = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        if different:
            named = ", ".join(different[:_MOST_NAMED]) + (", ..." if len(different) > _MOST_NAMED else "")
            raise ValueError(
                f"training.output_dir: {step.folder} was trained by another recipe, which differs in {named}. Give "
                "the recipe that it was trained by, or another training.output_dir to begin anew."
            )
    if finished.exists():
        noted: dict[str, Any] = json.loads(finished.read_text(encoding="utf-8"))
        return noted
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(step.written, encoding="utf-8")
    return None


def _flat(values: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(values, Mapping) or not values:
        return {name: values}
    parts = [_flat(value, f"{name}.{key}" if name else str(key)) for key, value in values.items()]
    return {key: value for part in parts for key, value in part.items()}
