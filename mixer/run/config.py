"""The options of a mixture that are numbers, words or lists: fields beside those of `TrainingArguments`."""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import docstring_parser
from transformers import TrainingArguments

from mixer.ledger.progress.log_text import LoggingStyle
from mixer.loading.build import MixtureOptions
from mixer.mixture.bad_samples import OnSampleError
from mixer.mixture.clock import Budget
from mixer.mixture.groups import Grouping
from mixer.mixture.planner import Drawing, OneStreamPer
from mixer.mixture.resolve import check_micro_batch
from mixer.policies.objective import Objective, as_objective
from mixer.schedules.registry import as_schedule
from mixer.utils.errors import ErrorFacts, InvalidTypeError, InvalidValueError, wrong_type, wrong_value
from mixer.utils.ranges import check_choice
from mixer.utils.text import safe_names

T = TypeVar("T")
NonFinite = Literal["warn", "skip", "raise"]
LOSS_REDUCTIONS = ("mean", "sum", "items")


def _with_help(kind: type[T]) -> type[T]:
    """Gives each field its text of the docstring as `metadata["help"]`, which `HfArgumentParser` shows."""
    texts = {
        parameter.arg_name: parameter.description for parameter in docstring_parser.parse(kind.__doc__ or "").params
    }
    for field in fields(kind):  # type: ignore[arg-type]  # a dataclass
        field.metadata = MappingProxyType({"help": " ".join((texts.get(field.name) or "").split())})
    return kind


@_with_help
@dataclass
class MixingOptions:
    """The options of a mixture, to add to training arguments of any class.

    `MixingConfig`, `MixingSeq2SeqConfig` and `MixingSFTConfig` have these fields. For another trainer, such as TRL's
    `DPOTrainer`, write `@dataclass class MixingDPOConfig(MixingOptions, DPOConfig)`. Using `HfArgumentParser` we can
    turn each of these classes into arguments of a command line, or read it from YAML or JSON.

    Args:
        mixing: The mixing policy by its name ("auto", "Uniform", ...; `mixer policies` lists them), or weights by
            stream or in order. Policies with arguments are objects, for the trainer's own argument of this name.
        batch_size: Samples per step over all ranks, or the name of a schedule (`mixer schedules` lists them). By
            default per_device_train_batch_size x gradient_accumulation_steps x ranks.
        budget_samples: Length of the run in samples, instead of num_train_epochs; max_steps still ends a run.
        budget_tokens: Length of the run in tokens, likewise.
        epoch_size: Samples in an epoch of the mixture; by default all samples of all streams.
        drawing: "exact" gives every stream its share to the sample, "multinomial" draws the counts at random.
        one_stream_per: "step" makes each step one stream's, as losses need whose rows are each other's negatives: the
            streams take steps in turn, by their exact shares of samples, and a step ends where a pass of its stream
            does. "micro_batch" makes each forward one stream's. By default micro-batches are mixed where streams agree
            in columns, collator, loss and head.
        max_samples_per_micro_batch: Maximum number of samples in one forward on a rank, for batches that grow; a rank
            with more samples in a step runs several, with the same gradient. By default per_device_train_batch_size.
            If so many do not fit into memory, auto_find_batch_size halves the number, and checkpoints hold what it has
            found.
        max_tokens_per_micro_batch: Maximum number of tokens in a micro-batch, padding included, in place of a number
            of samples. Works best with train_sampling_strategy="group_by_length": a micro-batch then also ends where a
            sample would be padded to more than twice its length.
        objective: What the run is to lower, for policies and reports: "average" or "worst" of the evaluation sets, the
            name of one, several names, or their importance by name. If the policy reads targets, it follows
            development rows, a part of each target's evaluation set; the rest is evaluated.
        development_share: Share of each target's evaluation set that is set aside as development rows. By default a
            quarter if the policy reads targets, else nothing; a number is set aside whatever the policy.
        eval_weights: Weights of the evaluation sets in eval_loss, by name, in place of the plain mean.
        loss_units: In what policies that compare losses between streams see them: "initial" divides each stream's by
            its first training loss, "entropy" by the entropy of its class labels, losses by stream (such as those of a
            reference model) by these; "none" leaves them as they are. By default "entropy" where streams have heads or
            numbers of classes that differ ("initial" if one has no classes), else "none".
        loss_reduction: What the loss of a micro-batch is: "mean" over items (the labels that are not ignored, or the
            rows), plain "sum", or "items", a sum divided by num_items_in_batch. By default it is read off the losses of
            rows in the first steps, which shows all but losses of your own that are no cross entropy.
        conflict: How conflicting gradients of streams are combined: "pcgrad", "cagrad" or "mgda". By default
            they add up. Needs memory for one more gradient per stream but one.
        nonfinite: Reaction to a stream's loss that is not finite: "warn", "skip" the optimizer step, or "raise" before
            it. A step whose gradient is not finite is never made: it is skipped with a warning, or raises. Ten skipped
            steps in a row end the run.
        on_sample_error: Reaction to a sample that cannot be loaded: "raise" ends the run on all ranks, with stream,
            index and rank; "skip" leaves the sample out of its step, logs and counts it. A Stream can override it.
        max_skipped_share: Ends the run once more than this share of a stream's samples, and at least ten of them, are
            skipped.
        allow_inexact: Whether to resume even if the continuation differs from that of the uninterrupted run: with a
            stream added or removed, another policy or conflict, changed data. Otherwise such a resume is refused.
        handle_signals: Whether train() saves a checkpoint and ends after the step in progress, on all ranks, if any
            rank receives a SIGTERM, SIGINT or SIGUSR1 that nothing else handles. Handlers are installed only during
            train(), in the main thread.
        save_best_of_each: Whether to save the weights in OUTPUT_DIR/best/NAME at each evaluation in which the set of
            that name is better than ever before, by its loss or by the metric of the objective.
        logging_style: How log entries are printed: a "line" each, with a table of streams at evaluations, or the
            Trainer's "dict". Callbacks, trackers and state.log_history get the same entries either way.
        ledger_interval_steps: Number of steps that a row of the ledger covers; by default 1 up to 256 streams, and
            with more as many as keep the ledger within about 10 kB a step.

    Raises:
        ValueError: If a value is none of the choices, or two options exclude each other.
        TypeError: If a value is no plain data.
    """

    mixing: dict[str, float] | str | list[float] | None = None
    batch_size: int | str | None = None
    budget_samples: int | None = None
    budget_tokens: int | None = None
    epoch_size: int | None = None
    drawing: Drawing = "exact"
    one_stream_per: str | None = None
    max_samples_per_micro_batch: int | None = None
    max_tokens_per_micro_batch: int | None = None
    objective: dict[str, float] | str | list[str] | None = None
    development_share: float | None = None
    eval_weights: dict[str, float] | str | None = None
    loss_units: dict[str, float] | str | None = None
    loss_reduction: str | None = None
    conflict: str | None = None
    nonfinite: NonFinite = "warn"
    on_sample_error: OnSampleError = "raise"
    max_skipped_share: float = 0.1
    allow_inexact: bool = False
    handle_signals: bool = True
    save_best_of_each: bool = False
    logging_style: LoggingStyle = "line"
    ledger_interval_steps: int | None = None

    def __post_init__(self) -> None:
        for name, value in self.own_options().items():
            setattr(self, name, _from_text(name, list(value) if isinstance(value, tuple) else value))
        self.check_options()
        if isinstance(self, TrainingArguments):
            super().__post_init__()  # type: ignore[misc]  # of classes with both

    def own_options(self) -> dict[str, Any]:
        """Returns the values of these fields by name."""
        return {field.name: copy.copy(getattr(self, field.name)) for field in fields(MixingOptions)}

    def check_options(self) -> None:
        """Refuses values that are no choice or no plain data, and options that exclude each other.

        Raises:
            ValueError: With the option and its choices.
            TypeError: With the option, if its value is an object.
        """
        kinds = get_type_hints(MixingOptions)
        for name, value in self.own_options().items():
            if get_origin(kinds[name]) is Literal:
                check_choice(name, value, get_args(kinds[name]))
            elif kinds[name] is bool and not isinstance(value, bool):
                raise wrong_type(name, f"must be True or False, got {value!r:.100}.")
            elif not isinstance(value, bool | int | float | str | list | dict | None):
                hint = f" Pass objects to the trainer: {name}=..." if name in OF_TRAINER else ""
                raise InvalidTypeError(
                    f"{type(self).__name__}: {name} must be plain data, got {value!r:.100}.{hint}", option=name
                )
        if self.loss_reduction is not None:
            check_choice("loss_reduction", self.loss_reduction, LOSS_REDUCTIONS)
        if self.one_stream_per is not None:
            check_choice("one_stream_per", self.one_stream_per, get_args(OneStreamPer))
        check_micro_batch(self.max_samples_per_micro_batch, self.max_tokens_per_micro_batch)

    def check_unchanged(self, args: Any) -> None:
        """Refuses other options than these in the training arguments of a trainer that was built with these.

        Raises:
            ValueError: With the option and both values.
        """
        kind = MixingOptions if isinstance(self, TrainingArguments) else type(self)
        now = options_in(args, kind).own_options()
        for name, value in self.own_options().items():
            if now[name] != value:
                then, text = f"of the training arguments was {value!r:.100}", f"is {now[name]!r:.100} now"
                raise wrong_value(name, f"{then} at construction and {text}: build a new trainer.")

    # ---- Options that the trainer takes as objects, too ----

    def chosen(self, name: str, given: Any) -> Any:
        """Returns the value of an option that the trainer takes, too.

        Args:
            name: Its name.
            given: The trainer's own argument; `None` leaves it to this object.

        Raises:
            ValueError: If both are given and differ.
        """
        return self._one_of(name, given, name, getattr(self, name))

    def _one_of(self, name: str, given: Any, own_name: str, own: Any) -> Any:
        if given is None or own is None:
            return own if given is None else given
        if type(given) is not type(own) or given != own:
            both = f"{name}={_shown(given)} and {own_name}={_shown(own)} of the training arguments"
            raise InvalidValueError(f"{both} are both given, and differ: leave one of the two out.", option=name)
        return given

    def chosen_budget(self, given: Budget | None) -> Budget | None:
        """Returns the length of the run, if it is limited in samples or tokens; see `chosen`."""
        limits = self.budget_samples, self.budget_tokens
        try:
            own = None if limits == (None, None) else Budget(samples=limits[0], tokens=limits[1])
        except ErrorFacts as error:
            name = str(error.option).replace(".", "_")
            raise type(error)(str(error).replace(str(error.option), name, 1), option=name) from None
        budget: Budget | None = self._one_of("budget", given, "budget_samples or budget_tokens", own)
        return budget

    def chosen_objective(self, given: Any) -> Objective | None:
        """Returns what the run is to lower, with the share of development rows; see `chosen`."""
        asked, own = (as_objective(safe_names(value, "objective")) for value in (given, self.objective))
        objective: Objective | None = self._one_of("objective", asked, "objective", own)
        if self.development_share is None:
            return objective
        if objective is None:
            raise wrong_value(
                "development_share", f"={self.development_share} sets no rows aside without objective: set it too."
            )
        share = self._one_of(
            "Objective.development_share", objective.development_share, "development_share", self.development_share
        )
        return replace(objective, development_share=share)

    def mixture(
        self,
        batch_size: Any,
        budget: Budget | None,
        groupings: Sequence[Grouping],
        seed: int,
        objective: Objective | None,
    ) -> MixtureOptions:
        """Returns the settings of the mixture.

        Args:
            batch_size: The trainer's own argument, as the next two.
            budget: Length of the run.
            groupings: Groups of streams.
            seed: Seed of the data.
            objective: The objective, with its targets by name.

        Raises:
            ValueError: If an option is given twice, with different values.
        """
        schedule, weights = as_schedule(self.chosen("batch_size", batch_size)), safe_names(self.eval_weights, "weights")
        own = self.chosen_budget(budget), self.epoch_size, tuple(groupings), self.drawing
        per = cast("OneStreamPer | None", self.one_stream_per)  # plain text on a command line
        return MixtureOptions(schedule, *own, seed, weights, objective, per)


# Fields that the trainer takes as objects, too.
OF_TRAINER = ("mixing", "batch_size", "objective", "conflict")


@dataclass
class MixingConfig(MixingOptions, TrainingArguments):
    """The training arguments of a `MixingTrainer`: those of the Trainer, and the options of a mixture.

    Using `HfArgumentParser` we can turn this class into arguments of a command line, or read it from YAML or JSON. See
    `MixingOptions` for the fields that are added, and `transformers.TrainingArguments` for all others.

    Example:
        >>> args = MixingConfig("out", mixing="Uniform", batch_size=32, nonfinite="skip", report_to="none")
        >>> args.to_dict()["mixing"]
        'Uniform'
    """


def options_in(args: Any, kind: type[MixingOptions] = MixingOptions) -> MixingOptions:
    """Returns the options of a mixture in training arguments; the defaults of a kind if these have none."""
    return args if isinstance(args, MixingOptions) else kind()


def _shown(value: Any) -> str:
    is_plain = isinstance(value, bool | int | float | str | list | tuple | dict)
    return f"{value!r:.100}" if is_plain else f"{type(value).__name__}(...)"  # its text is long and tells little


def _from_text(name: str, value: Any) -> Any:
    """Converts what a command line gives as text: JSON of a mapping or a list, and a number of samples."""
    if not isinstance(value, str):
        return value
    if name == "batch_size" and value.isdecimal():
        return int(value)
    if not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise InvalidValueError(f"{name}: {value!r:.100} cannot be read as JSON: {error}.", option=name) from None
