"""The weights that a run ends with: their mean over its end, and a point on the way back to where it began."""

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixer.loading.loaded_step import StepBatch
from mixer.trainer.method import Method, RunContext
from mixer.utils.errors import InvalidValueError
from mixer.utils.ranges import check_count, check_range
from tasks.methods.shared import flat_weights, load_tensors, save_tensors, set_weights, trainable
from tasks.score import mean_loss

_logger = logging.getLogger(__name__)


class FinalWeights(Method):
    """Chooses the weights that a run ends with, by the objective and its bounds on development rows.

    Candidates are `θ_0 + λ (θ - θ_0)`, with `θ_0` the weights before the run (Wortsman et al. 2021, "Robust fine-tuning
    of zero-shot models" (WiSE-FT), arXiv:2109.01903, equation 1), and `θ` those of the last step or, from `mean_from`
    of the run on, their mean (Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima and Better
    Generalization", arXiv:1803.05407, algorithm 1). Of those whose losses keep the objective's bounds, relative to that
    at `θ_0`, the one with the best objective is taken; if none does, the one that exceeds them least. The model has
    these weights when `train` returns; checkpoints have those of their step. `mixer card` says which were taken.

    Only trained weights are changed. Those of adapters are interpolated each matrix for itself. It keeps two copies of
    them on the CPU, and in checkpoints. For losses only: the metric of an objective is not computed.

    Args:
        mean_from: Share of the run after which weights are averaged, such as 0.8; `None` for no mean.
        shares: The `λ` to choose from, above 0 up to 1; `[1.0]` for no interpolation.
        interval_steps: Steps between the weights that are averaged.

    Raises:
        ValueError: If a value is outside its range; when the trainer is made, without an objective that has development
            rows.

    Example:
        >>> trainer = MixingTrainer(  # doctest: +SKIP
        ...     model, args, train_dataset={"new": new}, eval_dataset={"new": held_out, "old": prompts},
        ...     objective=Objective(["new"], bounds={"old": 1.02}, development_share=0.5),
        ...     methods=[FinalWeights(mean_from=0.8)],
        ... )
    """

    needs = frozenset({"whole weights"})

    def __init__(
        self,
        mean_from: float | None = None,
        shares: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        interval_steps: int = 1,
    ):
        if mean_from is not None:
            check_range("mean_from", mean_from, 0.0, 1.0, "0.8 averages over the last fifth")
        check_count("interval_steps", interval_steps, 1, "1 averages over all steps")
        if not shares:
            raise InvalidValueError.about("shares", "must have a share or more, such as [1.0], got none.")
        for share in shares:
            check_range("shares", share, 1e-6, 1.0, "1 is the trained model")
        self.mean_from, self.shares, self.interval_steps = mean_from, sorted(shares), interval_steps

    def attach(self, run: RunContext) -> None:
        """Finds the development rows; see `Method.attach`."""
        self._run, self._num_averaged = run, 0
        self._before: Tensor | None = None
        self._mean: Tensor | None = None
        splits = run.passes.plan.target_splits
        if splits is None or not splits.development:
            text = "must have development rows for FinalWeights: Objective(TARGETS, bounds=..., development_share=0.5)."
            raise InvalidValueError.about("objective", text)
        self._objective, self._rows = splits.objective, splits.development

    def prepare(self, model: nn.Module) -> None:
        """Keeps the weights before the run, unless a checkpoint has them; see `Method.prepare`."""
        if self._before is None:
            self._before = flat_weights(self._model)

    @property
    def _model(self) -> nn.Module:
        return self._run.passes.model

    def close(self, batch: StepBatch) -> None:
        """Adds the weights to the mean; see `Method.close`."""
        clock = self._run.passes.run.mixing.clock
        if self.mean_from is None or clock.progress <= self.mean_from or clock.step % self.interval_steps:
            return
        self._num_averaged += 1
        now = flat_weights(self._model)
        self._mean = now if self._mean is None else self._mean.lerp_(now, 1.0 / self._num_averaged)

    def end_training(self) -> None:
        """Sets the weights that are best on the development rows; see `Method.end_training`."""
        assert self._before is not None, "a run has begun before it ends"  # noqa: S101
        ends = {"last step": flat_weights(self._model)}
        if self._mean is not None:
            ends[f"mean of {self._num_averaged} steps"] = self._mean
        first = self._losses(self._before, self._before, 0.0)
        losses = {
            (name, share): self._losses(self._before, ends[name], share)
            for name, share in itertools.product(ends, self.shares)
        }
        chosen = min(losses, key=lambda one: self._rank(losses[one], first))
        if not _is_finite(losses[chosen]):
            chosen = ("last step", self.shares[-1])
        set_weights(self._model, torch.lerp(self._before, ends[chosen[0]], chosen[1]))
        self._tell(chosen, losses[chosen], first)

    def _losses(self, before: Tensor, after: Tensor, share: float) -> dict[str, float]:
        """Computes the losses on development rows at a point between two weights."""
        set_weights(self._model, torch.lerp(before, after, share))
        trainer: Any = self._run.passes.trainer
        return {name: mean_loss(trainer, rows, model=self._model) for name, rows in self._rows.items()}

    def _rank(self, losses: Mapping[str, float], first: Mapping[str, float]) -> tuple[float, float]:
        """Orders candidates: by what they exceed the bounds by, then by the objective; last those without losses."""
        if not _is_finite(losses):
            return math.inf, math.inf
        return self._excess(losses, first), self._objective.value(losses)

    def _excess(self, losses: Mapping[str, float], first: Mapping[str, float]) -> float:
        bounds = self._objective.bounds
        return max((max(losses[name] / first[name] - bounds[name], 0.0) for name in bounds), default=0.0)

    def _tell(self, chosen: tuple[str, float], losses: Mapping[str, float], first: Mapping[str, float]) -> None:
        name, share = chosen
        words = f"{name}, {share:g} of the way from the weights before the run"
        if not _is_finite(losses):
            words += (
                "; every candidate has a loss that is not finite: the run diverged, train with a lower learning rate"
            )
        elif (excess := self._excess(losses, first)) > 0.0:
            words += f"; no candidate keeps the bounds, which it exceeds by {100.0 * excess:.1f} % of the first loss"
        if self._run.rank == 0:
            _logger.warning("Final weights: %s.", words)
        known = {one: loss for one, loss in losses.items() if math.isfinite(loss)}  # JSON has no other numbers
        content = {"in_words": words, "end": name, "share": share, "development_losses": known}
        self._run.passes.run.ledger.note("final_weights", {**content, "losses_before": dict(first)})

    def save(self, folder: Path) -> None:
        """Writes the weights before the run and their mean; see `Method.save`."""
        if self._before is not None:
            mean = {} if self._mean is None else {str(self._num_averaged): self._mean}
            save_tensors(folder, before={"": self._before}, mean=mean)

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Reads them; see `Method.load`."""
        if (state := load_tensors(folder, "cpu")) is None:
            return
        before, size = state["before"][""], sum(own.numel() for own in trainable(self._model).values())
        if len(before) != size:
            text = f"must train the same parameters as before, not {len(before)} and {size}."
            raise InvalidValueError.about("model", text)
        self._before = before
        for number, mean in state.get("mean", {}).items():
            self._num_averaged, self._mean = int(number), mean


def _is_finite(losses: Mapping[str, float]) -> bool:
    return all(map(math.isfinite, losses.values()))
