"""Hyperparameter search: every trial is a run of its own with a new mixture and a ledger in its own folder."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list

from mixer.ledger.ledger import Ledger
from mixer.run.hf_compat import output_folder, present_trial
from mixer.run.state import Basis
from mixer.trainer.methods import MethodList
from mixer.utils.errors import wrong_value

_FOLDER = "search-start"


class PrunedElsewhere(Exception):  # noqa: N818
    """The main rank has pruned the trial."""


class Search:
    """Makes the trials of a hyperparameter search independent of each other.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        methods: Its methods.
        check_options: Refuses options that do not go together.
    """

    def __init__(self, basis: Basis, methods: MethodList, check_options: Callable[[], None]):
        self._trainer, plan, self._run, _ = basis
        self._methods, self._check_options = methods, check_options
        self._ledger_interval_steps = plan.config.ledger_interval_steps
        # The common start of all trials: weights and batch size set by hand, and the methods' saved memories.
        self._start: tuple[Mapping[str, float] | None, int | None, Path] | None = None

    def run(
        self,
        search: Callable[..., Any],
        hp_space: Callable[[Any], dict[str, Any]] | None,
        compute_objective: Callable[[dict[str, float]], float] | None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Searches for the best arguments; see `MixingMixin.hyperparameter_search`.

        Args:
            search: The Trainer's own search.
            hp_space: As for the Trainer.
            compute_objective: As for the Trainer; `None` chooses the mean loss for a dict of evaluation sets.
            *args: As for the Trainer.
            **kwargs: As for the Trainer.

        Raises:
            ValueError: If `n_jobs` is not 1, or `compute_objective` is missing.
        """
        if (num_jobs := kwargs.get("n_jobs", 1)) != 1:
            text = f"={num_jobs} would run trials at once in threads of this one trainer. Leave it out; to search in "
            raise wrong_value(
                "n_jobs", f"{text}parallel, start several processes with the same storage and study_name."
            )
        sets = self._trainer.eval_dataset
        if compute_objective is None and isinstance(sets, dict):
            if self._trainer.compute_metrics is not None:
                text = f"is missing: the Trainer's adds up all metrics of the sets {list(sets)}. Choose one, such as "
                raise wrong_value("compute_objective", f"{text}lambda metrics: metrics['eval_loss'], their mean.")
            compute_objective = itemgetter("eval_loss")
        with self._searching():
            return search(hp_space, compute_objective, *args, **kwargs)

    @contextlib.contextmanager
    def _searching(self) -> Iterator[None]:
        """Keeps the common start of all trials during a search."""
        args, mixing = self._trainer.args, self._run.mixing
        folder = Path(str(args.output_dir)) / _FOLDER
        self._start = mixing.manual_weights, mixing.manual_batch_size, folder
        if args.should_save:
            shutil.rmtree(folder, ignore_errors=True)
            for method in self._methods:
                method.save(self._methods.folder_of(folder, method))
        self._trainer.accelerator.wait_for_everyone()
        try:
            yield
        finally:
            self._start = None
            if args.should_save:
                shutil.rmtree(folder, ignore_errors=True)

    def report(self, report: Callable[..., None], trial: Any, step: int, metrics: dict[str, float]) -> None:
        """Prunes a trial on all ranks: the Trainer prunes on the main rank only and leaves the others waiting.

        Args:
            report: The Trainer's own report.
            trial: The trial.
            step: The step.
            metrics: The metrics of an evaluation.
        """
        if trial is None or self._start is None or self._trainer.args.world_size == 1:
            report(trial, step, metrics)
            return
        pruned: Exception | None = None
        try:
            report(trial, step, metrics)
        except Exception as error:  # raised below, once the others know
            pruned = error
        is_pruned = [pruned is not None]
        broadcast_object_list(is_pruned)
        if pruned is not None:
            raise pruned
        if is_pruned[0]:
            raise PrunedElsewhere

    def begin_run(self) -> None:
        """Begins a run: a trial has a ledger of its own, and the common start."""
        trial, run = present_trial(self._trainer), self._run
        folder = output_folder(self._trainer, trial) / "ledger"
        if folder != run.ledger.folder:
            run.ledger.finish()
            is_writer = self._trainer.is_world_process_zero()
            run.ledger = Ledger(folder, is_writer, self._ledger_interval_steps)
        if trial is not None and self._start is not None:
            self._check_options()
            # Reset the state that a run leaves behind and the next one does not reset itself.
            weights, batch_size, start = self._start
            run.mixing.set_weights(weights)
            run.mixing.set_batch_size(batch_size)
            self._methods.attach()
            self._methods.load(start)
