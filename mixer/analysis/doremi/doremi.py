"""Mixing weights from two small runs: a reference model, and a proxy that is compared with it.

DoReMi (Xie et al., arXiv 2305.10429, section 2) trains a reference model on a plain mixture (step 1), then a proxy
whose mixture follows by how much it loses more than the reference (step 2), and takes the average of the proxy's
weights over its run for the mixture of the run that counts (step 3).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixer.analysis.doremi.doremi_steps import Step, finish
from mixer.policies import DoReMi, Policy, Wrapper, as_policy
from mixer.policies.base import Unit, weights_array
from mixer.trainer.trainer import MixingTrainer

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
