"""Hyperparameter search: every trial is a run of its own with a new mixture and a ledger in its own folder."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list

from mixer.ledger.ledger import Ledger
from mixer.trainer.methods import MethodsMixin
from mixer.utils.files import folder_name

_FOLDER = "search-start"


class _PrunedElsewhere(Exception):  # noqa: N818
    """The main rank has pruned the trial."""


class SearchingMixin(MethodsMixin):
    """A Trainer whose trials are independent of each other."""

    # The common start of all trials of a search: weights and batch size set by hand, and the methods' saved memories.
    _start: tuple[Mapping[str, float] | None, int | None, Path] | None = None

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
            compute_objective: As for the Trainer. The default for a dict of evaluation sets is their mean loss,
                `eval_loss`; the Trainer's own would add up the losses of all sets. Required if `compute_metrics` is one
                function for all sets.
            *args: As for the Trainer.
            **kwargs: As for the Trainer.

        Raises:
            ValueError: If a trial's arguments would be refused at construction, if `n_jobs` is not 1, or if
                `compute_objective` is missing.
        """
        if (num_jobs := kwargs.get("n_jobs", 1)) != 1:
            raise ValueError(
                f"n_jobs={num_jobs} would run trials at once in threads of this one trainer. Leave it out; to search "
                f"in parallel, start several processes with the same storage and study_name."
            )
        if compute_objective is None and isinstance(self.eval_dataset, dict):
            if self.compute_metrics is not None:
                raise ValueError(
                    "compute_objective is missing: the Trainer's own would add up all losses and metrics of the "
                    f"evaluation sets {list(self.eval_dataset)}. Choose one, as in compute_objective=lambda metrics: "
                    'metrics["eval_loss"], their mean.'
                )
            compute_objective = itemgetter("eval_loss")
        with self._searching():
            return super().hyperparameter_search(hp_space, compute_objective, *args, **kwargs)

    @contextlib.contextmanager
    def _searching(self) -> Iterator[None]:
        """Keeps the common start of all trials during a search."""
        folder = Path(str(self.args.output_dir)) / _FOLDER
        self._start = self.mixing.manual_weights, self.mixing.manual_batch_size, folder
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
        """Trains; a trial that rank 0 has pruned ends without an error on the other ranks, which run the next one."""
        try:
            return super().train(*args, **kwargs)
        except _PrunedElsewhere:
            return None

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Prunes a trial on all ranks: the Trainer prunes on the main rank only and leaves the others waiting."""
        if trial is None or self._start is None or self.args.world_size == 1:
            super()._report_to_hp_search(trial, step, metrics)
            return
        pruned: Exception | None = None
        try:
            super()._report_to_hp_search(trial, step, metrics)
        except Exception as error:  # raised below, once the others know
            pruned = error
        is_pruned = [pruned is not None]
        broadcast_object_list(is_pruned)
        if pruned is not None:
            raise pruned
        if is_pruned[0]:
            raise _PrunedElsewhere

    def _begin_run(self) -> None:
        super()._begin_run()
        trial = self._trial
        ledger_folder = Path(str(self._get_output_dir(trial))) / "ledger"
        if ledger_folder != self.ledger.folder:
            self.ledger.finish()
            self.ledger = Ledger(ledger_folder, is_writer=self.is_world_process_zero())
        if trial is not None and self._start is not None:
            self._check_options()
            # Reset the state that a run leaves behind and the next one does not reset itself.
            weights, batch_size, folder = self._start
            self.mixing.set_weights(weights)
            self.mixing.set_batch_size(batch_size)
            self._attach_methods(self._methods[sum(stream.is_memory for stream in self.streams) :])
            for method in self._methods:
                method.load(folder / folder_name(method.name), self._allow_inexact)

    def _check_options(self) -> None:
        """Refuses incompatible options, including those of a trial."""
        raise NotImplementedError
