"""The targets of an objective: development rows, apart from test rows."""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from transformers import Trainer
from transformers.utils import logging

from mixer.loading.collate import batch_mapping
from mixer.loading.loaded_step import MicroBatch
from mixer.loading.preprocessing import preprocessed
from mixer.measurements import required
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.mixture.cursors import ShuffledOrder
from mixer.mixture.stream import Stream, is_iterable, selected
from mixer.models.inputs import TASK
from mixer.policies.contract import Policy
from mixer.policies.objective import Objective
from mixer.run.hf_compat import collator_removing_columns
from mixer.run.loading import data_seed
from mixer.run.plan import TargetSplits
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.random_state import seeded
from mixer.utils.text import first_of, safe_names

_SPLIT_SEED = 0  # the same rows judge in all runs, whatever their seeds
_DEVELOPMENT_SHARE = 0.25
logger = logging.get_logger(__name__)


def split_targets(trainer: Trainer, objective: Objective | None, policy: Policy) -> TargetSplits | None:
    """Finds the development rows, and takes them out of the trainer's evaluation sets unless they are given apart.

    Args:
        trainer: The trainer; its `eval_dataset` keeps the test rows.
        objective: The objective, or `None`.
        policy: The policy, which may read no target: then no rows are set aside, unless the objective asks for a share.

    Raises:
        ValueError: If names do not fit, or a set has too few rows; with the names there are.
    """
    if objective is None:
        return None
    sets: Any = trainer.eval_dataset
    if not isinstance(sets, dict):
        has = "is missing" if sets is None else f"is a {type(sets).__name__}"
        raise wrong_value(
            "objective", f": its targets are evaluation sets by name, but eval_dataset {has}: pass a dict."
        )
    objective = objective.of_sets(list(sets))
    rows: dict[str, Any] = dict(safe_names(objective.development_sets, "development_sets"))
    _check_own_rows(rows, objective)
    test, is_followed = dict(sets), "objective" in required(policy.needs)
    for name, own in rows.items():
        _check_rows(name, own)
    share = objective.development_share
    if share is None:
        share = _DEVELOPMENT_SHARE if is_followed else 0.0
    if is_followed or share:
        for name in (name for name in objective.names if name not in rows):
            rows[name], test[name] = _split(sets[name], share, name)
    trainer.eval_dataset = test
    num_development = {name: len(rows[name]) for name, own in test.items() if own is not sets[name]}
    if num_development and trainer.is_world_process_zero():
        logger.warning("objective: %s.", _in_words(num_development, test))
    evaluated = {name: test[name] for name in objective.names}
    have_length = all(isinstance(own, Sized) and len(own) for own in evaluated.values())
    followed = rows if is_followed else {}
    return TargetSplits(objective, followed, num_development, evaluated if have_length else {}, rows)


def _in_words(num_development: Mapping[str, int], test: Mapping[str, Any]) -> str:
    parts = [
        f"{number} of {number + len(test[name])} rows of {name} are development rows, {len(test[name])} are evaluated"
        for name, number in num_development.items()
    ]
    return "; ".join(first_of(parts))


def _check_own_rows(rows: Mapping[str, Any], objective: Objective) -> None:
    unknown = [name for name in rows if name not in objective.names]
    if unknown:
        raise wrong_value(
            "objective.development_sets", f"must be targets, {list(objective.names)}; {unknown} are none."
        )


def _check_rows(name: str, rows: Any) -> None:
    kind = type(rows).__name__
    if isinstance(rows, str | bytes) or not hasattr(rows, "__getitem__") or not isinstance(rows, Sized):
        found = f"{rows!r:.100}" if isinstance(rows, str | bytes) else f"a {kind} without length and places"
        raise wrong_value(
            "development_sets", f"[{name!r}] must be a data set with development rows, got {found}.", stream=name
        )
    if not len(rows):
        raise wrong_value(
            "development_sets", f"[{name!r}] must have development rows, got a {kind} with none.", stream=name
        )


def _split(dataset: Any, share: float, name: str) -> tuple[Any, Any]:
    """Splits an evaluation set into development rows and test rows."""
    hint = f"Pass Objective(development_sets={{{name!r}: dataset}}) with own rows."
    if not isinstance(dataset, Sized) or is_iterable(dataset):
        text = f"[{name!r}] has no length, so no part of it can be set aside as development rows. {hint}"
        raise wrong_value("eval_dataset", text, stream=name)
    num_development = round(share * len(dataset))
    if not 0 < num_development < len(dataset):
        raise InvalidValueError(
            f"eval_dataset[{name!r}]: development_share={share} sets {num_development} of its {len(dataset)} "
            f"row{'s' * (len(dataset) != 1)} aside as development rows; those and the test rows need one or more each."
            f" {hint}",
            option="development_share",
        )
    order = ShuffledOrder(Stream(name, dataset), _SPLIT_SEED).references(range(len(dataset)))
    return tuple(selected(dataset, np.sort(part)) for part in np.split(order, [num_development]))


class TargetRows:
    """Draws and collates rows of a target, treated like the stream of its name.

    Args:
        name: Name of the target.
        rows: Its data set.
        passes: Run the model outside of training.

    Raises:
        ValueError: If the streams have losses or heads of their own and the target is named like none of them.
    """

    def __init__(self, name: str, rows: Any, passes: AuxiliaryPasses):
        trainer, plan = passes.trainer, passes.plan
        names, seed = [stream.name for stream in plan.streams], data_seed(trainer.args)
        if name not in names and plan.have_losses:
            raise wrong_value(
                "objective",
                f": its target {name!r} must be named like the stream that it is evaluated with, of {names}.",
            )
        stream = plan.streams[names.index(name)] if name in names else None
        self._stream_id, self._seed = 0 if stream is None else names.index(name), seed
        self._task = plan.tasks[self._stream_id]
        collator = None if stream is None else stream.data_collator
        self._collator = collator_removing_columns(trainer, collator or trainer.data_collator, "evaluation")
        self.num_rows = len(rows)
        self._rows = preprocessed(rows, None if stream is None else stream.preprocess)
        self._cursor = ShuffledOrder(Stream(f"target {name}", rows), seed)

    def micro_batches(self, positions: Int64Array, step: int, passes: AuxiliaryPasses) -> list[MicroBatch]:
        """Reads and collates rows, in micro-batches as large as those of steps.

        Args:
            positions: int64 `[num_rows]`: positions in the target's shuffled order, pass after pass.
            step: The step, which seeds random transforms and collators.
            passes: Run the model.
        """
        if not len(positions):
            return []
        with seeded(self._seed, step, int(positions[0])):
            samples = [self._rows[index] for index in self._cursor.references(positions).tolist()]
            return [self._collated(samples[part]) for part in passes.split(samples)]

    def _collated(self, samples: list[Any]) -> MicroBatch:
        inputs = self._collator(samples)
        if self._task is not None:
            inputs = {**batch_mapping(inputs), TASK: self._task}
        return MicroBatch(inputs, np.full(len(samples), self._stream_id), False)

    def loss_sums(self, passes: AuxiliaryPasses, rank: int, world_size: int, most: int) -> FloatArray:
        """Returns a rank's sums over rows, `[5]`: of `d, n, d², dn, n²` for a row's summed loss `d` and its items `n`.

        A micro-batch counts as a row where rows cannot be separated. All ranks have to call it.

        Args:
            passes: Run the model.
            rank: The rank.
            world_size: Number of ranks.
            most: Rows over all ranks, the first of the target's order: the same whenever this is called.
        """
        positions = np.arange(rank, min(most, self.num_rows), world_size, dtype=np.int64)
        rows = positions if len(positions) else np.zeros(1, dtype=np.int64)  # to keep in step with the others
        least = min(passes.num_parts, -(-len(rows) // 2))  # of two rows or more, if they are each other's negatives
        parts = np.array_split(rows, max(-(-len(rows) // passes.cap.max_samples), least))
        micros = passes.on_all_ranks(lambda: [micro for part in parts for micro in self.micro_batches(part, 0, passes)])
        if not len(positions):
            micros = [replace(micro, is_padding=True) for micro in micros]
        return passes.together(partial(_loss_sums, passes, passes.evened(micros)))


def _loss_sums(passes: AuxiliaryPasses, micros: Sequence[MicroBatch]) -> FloatArray:
    sums = np.zeros(5)
    for micro in micros:
        n = np.zeros(1) if micro.is_padding else passes.items(micro).double().cpu().numpy()
        total = float(n.sum())
        if not total and not passes.is_sharded:
            continue
        mean, rows = passes.mean_and_row_losses(micro)
        if total:
            loss = total * float(mean)
            d = np.array([loss]) if rows is None else rows.detach().double().cpu().numpy()
            n = np.array([total]) if rows is None else n
            sums += [loss, total, d @ d, d @ n, n @ n]
    return sums
