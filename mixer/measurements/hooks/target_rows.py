"""The targets of an objective: development rows, apart from test rows."""

import copy
from collections.abc import Mapping, Sequence, Sized
from typing import Any, NamedTuple

import numpy as np
from transformers import Trainer
from transformers.utils import logging

from mixer.loading.batching import Size
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
from mixer.utils.arrays import Int64Array
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

    Attributes:
        form: What it has in common with targets whose rows can be collated with its own.

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
        collator = (None if stream is None else stream.data_collator) or trainer.data_collator
        self.form = id(collator), self._task, self._stream_id if plan.have_losses else 0
        self._collator = collator_removing_columns(trainer, collator, "evaluation")
        self.num_rows = len(rows)
        self._rows = preprocessed(rows, None if stream is None else stream.preprocess)
        self._reads_batches = hasattr(type(self._rows), "__getitems__")
        self._cursor = ShuffledOrder(Stream(f"target {name}", rows), seed)

    def read(self, number: int, positions: Int64Array, step: int) -> "ReadRows":
        """Reads rows.

        Args:
            number: The number of the target.
            positions: int64 `[num_rows]`: positions in its shuffled order, pass after pass; at least one.
            step: The step, which seeds random transforms and collators.
        """
        seed, indices = (self._seed, step, int(positions[0])), self._cursor.references(positions).tolist()
        with seeded(*seed):
            samples = self._rows.__getitems__(indices) if self._reads_batches else [self._rows[i] for i in indices]
        return ReadRows(self, number, seed, samples)

    def collated(self, samples: list[Any], largest: int | None) -> list[MicroBatch]:
        """Collates samples, in halves if a micro-batch has more elements than the largest one is to have."""
        inputs = self._collator([copy.copy(sample) for sample in samples])  # some remove columns from their input
        if self._task is not None:
            inputs = {**batch_mapping(inputs), TASK: self._task}
        micro, half = MicroBatch(inputs, np.full(len(samples), self._stream_id), False), len(samples) // 2
        if largest is None or not half or Size.largest([micro]).elements <= largest:
            return [micro]
        return [*self.collated(samples[:half], largest), *self.collated(samples[half:], largest)]


class ReadRows(NamedTuple):
    """Rows of a target.

    Attributes:
        target: The target.
        number: Its number.
        seed: Seeds their collation.
        samples: The rows.
    """

    target: TargetRows
    number: int
    seed: tuple[int, int, int]
    samples: list[Any]


class CollatedRows(NamedTuple):
    """Rows of targets in a micro-batch.

    Attributes:
        micro: The micro-batch.
        targets: int64 `[num_rows]`: the number of each row's target.
    """

    micro: MicroBatch
    targets: Int64Array

    @property
    def is_mixed(self) -> bool:
        """Whether the rows are of several targets."""
        return bool((self.targets != self.targets[0]).any())

    def items(self, passes: AuxiliaryPasses, num_targets: int) -> Int64Array:
        """Counts the loss terms of each target: int64 `[num_targets]`; 0 for padding."""
        per_row = passes.items(self.micro).cpu().numpy()
        if self.micro.is_padding:
            return np.zeros(num_targets, dtype=np.int64)
        if len(per_row) != len(self.targets):  # packed rows: of several targets they cannot be told apart
            return np.bincount(self.targets[:1], [per_row.sum()], num_targets).astype(np.int64)
        return np.bincount(self.targets, per_row, num_targets).astype(np.int64)


def collated(
    rows: Sequence[ReadRows], passes: AuxiliaryPasses, joins: bool, largest: int | None = None
) -> list[CollatedRows]:
    """Collates rows of targets, in micro-batches as large as those of steps.

    Args:
        rows: The rows, of a target or a part of its own each.
        passes: Run the model.
        joins: Whether those that are treated alike share micro-batches.
        largest: Most elements of a micro-batch of several rows; `None` for any number.
    """
    groups: dict[Any, list[ReadRows]] = {}
    for place, own in enumerate(rows):
        groups.setdefault((own.target.form, _columns(own.samples)) if joins else place, []).append(own)
    found: list[CollatedRows] = []
    for group in groups.values():
        try:
            found += _together(group, passes, largest)
        except Exception:  # of rows with unlike shapes, say; those of one target raise it again
            for own in group:
                found += _together([own], passes, largest)
    return found


def _columns(samples: Sequence[Any]) -> Any:
    return frozenset(samples[0]) if isinstance(samples[0], Mapping) else type(samples[0])


def _together(group: Sequence[ReadRows], passes: AuxiliaryPasses, largest: int | None) -> list[CollatedRows]:
    samples = [sample for own in group for sample in own.samples]
    numbers = np.repeat([own.number for own in group], [len(own.samples) for own in group])
    found: list[CollatedRows] = []
    with seeded(*group[0].seed):
        for part in passes.split(samples):
            micros = group[0].target.collated(samples[part], largest)
            ends = np.cumsum([len(micro.stream_ids) for micro in micros])[:-1]
            found += map(CollatedRows, micros, np.split(numbers[part], ends))
    return found


def evened(rows: Sequence[CollatedRows], passes: AuxiliaryPasses) -> list[CollatedRows]:
    """Adds padding to a rank's micro-batches where all ranks have to run as many; see `AuxiliaryPasses.evened`."""
    micros = passes.evened([own.micro for own in rows])
    return [*rows, *(rows[-1]._replace(micro=micro) for micro in micros[len(rows) :])]
