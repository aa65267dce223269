"""The plan of a run: what it needs of its steps, decided before any part that takes part in them is built."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import TrainingArguments

from mixer.loading.build import MixtureOptions, has_whole_steps, resolve_budget
from mixer.measurements import Needs
from mixer.mixture.bad_samples import Skipping
from mixer.mixture.stream import Stream
from mixer.policies.contract import Policy
from mixer.policies.objective import Objective
from mixer.run.config import MixingOptions
from mixer.run.probing import ProbedSteps, Probing, resolve_probing
from mixer.schedules.base import Schedule


@dataclass(frozen=True)
class TargetSplits:
    """An objective with the development rows.

    Args:
        objective: The objective, with its targets by name.
        rows: The data set of each target (and each set with a bound) by name; empty if the policy reads none.
        taken: Number of rows that were taken out of evaluation sets, by name.
        test: What is evaluated of each target, by name; empty if the length of one is unknown.
        development: The development rows by name, whether the policy reads them or not.
    """

    objective: Objective
    rows: Mapping[str, Any]
    taken: Mapping[str, int]
    test: Mapping[str, Any] = field(default_factory=dict)
    development: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """The options of a mixture besides its streams; see `MixingMixin`.

    Args:
        policy: The mixing policy.
        mixture: Settings of the mixture.
        skipping: What happens to samples that cannot be loaded.
        probe: Options for measuring gradients, or `None`.
        methods: The user's methods, and first the one that the option `conflict` stands for.
        target_splits: The objective with the development rows, or `None`.
        config: All others, as the user has given them.
        evaluated_on_training_rows: Which evaluation sets have rows of streams, on the main rank; or `None`.
    """

    policy: Policy
    mixture: MixtureOptions
    skipping: Skipping
    probe: Probing | None
    methods: Sequence[Any]  # `Method`s, whose file needs parts that need the plan
    target_splits: TargetSplits | None
    config: MixingOptions
    evaluated_on_training_rows: str | None

    @property
    def schedule(self) -> Schedule:
        """The batch-size schedule."""
        return self.mixture.schedule

    @property
    def needs(self) -> Needs:
        """What policy and schedule ask a run to measure."""
        return (*self.policy.needs, *self.schedule.needs)

    @property
    def aim(self) -> TargetSplits:
        """The objective with the development rows, where something is measured on them."""
        assert self.target_splits is not None, "who needs an objective has been refused without one"  # noqa: S101
        return self.target_splits


@dataclass(frozen=True)
class Facts:
    """What is known of a trainer and its model before a run is planned.

    Args:
        most_samples: Maximum samples of a micro-batch.
        tasks: The head of each stream, as the model's argument `task`; `None` for its only one.
        share_batches: Whether samples of several streams can be collated together, as far as some tell.
        packs_rows: Whether the trainer puts several samples into a row, as `padding_free` of TRL does.
        num_classes: The number of classes of each stream's head; `None` if it is no classifier or computes no loss.
        num_tokens: The number of tokens that the model knows; `None` if it takes none.
    """

    most_samples: int
    tasks: tuple[str | None, ...]
    share_batches: bool = True
    packs_rows: bool = False
    num_classes: tuple[int | None, ...] = ()
    num_tokens: int | None = None


@dataclass(frozen=True)
class RunPlan(Options):
    """What a run consists of, and what it needs of its steps; its methods begin with the replay buffers.

    Args:
        streams: The streams.
        facts: What is known of trainer and model.
        probed: The steps whose gradients are measured, and how; `None` for none.
        streams_differ: Whether streams cannot share a micro-batch.
        one_stream_each: Whether every micro-batch contains one stream, for that or another reason.
        have_losses: Whether streams have losses or heads of their own.
        have_heads: Whether streams have heads of their own.
        keeps_samples: Whether a step keeps its samples.
        keeps_outputs: Whether methods see the model's output.
        reads_losses_at_once: Whether losses are read from the device after every step.
        is_step_based: Whether the learning rate follows steps, not the data.
    """

    streams: Sequence[Stream]
    facts: Facts
    probed: ProbedSteps | None
    streams_differ: bool
    one_stream_each: bool
    have_losses: bool
    have_heads: bool
    keeps_samples: bool
    keeps_outputs: bool
    reads_losses_at_once: bool
    is_step_based: bool

    @property
    def tasks(self) -> tuple[str | None, ...]:
        """The head of each stream, as the model's argument `task`; `None` for its only one."""
        return self.facts.tasks

    @property
    def most_samples(self) -> int:
        """Maximum samples of a micro-batch."""
        return self.facts.most_samples


def plan_run(
    streams: Sequence[Stream], options: Options, methods: Sequence[Any], args: TrainingArguments, facts: Facts
) -> RunPlan:
    """Plans a run.

    Args:
        streams: The streams.
        options: The options of the mixture.
        methods: The replay buffers among the streams, and the user's methods.
        args: The training arguments.
        facts: What is known of trainer and model.

    Raises:
        ValueError: If the options of the probe exclude a measurement that policy or schedule need.
        TypeError: If they are no `Probing`.
    """
    probed = resolve_probing(options.probe, options.policy, options.schedule, args.world_size)
    budget, have_heads = resolve_budget(args, options.mixture.budget, streams), len(set(facts.tasks)) > 1
    streams_differ = differ_by_options(streams, facts.tasks) or not facts.share_batches
    has_whole = has_whole_steps(streams, options.mixture.one_stream_per)
    is_parted = facts.packs_rows or (probed is not None and probed.options.homogeneous)
    is_parted = is_parted or has_whole or options.mixture.one_stream_per is not None
    return RunPlan(
        **vars(replace(options, methods=tuple(methods))),
        streams=tuple(streams),
        facts=facts,
        probed=probed,
        streams_differ=streams_differ,
        one_stream_each=streams_differ or is_parted or any("one stream each" in method.needs for method in methods),
        have_losses=have_heads or _differ_in_loss(streams),
        have_heads=have_heads,
        keeps_samples=any("samples" in method.needs for method in methods),
        keeps_outputs=bool(methods),
        reads_losses_at_once=args.device.type == "cpu" or any(need.reads_losses for need in options.needs),
        is_step_based=options.schedule.is_constant and budget.is_in_steps and not has_whole,
    )


def differ_by_options(streams: Sequence[Stream], tasks: Sequence[str | None]) -> bool:
    """Whether options of the streams, or their heads, make micro-batches of one stream each necessary."""
    differ_in_labels = len({tuple(stream.label_names or ()) for stream in streams}) > 1
    have_collators = any(stream.data_collator is not None for stream in streams)
    return differ_in_labels or have_collators or any(task is not None for task in tasks) or _differ_in_loss(streams)


def _differ_in_loss(streams: Sequence[Stream]) -> bool:
    return any(stream.compute_loss_func != streams[0].compute_loss_func for stream in streams)
