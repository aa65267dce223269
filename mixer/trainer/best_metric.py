"""The option `metric_for_best_model` over several evaluation sets: one that no evaluation gives is refused early."""

import difflib
from typing import Any

from transformers import Trainer

_PREFIX, _SUFFIX = "eval_", "_loss"


def check_best_metric(trainer: Trainer) -> None:
    """Refuses a loss that no evaluation will give, before anything is trained.

    Other metrics may come from `compute_metrics`: a wrong one of those ends the run at its first evaluation.

    Args:
        trainer: The trainer, after its own construction.

    Raises:
        ValueError: With the losses that there will be.
    """
    args = trainer.args
    asked = args.metric_for_best_model
    if asked is None or args.eval_strategy == "no" or trainer.eval_dataset is None or _evaluates_itself(trainer):
        return
    key = asked if asked.startswith(_PREFIX) else _PREFIX + asked
    known = _losses(trainer.eval_dataset)
    if key in known or not key.endswith(_SUFFIX) or _may_be_computed(key, trainer):
        return
    near = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"metric_for_best_model={asked!r} names the loss of no evaluation set; the losses are {known}.{hint} Name one "
        "of them, or give eval_dataset as a dict that has the set."
    )


def _losses(eval_dataset: Any) -> list[str]:
    """Lists the losses that an evaluation gives."""
    if not isinstance(eval_dataset, dict):
        return [_PREFIX + "loss"]
    return [_PREFIX + "loss", _PREFIX + "worst_loss", *(f"{_PREFIX}{name}{_SUFFIX}" for name in eval_dataset)]


def _may_be_computed(key: str, trainer: Trainer) -> bool:
    """Whether `compute_metrics` may give a loss of that name, such as `eval_math_aux_loss`."""
    if trainer.compute_metrics is None and getattr(trainer, "_metrics_by_set", None) is None:
        return False
    sets = trainer.eval_dataset
    return not isinstance(sets, dict) or any(key.startswith(f"{_PREFIX}{name}_") for name in sets)


def _evaluates_itself(trainer: Trainer) -> bool:
    """Whether a class of the user's has its own way to evaluate, which may give other metrics."""
    own = [kind for kind in type(trainer).__mro__ if "evaluate" in vars(kind)]
    return any(kind.__module__.split(".")[0] not in ("mixer", "transformers") for kind in own)
