"""Tasks of lm-eval (EleutherAI's evaluation harness) as scores of a continual run."""

import copy
import importlib.util
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from mixer import MixingTrainer
from mixer.models.side_state import Snapshot, evaluating
from mixer.utils.errors import InvalidValueError
from mixer.utils.quiet import without_warnings
from mixer.utils.ranges import check_count
from tasks.score import Score
from tasks.task import Task


def lm_eval_score(
    tasks: str | Mapping[str, str],
    metric: str = "acc,none",
    include_path: str | Path | None = None,
    num_fewshot: int | None = None,
    limit: int | None = None,
    batch_size: int = 16,
    higher_is_better: bool = True,
) -> Score:
    """Makes a score of tasks of lm-eval: what its command would print for the present model.

    Every rank evaluates all samples.

    Args:
        tasks: The name of a task or group of lm-eval, or one for each task of the run, by its name.
        metric: What of its results is the score, as lm-eval names it: metric and filter.
        include_path: A folder with tasks of your own in YAML; `None` for those of lm-eval alone.
        num_fewshot: Examples before each question; `None` for as many as the task says.
        limit: Most questions of a task; `None` for all.
        batch_size: Questions per forward pass.
        higher_is_better: Whether a higher score is better.

    Raises:
        ImportError: If lm-eval is not installed.
        ValueError: If there is no such task or folder, or a number is less than 1.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ImportError("lm_eval_score needs lm-eval, which is not installed: pip install 'adaptive-mixer[lm-eval]'.")
    check_count("batch_size", batch_size, 1, "it is the number of questions")
    if limit is not None:
        check_count("limit", limit, 1, "it is the most questions of a task")
    names = [tasks] if isinstance(tasks, str) else [*tasks.values()]
    manager = _manager(names, None if include_path is None else Path(include_path))
    load = cache(lambda name: _load(manager, name, num_fewshot))

    def measure(trainer: MixingTrainer, task: Task) -> float:
        name = tasks if isinstance(tasks, str) else tasks[task.name]
        with _seeded(trainer.args.device):
            results = _evaluate(trainer, load(name), limit, batch_size)
        own = results.get(name, {})  # a tag has none of its own
        if metric not in own:
            found = [key for key in own if "," in key and "_stderr," not in key]
            raise InvalidValueError.about("metric", f"must be one of {found} for {name!r}, got {metric!r}.")
        return float(own[metric])

    called = metric.partition(",")[0]
    if isinstance(tasks, str):
        return Score(measure, f"{called} on {tasks}", higher_is_better, depends_on=lambda _: tasks)
    return Score(measure, called, higher_is_better, names=frozenset(tasks))


def _manager(names: list[str], include_path: Path | None) -> Any:
    """Returns what finds tasks; those of lm-eval itself, whose list takes seconds, only where they are asked for."""
    from lm_eval.tasks import TaskManager  # an optional package

    if include_path is not None and not include_path.is_dir():
        raise InvalidValueError.about("include_path", f"must be a folder of lm-eval tasks, got {str(include_path)!r}.")
    folder = None if include_path is None else str(include_path)
    manager = TaskManager(include_path=folder, include_defaults=False)
    if any(name not in manager.all_tasks for name in names):
        manager = TaskManager(include_path=folder)
    if unknown := [name for name in names if name not in manager.all_tasks]:
        raise InvalidValueError.about("tasks", f"must be of `lm_eval ls tasks`, got {unknown}.", found=unknown)
    return manager


def _load(manager: Any, name: str, num_fewshot: int | None) -> Any:
    """Loads a task with its data, and sets its number of examples as `simple_evaluate` of lm-eval does."""
    loaded = manager.load([name])
    for task in loaded["tasks"].values():
        own = task.get_config("num_fewshot")
        if own is None or (num_fewshot is not None and own != 0):
            task.set_config(key="num_fewshot", value=num_fewshot or 0)
    return loaded


@contextmanager
def _seeded(device: torch.device) -> Iterator[None]:
    """Seeds all generators as lm-eval does, and restores them."""
    from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED

    state = Snapshot(None, device)
    try:
        random.seed(DEFAULT_RANDOM_SEED)
        np.random.seed(DEFAULT_OTHER_SEED)  # noqa: NPY002
        torch.manual_seed(DEFAULT_OTHER_SEED)
        yield
    finally:
        state.restore()


def _evaluate(trainer: MixingTrainer, loaded: Any, limit: int | None, batch_size: int) -> Mapping[str, Any]:
    from lm_eval.defaults import DEFAULT_OTHER_SEED
    from lm_eval.evaluator import evaluate
    from lm_eval.models.huggingface import HFLM

    tokenizer = trainer.processing_class
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InvalidValueError.about("processing_class", "must be a tokenizer for lm_eval_score.")
    for task in loaded["tasks"].values():
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)  # anew each time: a sampler goes on drawing
    model: Any = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    with evaluating(model), trainer.accelerator.autocast():
        with without_warnings(is_quiet=True):  # they are for runs by the command of lm-eval
            reader = HFLM(pretrained=model, tokenizer=copy.deepcopy(tokenizer), batch_size=batch_size)
        found = evaluate(reader, loaded, limit=limit, bootstrap_iters=0, log_samples=False)
    results: Mapping[str, Any] = found["results"]
    return results
