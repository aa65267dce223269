"""Hyperparameter search: every trial is a run of its own; its mixture begins anew, its ledger stands in its folder."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list

from mixer.ledger.ledger import Ledger
from mixer.trainer.methods import MethodsMixin
from mixer.utils.files import folder_name

_FOLDER = "search-start"


@dataclass(frozen=True)
class _Start:
    """What a search begins with, and so does every trial of it.

    Args:
        weights: Weights set by hand, or `None`.
        batch_size: The batch size set by hand, or `None`.
        folder: Where methods have written what they remember.
    """

    weights: Mapping[str, float] | None
    batch_size: int | None
    folder: Path


class _PrunedElsewhere(Exception):  # noqa: N818
    """The main rank has ended the trial."""


class SearchingMixin(MethodsMixin):
    """A Trainer whose trials know nothing of each other."""

    _start: _Start | None = None  # of the present search

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], float] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Searches for the best arguments; see `Trainer.hyperparameter_search`.

        Each trial writes its ledger into its own folder, `OUTPUT_DIR/run-N/ledger`.

        Args:
            hp_space: As for the Trainer.
            compute_objective: As for the Trainer. Without it, over a dict of evaluation sets it is their mean loss,
                `eval_loss`, where the Trainer would add up the losses of all sets. Has to be given where
                `compute_metrics` is one function for all of them.
            *args: As for the Trainer.
            **kwargs: As for the Trainer.

        Returns:
            What `Trainer.hyperparameter_search` gives.

        Raises:
            ValueError: If a trial has arguments that would be refused at construction, several were to run at once, or
                nobody says which of several metrics counts.
        """
        _check_jobs(kwargs.get("n_jobs", 1))
        if compute_objective is None and isinstance(self.eval_dataset, dict):
            compute_objective = self._mean_loss_alone(list(self.eval_dataset))
        with self._searching():
            return super().hyperparameter_search(hp_space, compute_objective, *args, **kwargs)

    def _mean_loss_alone(self, sets: list[str]) -> Callable[[Mapping[str, float]], float]:
        if self.compute_metrics is not None:
            raise ValueError(
                "compute_objective is missing: the Trainer's own would add up all losses and metrics of the evaluation "
                f"sets {sets}. Say which one counts, as in compute_objective=lambda metrics: "
                'metrics["eval_loss"], their mean.'
            )
        return _mean_loss

    @contextlib.contextmanager
    def _searching(self) -> Iterator[None]:
        """Keeps what every trial begins with, for as long as a search goes on."""
        if self._mixing is None:
            yield
            return
        folder = Path(str(self.args.output_dir)) / _FOLDER
        self._start = _Start(self._mixing.manual_weights, self._mixing.manual_batch_size, folder)
        if self.args.should_save:
            shutil.rmtree(folder, ignore_errors=True)
            for method in self._methods:
                method.save(folder / folder_name(method.name))
        self.accelerator.wait_for_everyone()
        try:
            yield
        finally:
            self._start = None
            if self.args.should_save:
                shutil.rmtree(folder, ignore_errors=True)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains; on the other ranks a trial that was pruned ends without an error, as their next one is waited for."""
        try:
            return super().train(*args, **kwargs)
        except _PrunedElsewhere:
            return None

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Prunes a trial on all ranks: the main one alone decides, and would leave the others waiting."""
        if trial is None or self._start is None or self.args.world_size == 1:
            super()._report_to_hp_search(trial, step, metrics)
            return
        pruned: Exception | None = None
        try:
            super()._report_to_hp_search(trial, step, metrics)
        except Exception as error:  # it goes on below, once the others know
            pruned = error
        told = [pruned is not None]
        broadcast_object_list(told)
        if pruned is not None:
            raise pruned
        if told[0]:
            raise _PrunedElsewhere

    def _hp_search_setup(self, trial: Any) -> None:
        super()._hp_search_setup(trial)
        if self._mixing is None:
            return
        self._keep_ledger_in(Path(str(self._get_output_dir(trial))) / "ledger")
        if trial is not None and self._start is not None:
            self._check_options()
            self._begin_anew(self._start)

    def _keep_ledger_in(self, folder: Path) -> None:
        if folder != self.ledger.folder:
            self.ledger.finish()
            self.ledger = Ledger(folder, is_writer=self.is_world_process_zero())

    def _begin_anew(self, start: _Start) -> None:
        """Puts everything back that a run leaves behind and the next one does not begin anew by itself."""
        self.mixing.set_weights(start.weights)
        self.mixing.set_batch_size(start.batch_size)
        num_own = sum(stream.is_memory for stream in self.streams)
        self._attach_methods(self._methods[num_own:])
        for method in self._methods:
            method.load(start.folder / folder_name(method.name), self._allow_inexact)

    def _check_options(self) -> None:
        """Refuses options that do not fit together, those of a trial too."""
        raise NotImplementedError


def _mean_loss(metrics: Mapping[str, float]) -> float:
    return metrics["eval_loss"]


def _check_jobs(num_jobs: int) -> None:
    if num_jobs != 1:
        raise ValueError(
            f"n_jobs={num_jobs} would have threads run trials at once, in this one trainer. Leave it out; to search in "
            "parallel, start several processes with the same storage and study_name."
        )
