"""The best weights of each evaluation set, beside those that are the best on the whole."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import Trainer

from mixer.policies.objective import Objective
from mixer.utils.files import folder_name, make_folder, write_json

_FOLDER, _NOTE = "best", "best.json"


def check_best_of_each(trainer: Trainer) -> None:
    """Refuses a run that never evaluates sets by name.

    Args:
        trainer: The trainer.

    Raises:
        ValueError: If evaluations are off, or the evaluation data are not a dict.
    """
    if trainer.args.eval_strategy == "no" or not isinstance(trainer.eval_dataset, dict):
        found = "eval_strategy='no'" if isinstance(trainer.eval_dataset, dict) else "eval_dataset is not a dict"
        raise ValueError(
            f"save_best_of_each=True saves weights when an evaluation set is at its best, but {found}. Pass "
            f"eval_dataset as a dict by name, and set eval_strategy='steps' or 'epoch'."
        )


def folder_of(output_dir: str | Path, name: str) -> Path:
    """Returns the folder of the best weights of an evaluation set, `output_dir/best/NAME`.

    Args:
        output_dir: The run's folder.
        name: The set.
    """
    return Path(output_dir) / _FOLDER / folder_name(name)


def save_best_of_each(
    trainer: Any, objective: Objective | None, found: Mapping[str, Mapping[str, float]], prefix: str
) -> None:
    """Saves the weights for each evaluation set that is better than ever before; all ranks have to call it.

    What was best is read from the trainer's log, which checkpoints hold.

    Args:
        trainer: The trainer.
        objective: The objective, whose metric decides; `None` for the loss.
        found: Results of an evaluation by set and metric, the loss included.
        prefix: Prefix of its names in the log.
    """
    metric = "loss" if objective is None else objective.metric
    sign = -1.0 if objective is not None and objective.greater_is_better else 1.0
    step = trainer.state.global_step
    for name, values in found.items():
        value, key = values.get(metric, math.nan), f"{prefix}_{name}_{metric}"
        before = [entry[key] for entry in trainer.state.log_history if key in entry and entry["step"] < step]
        if math.isnan(value) or any(sign * value >= sign * one for one in before):
            continue
        folder = folder_of(trainer.args.output_dir, name)
        if trainer.args.should_save:
            for place in (folder.parent, folder):
                make_folder(place)
        trainer.save_model(str(folder))
        if trainer.is_world_process_zero():
            write_json(folder / _NOTE, {"set": name, "metric": metric, "value": value, "step": step})
