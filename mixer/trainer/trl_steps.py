"""What TRL's trainers do in a step beside the loss: metrics over all ranks, tokens counted, an auxiliary loss."""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from transformers.trainer_utils import unwrap_peft_model

from mixer.gradients.probe.plain_head import is_fused
from mixer.loading.step import MicroBatch, StepBatch
from mixer.mixture.plan import Plan
from mixer.models.metrics_restored import metrics_restored
from mixer.models.rank_metrics import gathering, rows_of_ranks
from mixer.trainer.observers.comparing import ComparingMixin


class TRLStepsMixin(ComparingMixin):
    """A Trainer whose steps leave TRL's own figures as they would be without micro-batches and padding."""

    _total_train_tokens: int

    @property
    def _has_metrics(self) -> bool:
        """Whether this is one of TRL's trainers, or keeps metrics as they do."""
        return isinstance(getattr(self, "_metrics", None), dict)

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_for_training(*args, **kwargs)
        if self._has_metrics and self.args.world_size > 1 and self._obstacle is None:
            self._obstacle = f"{type(self).__name__} gathers metrics from all ranks in every loss"
        return prepared

    def _take_reference(self, reference: nn.Module | None) -> None:
        super()._take_reference(reference)
        own, other = (unwrap_peft_model(one) for one in (self.model, self._reference_model))  # type: ignore[no-untyped-call]
        if other is not None and _has_fused_head(own) and not _has_fused_head(other):
            from trl.trainer.utils import add_fused_lm_head

            add_fused_lm_head(other, outputs=("log_probs", "entropy", "is_top1"))  # what SFTTrainer asks for

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        with metrics_restored(self), super()._trying():
            yield

    def compute_loss_context_manager(self) -> contextlib.ExitStack:
        """Has an auxiliary loss averaged over a step's micro-batches; see `Trainer.compute_loss_context_manager`."""
        stack = super().compute_loss_context_manager()
        if self._mixing is not None and getattr(self, "aux_loss_enabled", False):
            # SFTTrainer divides it by this number, which for the Trainer is what the whole loss is divided by.
            divide_by = getattr(self, "current_gradient_accumulation_steps", 1)
            self.current_gradient_accumulation_steps = max(len(self._micro_items), 1)
            stack.callback(setattr, self, "current_gradient_accumulation_steps", divide_by)
        return stack

    def _train_micro_batch(
        self, model: nn.Module, micro: MicroBatch, own_items: int, plan: Plan, num_items: Any, sums: Tensor
    ) -> Tensor:
        if not self._has_metrics or self.args.world_size == 1:
            return super()._train_micro_batch(model, micro, own_items, plan, num_items, sums)
        with gathering(self, rows_of_ranks(self.accelerator, not micro.is_padding)):
            return super()._train_micro_batch(model, micro, own_items, plan, num_items, sums)

    def _train_step(
        self, model: nn.Module, batch: StepBatch, num_items: Any, is_synchronised: bool = True
    ) -> tuple[Tensor, Tensor]:
        before = getattr(self, "_total_train_tokens", 0)
        result = super()._train_step(model, batch, num_items, is_synchronised)
        if self._has_metrics:  # without those of ranks that had no samples, or of a step that was repeated
            self._total_train_tokens = before + int(self._step_counts.tokens.sum())
            vars(self)["_metrics"]["train"]["num_tokens"] = [self._total_train_tokens]
        return result


def _has_fused_head(model: nn.Module) -> bool:
    forward = model.__dict__.get("forward")
    return forward is not None and is_fused(forward)
