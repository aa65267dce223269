"""TRL's GRPOTrainer on prompts of several streams."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mixer.loading.loaded_step import StepBatch
from mixer.measurements import Measurement
from mixer.mixture.stream import Stream
from mixer.mixture.streams import as_streams, total_samples
from mixer.policies.contract import Policy
from mixer.policies.registry import as_policy
from mixer.run.config import MixingOptions
from mixer.trainer.checks.engines import engine_of
from mixer.trainer.trainer import MixingMixin
from mixer.utils.errors import InvalidTypeError, InvalidValueError, wrong_value

try:
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[attr-defined]  # lazy imports

    from mixer.trainer.grpo.reward_functions import STREAM, as_one_list
    from mixer.trainer.grpo.round_rewards import RoundRewards
    from mixer.trainer.grpo.rounds import PromptPreparation, PromptRules, Rounds, completed, rows_in
except ImportError as error:
    raise ImportError(f"MixingGRPOTrainer needs TRL ({error}): pip install 'adaptive-mixer[trl]'.") from error

# What only measurements of the streams' gradients require.
_OF_GRADIENTS = frozenset({"several streams in a step", "whole gradients", "gradients between steps"})
_ROW_STREAMS = "stream_ids"  # of the completions, beside them in TRL's buffer


@dataclass
class GRPOOptions(MixingOptions):
    """The options of a mixture of prompts."""

    loss_reduction: str | None = "mean"


class GRPOMixin(MixingMixin):
    """Makes a `GRPOTrainer`, or a subclass of it, train on prompts of several streams; see `MixingMixin`.

    A step of the mixture is a round of generation: the policy divides its prompts among the streams, each completed
    `num_generations` times. Generation, advantages and loss are TRL's.

    Args:
        model: As for the `GRPOTrainer`.
        reward_funcs: Reward functions for all streams, as TRL takes them; or by stream, `{"math": [correct, format],
            "code": passes}`. A function of some streams gets their rows alone, with their columns. All functions get
            the stream's name of each row as `stream`. `reward_weights` are in the order in which functions occur first.
        args: A `GRPOConfig`, or a `MixingGRPOConfig` with the options of a mixture.
        train_dataset: A mapping of names to data sets with a column `prompt`, a list of `Stream`, or one data set.
        **kwargs: As for `MixingMixin` and the `GRPOTrainer`. There is no `batch_size`: a round has
            `generation_batch_size / num_generations` prompts.
    """

    reward_weights: Tensor  # of TRL's trainer
    options_class: ClassVar[type[MixingOptions]] = GRPOOptions
    # The loader and the sampler repeat prompts; here a round does.
    carried_overrides: ClassVar[frozenset[tuple[type, str]]] = frozenset(
        {(GRPOTrainer, "get_train_dataloader"), (GRPOTrainer, "_get_train_sampler")}
    )

    def __init__(
        self, model: Any = None, reward_funcs: Any = None, args: Any = None, train_dataset: Any = None, **kwargs: Any
    ):
        if not isinstance(args, GRPOConfig):
            hint = "Set an output folder: MixingGRPOConfig('out')."
            raise InvalidTypeError(option="args", expected="a GRPOConfig or MixingGRPOConfig", found=args, hint=hint)
        _refuse_options(args, kwargs)
        args.dataloader_drop_last = True  # as TRL's sampler, which has whole rounds only
        streams = [] if train_dataset is None else as_streams(train_dataset)
        names = [stream.name for stream in streams if not stream.is_memory]
        functions, self._scored = as_one_list(reward_funcs, names)
        if (mixing := kwargs.get("mixing")) is not None:  # before anything else asks for what the policy needs
            _check_needs(as_policy(mixing))
        self._round_rewards = RoundRewards(int(args.num_generations or 0))
        methods = (*kwargs.pop("methods", ()), self._round_rewards)
        super().__init__(model, args, train_dataset=train_dataset, reward_funcs=functions, methods=methods, **kwargs)
        self._rounds = Rounds(self)
        if self._built is not None:
            self._round_rewards.ledger = self.ledger
            self._check_mixture()

    def _check_mixture(self) -> None:
        """Refuses policies and lengths of a run that rounds cannot honour."""
        policy, size = self.mixing.policy, self._rounds.num_prompts
        if (engine := engine_of(self).name) != "DDP":
            text = f": rounds of generation were not tried under {engine}. Train them by DDP."
            raise wrong_value("fsdp" if engine == "FSDP2" else "deepspeed", text)
        _check_needs(policy)
        if self.mixing.weighs_losses:
            hint = "Let it act on the sampling."
            raise InvalidValueError(option="mixing", expected="without factors on losses", found=policy.name, hint=hint)
        if self.mixing.batch_size != size:
            hint = "Set generation_batch_size, steps_per_generation or per_device_train_batch_size."
            expected = f"left out, or the {size} prompts of a round"
            raise InvalidValueError(option="batch_size", expected=expected, found=self.mixing.batch_size, hint=hint)
        for option, end in (("max_samples", total_samples(self.streams)), ("budget", self.mixing.clock.budget.samples)):
            if end is not None and end % size:
                expected = f"such that the run ends after a whole round, a multiple of {size} prompts"
                raise InvalidValueError(option=option, expected=expected, found=end)

    # ---- Where MixingMixin does something else ----

    def _new_rules(self, max_samples: int | None) -> PromptRules:
        return PromptRules(self, max_samples)

    def _new_preparation(self, streams: Sequence[Stream], length: int | None) -> PromptPreparation:
        return PromptPreparation(self, streams, length)

    def compute_loss_context_manager(self) -> Any:
        """Leaves an auxiliary loss to TRL, which divides it by the passes of an update."""
        return super(MixingMixin, self).compute_loss_context_manager()

    def prediction_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Generates for a batch as TRL; its loss, unlike its reward, says nothing of the set."""
        return super(MixingMixin, self).prediction_step(model, inputs, *args, **kwargs)

    # ---- A round ----

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Trains a round: whole steps as `MixingMixin`, which gives back their prompts, and those as TRL."""
        step = super().training_step
        if isinstance(inputs, StepBatch):
            return step(model, inputs, num_items_in_batch)
        rewards = self._round_rewards
        if (found := rewards.num_prompts) != self._rounds.num_prompts:  # on all ranks, or others would wait
            hint = "Give a stream that is repeated a weight, so that others can end."
            expected = f"{self._rounds.num_prompts} prompts in every round"
            raise InvalidValueError(option="max_samples", expected=expected, found=found, hint=hint)
        rows = completed(rows_in(inputs), rewards.prompt_streams(), rewards.num_generations)
        loss = self._rounds.train(step, model, rows, num_items_in_batch)
        self._parts.losses.reader.row_losses = self._spreads.to(loss.device)  # what buffers may go by
        return loss

    @property
    def _is_training(self) -> bool:
        return self.model is not None and self.model.training

    def _prepare_inputs(self, inputs: Any) -> Any:
        if not self._is_training:
            rows, stream = rows_in(inputs), self._evaluation.present_stream
            inputs = completed(rows, [None if stream is None else stream.name] * len(rows))
        return super()._prepare_inputs(inputs)

    def _calculate_rewards(self, inputs: Any, *args: Any) -> Tensor:
        scores: Tensor = super()._calculate_rewards(inputs, *args)  # type: ignore[misc]
        if self._scored is not None:
            own = torch.tensor([[row[STREAM] in streams for streams in self._scored] for row in inputs])
            scores = scores.masked_fill(~self.accelerator.gather(own.to(scores.device)), torch.nan)
        self._scores = scores
        return scores

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        if not self._is_training:
            return output
        rank, count = self.args.process_index, len(inputs)
        own = self._scores[rank * count : (rank + 1) * count]
        rewards = (own * self.reward_weights.to(own.device)).nansum(dim=1)
        rewards[own.isnan().all(dim=1)] = torch.nan
        self._spreads = self._round_rewards.note_rewards(rewards, output["completion_mask"].sum(dim=1))
        return {**output, _ROW_STREAMS: self._round_rewards.row_streams}

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)  # type: ignore[misc]
        self._log_probs = found[0].detach()
        return found

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        loss: Tensor = super()._compute_loss(model, inputs)  # type: ignore[misc]
        if _ROW_STREAMS in inputs and (reference := inputs.get("ref_per_token_logps")) is not None:
            mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
            gap = reference - self._log_probs
            divergence = (gap.exp() - gap - 1) * mask
            self._round_rewards.note_divergence(inputs[_ROW_STREAMS], divergence.sum(dim=1), mask.sum(dim=1))
        return loss


def _check_needs(policy: Policy) -> None:
    if unmeasured := [type(need).__name__ for need in policy.needs if _is_unmeasured(need)]:
        hint = "MTGRPO and Learnability use rewards; a policy of your own asks for mixer.measurements.Rewards."
        expected = f"a policy without {unmeasured}, which rounds of generation do not show by stream"
        raise InvalidValueError(option="mixing", expected=expected, found=policy.name, hint=hint)


def _is_unmeasured(need: Measurement[Any]) -> bool:
    """Whether a round does not show it by stream: the loss of a policy gradient says nothing, and is not a row's."""
    return need.is_loss or need.reads_losses or bool(need.requirements() & _OF_GRADIENTS)


def _refuse_options(args: Any, given: dict[str, Any]) -> None:
    """Refuses options of a mixture that have no meaning for rounds."""
    options = ("max_samples_per_micro_batch", "max_tokens_per_micro_batch", "one_stream_per", "conflict")
    found = {name: getattr(args, name, None) for name in options}
    found |= {name: given[name] for name in ("probe", "conflict", "data_collator") if given.get(name) is not None}
    for name, value in found.items():
        if value is not None:
            hint = "per_device_train_batch_size is what a forward holds; gradients of streams are not measured."
            raise InvalidValueError(option=name, expected="left out for GRPO", found=value, hint=hint)


@dataclass
class MixingGRPOConfig(GRPOOptions, GRPOConfig):
    """The training arguments of a `MixingGRPOTrainer`; see `MixingOptions` and `trl.GRPOConfig`."""


class MixingGRPOTrainer(GRPOMixin, GRPOTrainer):
    """TRL's GRPOTrainer on prompts of several streams; see `GRPOMixin` and `trl.GRPOTrainer` for the arguments.

    Example:
        >>> trainer = MixingGRPOTrainer(  # doctest: +SKIP
        ...     model,
        ...     {"math": [correct, has_format], "code": passes_tests},
        ...     MixingGRPOConfig("out", per_device_train_batch_size=32, num_generations=8),
        ...     {"math": math_prompts, "code": code_prompts},
        ...     mixing=MTGRPO(),
        ... )
    """
