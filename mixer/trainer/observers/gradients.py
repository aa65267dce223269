"""Per-stream gradients and gradient noise, measured when the policy or the schedule needs them."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers.utils import logging

from mixer.gradients.noise_scale import RankNoise, noise_of_ranks
from mixer.gradients.probe import GradientProbe
from mixer.gradients.update_norm import UpdateNorm
from mixer.ledger.recorder import StepResult
from mixer.loading.step import MicroBatch, StepBatch
from mixer.mixture.batch_size import BatchSize
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.schedules.base import GradientNoise
from mixer.trainer.observers.gradient_options import Probing, check_exact, exact_refusal, resolve_probing
from mixer.trainer.out_of_memory import RecoveryMixin
from mixer.utils.arrays import Int64Array

logger = logging.get_logger(__name__)


class RunProbe:
    """Measures the gradients in the steps of a run that are due.

    Args:
        options: Options of the probe.
        intervals: Steps that are a multiple of one of these are measured.
        variance: Whether the variance over samples is measured.
        names: Names of the streams.
        world_size: Number of ranks.
        seed: Seed of the projections.
    """

    def __init__(
        self,
        options: Probing,
        intervals: tuple[int, ...],
        variance: bool,
        names: Sequence[str],
        world_size: int,
        seed: int,
    ):
        self.options, self.intervals, self.variance = options, intervals, variance
        self._names, self._world_size, self.seed = tuple(names), world_size, seed
        self._told: set[str] = set()  # parameters that were named in a warning
        self._probes: dict[tuple[str, bool], GradientProbe] = {}
        self._present: GradientProbe | None = None
        self._homogeneous = options.homogeneous  # whether the present micro-batches contain one stream each
        self._seconds_before, self._draw = 0.0, 0
        self._has_warned = False

    def is_due(self, step: int) -> bool:
        """Whether a step, by its number from 1, is measured."""
        return any(step % interval == 0 for interval in self.intervals)

    def check(self, model: nn.Module) -> None:
        """Checks at construction that a model can be read at all.

        Raises:
            ValueError: If it cannot, or not with these options; with the reason.
        """
        homogeneous = self.options.homogeneous
        self._make(model, self._mode(2 if homogeneous else 1), homogeneous)

    def begin(self, step: int, model: nn.Module, num_micro_batches: int, is_packed: bool) -> None:
        """Begins a measurement and discards an unfinished one.

        Args:
            step: Number of the step, from 1.
            model: The model as it is trained.
            num_micro_batches: Micro-batches of the step on each rank.
            is_packed: Whether rows are not samples on some rank; micro-batches then contain one stream each.

        Raises:
            ValueError: If the step cannot be measured with these options.
        """
        self.cancel()
        self._homogeneous = homogeneous = self.options.homogeneous or is_packed
        mode = self._mode(2 if homogeneous else num_micro_batches)
        if self.options.needs_one_micro_batch and homogeneous:
            raise exact_refusal("samples are packed into rows, so that micro-batches are of one stream each")
        if self.options.needs_one_micro_batch and num_micro_batches > 1:
            raise exact_refusal(f"this step has {num_micro_batches} micro-batches")
        if (mode, homogeneous) not in self._probes:
            self._probes[mode, homogeneous] = self._make(model, mode, homogeneous)
        self._present = self._probes[mode, homogeneous]
        self._seconds_before, self._draw = self._present.seconds, step - 1

    def _mode(self, num_micro_batches: int) -> Literal["exact", "sketch"]:
        if self.options.mode != "auto":
            return self.options.mode
        is_one = self._world_size == num_micro_batches == 1
        return "exact" if is_one or self.options.exact_accumulate else "sketch"

    def _make(self, model: nn.Module, mode: Literal["exact", "sketch"], homogeneous: bool) -> GradientProbe:
        return GradientProbe(
            model,
            len(self._names),
            mode,
            variance=self.variance,
            layers=self.options.layers,
            homogeneous=homogeneous,
            exact_accumulate=self.options.exact_accumulate,
            sketch_size=self.options.sketch_size,
            seed=self.seed,
            world_size=self._world_size,
            warned=self._told,
        )

    def start(self, stream_ids: Int64Array, items_per_row: Tensor, counts: bool) -> None:
        """Reads the next micro-batch if the step is measured.

        Args:
            stream_ids: int64 `[num_samples]`: the stream of each sample.
            items_per_row: int64 `[num_rows]`: number of loss terms.
            counts: Whether the micro-batch is no padding; otherwise it has no items.
        """
        if self._present is None:
            return
        items = items_per_row.cpu().numpy() * int(counts)
        if len(items) != len(stream_ids):  # packed rows of one stream: only the number of items matters
            items = np.diff(np.linspace(0, items.sum(), len(stream_ids) + 1).astype(np.int64))
        self._present.start(stream_ids, items, draw=self._draw)

    def finish(self, loss_scale: float, loss_weights: np.ndarray | None) -> tuple[GradientStatistics | None, float]:
        """Ends a measurement; all ranks have to call it.

        Args:
            loss_scale: Factor on the losses.
            loss_weights: `[num_streams]`: factors on the streams' losses, or `None`.

        Returns:
            The statistics and the seconds they took, or `None` and 0 if the step was not measured.
        """
        probe, self._present = self._present, None
        if probe is None:
            return None, 0.0
        statistics = probe.finish(loss_scale, loss_weights)
        self._check_variance(statistics)
        return statistics, probe.seconds - self._seconds_before

    def forget_model(self) -> None:
        """Resets the probe for another run, whose model may be another one, or wrapped."""
        self.cancel()
        self._probes.clear()
        self._has_warned = False

    def cancel(self) -> None:
        """Discards an unfinished measurement."""
        probe, self._present = self._present, None
        if probe is not None:
            probe.cancel()

    def _check_variance(self, statistics: GradientStatistics) -> None:
        """Warns once per run of streams whose variance is unknown because of too few samples."""
        is_known = ~np.isfinite(np.diagonal(statistics.gram)) | np.isfinite(statistics.variance)
        missing = [self._names[place] for place in np.flatnonzero(~is_known)]
        if not self.variance or not missing or self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "The gradient variance of these streams is unknown: %s. Reason: %s.",
            ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else ""),
            "with micro-batches of one stream each, a stream needs two of them in a step; lower "
            "per_device_train_batch_size"
            if self._homogeneous
            else "a stream needs two samples in a step; raise the batch size, or the stream's share",
        )


class MeasuringMixin(RecoveryMixin):
    """A Trainer that measures its gradients: with a probe at intervals, and the noise between ranks."""

    _run_probe: RunProbe | None = None
    _rank_noise: RankNoise | None = None
    _rank_sums: Tensor | None = None  # of the last step, float64 `[4]`; see `RankNoise.measure`
    _update_norm: UpdateNorm | None = None
    _num_samples: int = 0  # samples of that step, on all ranks

    def _new_probe(self, options: Probing | None, size: BatchSize) -> RunProbe | None:
        world_size = self.args.world_size
        if (resolved := resolve_probing(options, self._policy, size.schedule, world_size)) is None:
            return None
        check_exact(resolved[0], self.args, size, self._max_tokens, self._policy, self.streams)
        if resolved[0].needs_one_micro_batch and self._wants_one_stream_each and len(self.streams) > 1:
            raise exact_refusal("streams that differ have micro-batches of their own")
        names = [stream.name for stream in self.streams]
        probe = RunProbe(*resolved, names, world_size, self.args.seed)
        probe.check(self._own_model)
        self._wants_one_stream_each |= probe.options.homogeneous
        return probe

    def _release_run(self) -> None:
        super()._release_run()
        self._rank_noise = self._rank_sums = self._update_norm = None
        if self._run_probe is not None:
            self._run_probe.forget_model()

    def _prepare_run(self) -> None:
        super()._prepare_run()
        if self._run_probe is not None:
            self._run_probe.forget_model()
        if self.args.world_size > 1 and "gradient_noise" in self._mixture.schedule.needs:
            self._rank_noise = RankNoise(self.model_wrapped)
        if "update_norm" in self._policy.needs:
            self._update_norm = UpdateNorm(self.model_wrapped)

    def _train_step(self, model: nn.Module, batch: StepBatch, is_synchronised: bool = True) -> tuple[Tensor, Tensor]:
        probe = self._run_probe
        try:
            result = super()._train_step(model, batch, is_synchronised)
            if probe is not None:
                scale = float(self._loss_scale) if probe.is_due(batch.plan.step) else 1.0  # read from the device
                scale *= self._num_items / self._num_divided_by
                self._gradient_statistics, self._probe_seconds = probe.finish(scale, self._loss_factors)
        finally:
            if probe is not None:
                probe.cancel()  # unless it has finished
        if self._rank_noise is not None:  # the gradient is averaged, but not yet clipped or discarded
            noise = self._rank_noise.measure(sum(self._micro_items), self._loss_scale, self.args.device)
            self._rank_sums = self._rank_sync.add_up(noise)
            self._num_samples = batch.plan.total
        return result

    def _begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        probe = self._run_probe
        if probe is not None and probe.is_due(batch.plan.step):
            probe.begin(batch.plan.step, model, len(batch.micro_batches), self._is_packed(batch))
        super()._begin_step(model, batch)

    def _is_packed(self, batch: StepBatch) -> bool:
        """Whether rows are not samples on any rank: micro-batches then contain one stream each."""
        if not self._present_loader.by_stream:
            return False
        own = any(len(self._items_per_row(micro)) != len(micro.stream_ids) for micro in batch.micro_batches)
        return bool(self._rank_sync.most(int(own)))

    def _train_micro_batch(self, model: nn.Module, micro: MicroBatch, own_items: int, sums: Tensor) -> Tensor:
        probe = self._run_probe
        if probe is not None and probe.is_due(self._plan.step):
            probe.start(micro.stream_ids, self._items_per_row(micro), counts=own_items > 0)
        return super()._train_micro_batch(model, micro, own_items, sums)

    def _halve(self, *args: Any) -> None:
        if self._run_probe is not None:
            self._run_probe.cancel()  # it holds memory
        super()._halve(*args)

    @contextlib.contextmanager
    def _synchronised(self, model: nn.Module, is_synchronised: bool) -> Iterator[None]:
        noise = self._rank_noise
        listening = contextlib.nullcontext() if noise is None or not is_synchronised else noise.listening()
        with listening, super()._synchronised(model, is_synchronised):
            yield

    def _before_averaging(self) -> None:
        if self._rank_noise is not None:
            self._rank_noise.take_local()

    @property
    def _loss_scale(self) -> Tensor | float:
        """The factor on losses, on the device, without waiting for it."""
        scaler = self.accelerator.scaler
        return 1.0 if scaler is None else scaler.scale(torch.ones((), device=self.args.device))

    def _gradient_noise(self) -> GradientNoise | None:
        """Returns the noise of the last gradient from the ranks' differences, the same on all; waits for a GPU."""
        if self._rank_sums is None:
            return None
        noise = noise_of_ranks(self._rank_sums.tolist(), self.args.world_size, self._num_samples)
        return noise if math.isfinite(noise.squared_norm) and math.isfinite(noise.variance) else None

    def _observed_by_policy(self, batch: StepResult) -> dict[str, Any]:
        """Measures what the policy needs of the optimizer step; waits for a GPU."""
        return {} if self._update_norm is None else {"update_norm": float(self._update_norm.measure())}

    def _observed_by_schedule(self, batch: StepResult) -> dict[str, Any]:
        """Measures only what the batch-size schedule needs: reading from a GPU waits for it."""
        needs, norm, rate = self._mixture.schedule.needs, self._gradient_norm, self._learning_rate
        observed: dict[str, Any] = {}
        if "loss" in needs:
            observed["loss"] = float(batch.loss_sums[-1])
        if "gradient_norm" in needs and norm is not None:
            observed["gradient_norm"] = float(norm)
        if "learning_rate" in needs and rate is not None:
            observed["learning_rate"] = rate.at
        if "gradient_noise" in needs:
            observed["noise"] = self._gradient_noise()
        return observed
