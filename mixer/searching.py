"""Hyperparameter search: every trial is a run of its own; its mixture begins anew, its ledger stands in its folder."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mixer.assembly import MixtureOptions
from mixer.ledger import Ledger
from mixer.methods import MethodsMixin

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


class SearchingMixin(MethodsMixin):
    """A Trainer whose trials know nothing of each other."""

    _mixture: MixtureOptions
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
            compute_objective: As for the Trainer. Without it and metrics for all sets, over a dict of evaluation sets
                it is their mean loss, `eval_loss`, where the Trainer would add up the losses of all sets.
            *args: As for the Trainer.
            **kwargs: As for the Trainer.

        Returns:
            What `Trainer.hyperparameter_search` gives.

        Raises:
            ValueError: If a trial has arguments that would be refused at construction.
        """
        if compute_objective is None and self.compute_metrics is None and isinstance(self.eval_dataset, dict):
            compute_objective = _mean_loss
        with self._searching():
            return super().hyperparameter_search(hp_space, compute_objective, *args, **kwargs)

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
                method.save(folder / method.name)
        self.accelerator.wait_for_everyone()
        try:
            yield
        finally:
            self._start = None
            if self.args.should_save:
                shutil.rmtree(folder, ignore_errors=True)

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
        self._mixture = replace(self._mixture, seed=self._data_seed)
        self.mixing.set_weights(start.weights)
        self.mixing.set_batch_size(start.batch_size)
        num_own = sum(stream.is_memory for stream in self.streams)
        self._attach_methods(self._methods[num_own:], self._data_seed)
        for method in self._methods:
            method.load(start.folder / method.name, self._allow_inexact)

    @property
    def _data_seed(self) -> int:
        raise NotImplementedError

    def _check_options(self) -> None:
        """Refuses options that do not fit together, those of a trial too."""
        raise NotImplementedError


def _mean_loss(metrics: Mapping[str, float]) -> float:
    return metrics["eval_loss"]
