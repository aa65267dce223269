"""What is measured of the gradients of a step, where the policy or the batch-size schedule needs it."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mixer.gradients.noise_scale import RankNoise, noise_of_ranks
from mixer.gradients.update_norm import UpdateNorm
from mixer.ledger.recorder import StepResult
from mixer.loading.build import MixtureOptions
from mixer.loading.step import MicroBatch, StepBatch
from mixer.mixture.batch_size import BatchSize
from mixer.mixture.plan import Plan
from mixer.policies import Policy
from mixer.schedules import GradientNoise
from mixer.trainer.observers.gradient_options import Probing, check_exact, exact_refusal, resolve_probing
from mixer.trainer.observers.run_probe import RunProbe
from mixer.trainer.out_of_memory import RecoveryMixin


class MeasuringMixin(RecoveryMixin):
    """A Trainer that measures its gradients: with a probe once in a while, and their noise by what ranks differ."""

    _policy: Policy
    _mixture: MixtureOptions
    _max_tokens: int | None
    _run_probe: RunProbe | None = None
    _rank_noise: RankNoise | None = None
    _rank_sums: Tensor | None = None  # of the last step, float64 `[4]`; see `RankNoise.measure`
    _update_norm: UpdateNorm | None = None
    _num_samples: int = 0  # of that step, on all ranks

    def _new_probe(self, options: Probing | None, size: BatchSize) -> RunProbe | None:
        world_size = self.args.world_size
        resolved = resolve_probing(options, self._policy, size.schedule, world_size)
        if resolved is None:
            return None
        check_exact(resolved[0], self.args, size, self._max_tokens, self._policy, self.streams)
        if resolved[0].needs_one_micro_batch and self._wants_one_stream_each and len(self.streams) > 1:
            raise exact_refusal("streams that differ have micro-batches of their own")
        names = [stream.name for stream in self.streams]
        probe = RunProbe(*resolved, names, world_size, self.args.seed)
        assert self.model is not None, "the Trainer has made its model"  # noqa: S101
        probe.check(self.model)
        self._wants_one_stream_each |= probe.options.homogeneous
        return probe

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains, and lets go of what measured it; see `Trainer.train`."""
        try:
            return super().train(*args, **kwargs)
        finally:
            self._rank_noise = self._rank_sums = self._update_norm = None
            if self._run_probe is not None:
                self._run_probe.forget_model()

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_for_training(*args, **kwargs)
        if self._run_probe is not None:
            self._run_probe.forget_model()
        if self._mixing is not None and self.args.world_size > 1 and "gradient_noise" in self._mixing.schedule.needs:
            self._rank_noise = RankNoise(self.model_wrapped)
        if self._mixing is not None and "update_norm" in self._policy.needs:
            self._update_norm = UpdateNorm(self.model_wrapped)
        return prepared

    def _train_step(
        self, model: nn.Module, batch: StepBatch, num_items: Any, is_synchronised: bool = True
    ) -> tuple[Tensor, Tensor]:
        probe = self._run_probe
        try:
            result = super()._train_step(model, batch, num_items, is_synchronised)
            if probe is not None:
                scale = float(self._loss_scale) if probe.is_due(batch.plan.step) else 1.0  # read from the device
                told = scale * self._num_items / self._num_divided_by
                found = probe.finish(told, self._loss_factors(batch.plan))
                self._gradient_statistics, self._probe_seconds = found
        except BaseException:
            if probe is not None:
                probe.cancel()
            raise
        if self._rank_noise is not None:  # the gradient is averaged, and neither clipped nor thrown away yet
            measured = self._rank_noise.measure(sum(self._micro_items), self._loss_scale, self.args.device)
            self._rank_sums = self._rank_sync.add_up(measured)
            self._num_samples = batch.plan.total
        return result

    def _begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        probe = self._run_probe
        if probe is not None and probe.is_due(batch.plan.step):
            probe.begin(batch.plan.step, model, len(batch.micro_batches), self._is_packed(batch))
        super()._begin_step(model, batch)

    def _is_packed(self, batch: StepBatch) -> bool:
        """Whether rows are not samples on any rank: then micro-batches are of one stream each."""
        if not self._present_loader.by_stream:
            return False
        own = any(len(self._items_per_row(micro)) != len(micro.stream_ids) for micro in batch.micro_batches)
        return bool(self._rank_sync.most(int(own)))

    def _train_micro_batch(
        self, model: nn.Module, micro: MicroBatch, own_items: int, plan: Plan, num_items: Any, sums: Tensor
    ) -> Tensor:
        probe = self._run_probe
        if probe is not None and probe.is_due(plan.step):
            probe.start(micro.stream_ids, self._items_per_row(micro), counts=own_items > 0)
        return super()._train_micro_batch(model, micro, own_items, plan, num_items, sums)

    def _halve(self, *args: Any) -> None:
        if self._run_probe is not None:
            self._run_probe.cancel()  # what it holds is in the way
        super()._halve(*args)

    @contextlib.contextmanager
    def _synchronised(self, model: nn.Module, is_synchronised: bool) -> Iterator[None]:
        noise = self._rank_noise
        listening = contextlib.nullcontext() if noise is None or not is_synchronised else noise.listening()
        with listening, super()._synchronised(model, is_synchronised):
            yield

    def _average_gradients(self, model: nn.Module) -> None:
        if self._rank_noise is not None:
            self._rank_noise.take_local()
        super()._average_gradients(model)

    @property
    def _loss_scale(self) -> Tensor | float:
        """What losses are multiplied by, on the device: nobody waits for it."""
        scaler = self.accelerator.scaler
        return 1.0 if scaler is None else scaler.scale(torch.ones((), device=self.args.device))

    def _gradient_noise(self) -> GradientNoise | None:
        """Gives what the ranks showed of the last gradient's noise, on all the same; waits for a GPU."""
        if self._rank_sums is None:
            return None
        noise = noise_of_ranks(self._rank_sums.tolist(), self.args.world_size, self._num_samples)
        return noise if math.isfinite(noise.squared_norm) and math.isfinite(noise.variance) else None

    def _observed_by_policy(self, batch: StepResult) -> dict[str, Any]:
        """Measures what the policy needs of the optimizer step; waits for a GPU."""
        return {} if self._update_norm is None else {"update_norm": float(self._update_norm.measure())}

    def _observed_by_schedule(self, batch: StepResult) -> dict[str, Any]:
        """Measures only what the batch-size schedule needs: reading from a GPU waits for it."""
        needs = self._mixture.schedule.needs
        observed: dict[str, Any] = {}
        if "loss" in needs:
            observed["loss"] = float(batch.loss_sums[-1])
        if "gradient_norm" in needs and self._gradient_norm is not None:
            observed["gradient_norm"] = float(self._gradient_norm)
        if "learning_rate" in needs and self._learning_rate is not None:
            observed["learning_rate"] = self._learning_rate.at
        if "gradient_noise" in needs:
            observed["noise"] = self._gradient_noise()
        return observed
