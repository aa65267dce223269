"""The Trainer on a mixture of streams."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DataCollator, PreTrainedModel, Trainer, TrainingArguments

from mixer.ledger.card import add_mixture_card
from mixer.ledger.ledger import Ledger
from mixer.loading.build import resolve_budget, resolve_policy
from mixer.loading.loaded_step import StepBatch
from mixer.loading.loader import MixingLoader
from mixer.losses.stream_losses import StreamLosses
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.measurements.hooks.target_rows import split_targets
from mixer.mixture.clock import Budget
from mixer.mixture.controller import Mixing
from mixer.mixture.groups import Grouping
from mixer.mixture.resolve import resolve_epoch_size
from mixer.mixture.stream import Stream
from mixer.mixture.streams import as_streams, skipping_of
from mixer.models.inputs import takes_task
from mixer.policies.contract import Policy
from mixer.policies.function import WeightFunction
from mixer.policies.objective import Objective
from mixer.run.class_checks import check_output_folder
from mixer.run.config import MixingOptions, options_in
from mixer.run.loading import data_seed
from mixer.run.plan import Options
from mixer.run.probing import Probing
from mixer.run.samples import LoadingRules
from mixer.run.state import PresentStep
from mixer.schedules.base import Schedule
from mixer.trainer.checks.overrides import check_class, check_trainer_keywords
from mixer.trainer.checks.shared_rows import tell_shared_rows
from mixer.trainer.evaluation.best_model import check_found, is_best, with_safe_name
from mixer.trainer.evaluation.evaluation import StreamEvaluation
from mixer.trainer.evaluation.evaluation_sets import check_sets
from mixer.trainer.failures import reports_errors_to_all_ranks
from mixer.trainer.gradient_aggregation import GradientAggregation, with_conflict
from mixer.trainer.log import log_at
from mixer.trainer.method import Method
from mixer.trainer.own_loader import read_own_loader
from mixer.trainer.parts import Parts, parts_of
from mixer.trainer.preparation import StreamPreparation
from mixer.trainer.training import Training
from mixer.utils.data_set import DataSet
from mixer.utils.errors import wrong_value
from mixer.utils.text import safe_names


class MixingMixin(Trainer):
    """Makes a Trainer, or a subclass of it, train on a mixture of streams.

    `class MyTrainer(MixingMixin, SomeTrainer)` is all it takes. With one data set it trains as the Trainer does.
    Trainers that make their own batches are refused; TRL's trainers for SFT, DPO and reward models are supported.

    Args:
        model: As for the Trainer.
        args: As for the Trainer; a `MixingConfig` also has all options of the mixture that are numbers, words or lists
            (see `MixingOptions`). An option that both have is given to one of them. `gradient_accumulation_steps`
            multiplies the default batch size; a step is always one optimizer step.
        data_collator: As for the Trainer.
        train_dataset: A mapping of names to data sets (or a `DatasetDict`), a list of `Stream`, or one data set.
        *positional: Further arguments of the Trainer class.
        mixing: The mixture weights: a policy, its name, weights by name or in order, or `f(step, weights) -> weights`.
            `None` uses your weights (`Stream(weight=)`), or mixes in proportion to size if there are none.
        batch_size: Samples per step over all ranks: a number, a schedule, its name, or `f(step, batch_size) ->
            batch_size`. `None` uses `per_device_train_batch_size` × `gradient_accumulation_steps` × ranks.
            Micro-batches hold at most `per_device_train_batch_size` samples, whatever the batch size, unless
            `max_samples_per_micro_batch` is set.
        budget: Length of the run in epochs, samples, tokens, labels or steps, instead of `num_train_epochs`;
            `max_steps` still ends a run. `None` uses these two as the Trainer does.
        groupings: Groups of streams with weights and caps of their own.
        objective: What the run is for: names of evaluation sets, with their importance or without, `"average"` or
            `"worst"` of all sets, or an `Objective`. `None` declares nothing.
        methods: Methods that take part in steps, such as a loss term or a rule for the gradient; see
            `mixer.trainer.method.Method`. Replay buffers among the streams are added automatically.
        conflict: How conflicting per-stream gradients are combined: `None` adds them up; `"pcgrad"`, `"cagrad"`,
            `"mgda"`, another aggregator of the package torchjd as an object, or a `GradientAggregation` weights
            them. Needs memory for one more gradient per stream but one.
        probe: Options for measuring per-stream gradients, for a policy or schedule that needs them, or for the ledger.
        compute_metrics: As for the Trainer; or a dict with one function per evaluation set.
        **kwargs: Further arguments of the Trainer class.

    Raises:
        ValueError: If streams, weights, batch size or training arguments are incompatible; the message names the
            alternatives.
        TypeError: If an argument is of the wrong type, or a class below makes its own batches.

    Example:
        >>> trainer = MixingTrainer(  # doctest: +SKIP
        ...     model=model, args=args, train_dataset={"math": math, "code": code}, mixing={"math": 2, "code": 1}
        ... )
    """

    _built: Parts | None = None  # the parts of a trainer with streams
    _training: Training  # a run of theirs
    _evaluation: StreamEvaluation
    _preparation: StreamPreparation
    _rules: LoadingRules

    @reports_errors_to_all_ranks
    def __init__(
        self,
        model: PreTrainedModel | nn.Module | str | None = None,
        args: TrainingArguments | None = None,
        data_collator: DataCollator | None = None,
        train_dataset: Mapping[str, DataSet] | Sequence[Stream] | DataSet | None = None,
        *positional: Any,
        mixing: Policy | str | Mapping[str, float] | Sequence[float] | WeightFunction | None = None,
        batch_size: Schedule | str | int | Callable[[int, int], int] | None = None,
        budget: Budget | None = None,
        groupings: Sequence[Grouping] = (),
        objective: Objective | str | Sequence[str] | Mapping[str, float] | None = None,
        methods: Sequence[Method] = (),
        conflict: GradientAggregation | nn.Module | str | None = None,
        probe: Probing | None = None,
        compute_metrics: Callable[..., Mapping[str, float]]
        | Mapping[str, Callable[..., Mapping[str, float]]]
        | None = None,
        **kwargs: Any,
    ):
        config = copy.copy(options_in(args, self.options_class))
        config.check_options()
        taken = check_class(type(self), MixingMixin, args, positional)
        check_trainer_keywords(type(self), MixingMixin, kwargs)
        check_output_folder(args)
        streams = [] if train_dataset is None else as_streams(train_dataset)
        if isinstance(sets := kwargs.get("eval_dataset"), Mapping):
            kwargs["eval_dataset"] = safe_names(sets, "eval_dataset")
        compute_metrics = safe_names(compute_metrics, "compute_metrics")
        by_set = compute_metrics if isinstance(compute_metrics, Mapping) else None
        if compute_metrics is not None and by_set is None:
            kwargs["compute_metrics"] = compute_metrics
        length = _shown_length(args, streams, config.epoch_size, config.chosen_budget(budget))
        self._preparation = self._new_preparation(streams, length)
        self._rules = self._new_rules(config.max_samples_per_micro_batch)
        prepares, tokenizer = hasattr(super(), "_prepare_dataset"), kwargs.get("processing_class")
        stand_in = self._preparation.stand_in(prepares, args, tokenizer)
        network: Any = model  # of TRL's trainers also a name
        if positional or not taken:
            super().__init__(network, args, data_collator, stand_in, *positional, **kwargs)
        else:  # other trainers have another order
            first: dict[str, Any] = {"model": model, "args": args}
            first |= {"data_collator": data_collator, "train_dataset": stand_in}
            super().__init__(
                **{name: value for name, value in first.items() if name in taken or value is not None}, **kwargs
            )
        metric = with_safe_name(self.args.metric_for_best_model, self.eval_dataset)
        self.args.metric_for_best_model = metric
        evaluated = kwargs.get("eval_dataset", positional[0] if positional else None)
        is_main = self.is_world_process_zero()
        has_heads = self.model is not None and takes_task(self.model)
        overlap = tell_shared_rows(streams, has_heads, evaluated) if is_main else None
        streams = self._preparation.take_stand_in_back()
        streams = self._preparation.streams = read_own_loader(self, MixingMixin, streams, self._rules)
        policy = resolve_policy(config.chosen("mixing", mixing), streams)
        target_splits = split_targets(self, config.chosen_objective(objective), policy)
        declared = None if target_splits is None else target_splits.objective
        mixture = config.mixture(batch_size, budget, groupings, data_seed(self.args), declared)
        check_sets(by_set, mixture.eval_weights, self.eval_dataset)
        options = Options(
            policy=policy,
            mixture=mixture,
            skipping=skipping_of(streams, config.on_sample_error, config.max_skipped_share),
            probe=probe,
            methods=with_conflict(methods, config.chosen("conflict", conflict)),
            target_splits=target_splits,
            config=config,
            evaluated_on_training_rows=overlap,
        )
        if streams:
            self._built = parts_of(self, streams, options, self._rules, by_set)
            self._training, self._evaluation = Training(self._built), self._built.evaluation
        else:
            self._evaluation = StreamEvaluation(self, StreamLosses(self, PresentStep()), self._rules, by_set)

    # ---- What users look at ----

    @property
    def streams(self) -> list[Stream]:
        """The streams, with the data sets that they are trained on."""
        return self._preparation.streams

    @property
    def mixing(self) -> Mixing:
        """The controller of the mixture: weights, coverage, live control.

        Raises:
            ValueError: If the trainer has no training data.
        """
        return self._parts.run.mixing

    @property
    def ledger(self) -> Ledger:
        """The ledger of the run.

        Raises:
            ValueError: If the trainer has no training data.
        """
        return self._parts.run.ledger

    @property
    def auxiliary_passes(self) -> AuxiliaryPasses:
        """Runs the model on samples outside of training.

        Raises:
            ValueError: If the trainer has no training data.
        """
        return self._parts.auxiliary_passes

    @property
    def _parts(self) -> Parts:
        if self._built is None:
            raise wrong_value("train_dataset", "is missing: this trainer has no mixture.")
        return self._built

    def describe_run(self) -> dict[str, Any]:
        """Describes the mixture of the run as plain data: the entry `run` of `ledger.json`."""
        return self._parts.describe()

    def note_memories(self) -> None:
        """Records in the ledger how many samples each method remembers."""
        if self._built is not None:
            self._built.methods.note_memories()

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Writes the Trainer's model card, with a section on the mixture; see `Trainer.create_model_card`."""
        super().create_model_card(*args, **kwargs)
        if self._built is not None and self.is_world_process_zero():
            add_mixture_card(self.ledger, Path(str(self.args.output_dir)))

    # ---- Training ----

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trains on the mixture; see `Trainer.train`.

        Args:
            resume_from_checkpoint: A checkpoint's folder, or `True` for the newest complete one in the output folder.
            *args: As for the Trainer.
            **kwargs: As for the Trainer.

        Raises:
            ValueError: On all ranks, if there is no such checkpoint or it is incomplete or damaged; with the file.
            RunTerminated: After a SIGTERM or SIGUSR1, once the run is saved; a `SystemExit`.
            RunInterrupted: After a SIGINT, likewise; a `KeyboardInterrupt`.
        """
        self._check_train_dataset()
        return self._training.train(super().train, resume_from_checkpoint, *args, **kwargs)

    def fork(self, run: str | Path, at: int, **kwargs: Any) -> Any:
        """Continues from a checkpoint of another run, in the output folder of this trainer.

        The trainer is built as that run's was, but for what is to differ, such as `mixing`. Every stream keeps its
        order, and random numbers are those of that run: with the same mixing, the fork is that run to the bit. Another
        policy begins at its first decision.

        Args:
            run: Output folder of the run.
            at: A step with a checkpoint.
            **kwargs: As for `train`.

        Raises:
            ValueError: If there is no such checkpoint (with those that there are), or the folder is that of the run.
        """
        with self._parts.start.forking(Path(run), at) as checkpoint:
            return self.train(checkpoint, **kwargs)

    def _check_train_dataset(self) -> None:
        if self.train_dataset is not self._preparation.combined:
            raise wrong_value(
                "train_dataset", "was replaced after construction, but the streams are fixed then. Build a new one."
            )
        if self.train_dataset is None:
            raise wrong_value("train_dataset", "is missing, which training requires.")

    def get_train_dataloader(self) -> MixingLoader:  # type: ignore[override]  # the loop only iterates it and takes its length
        """Creates the loader of the streams; see `Trainer.get_train_dataloader`.

        Called outside of the run, it returns a loader to look at: it yields an epoch with the present weights and batch
        size, and does not move the run's streams.
        """
        self._check_train_dataset()
        return self._training.new_loader()

    def set_initial_training_values(self, args: TrainingArguments, dataloader: Any) -> tuple[Any, ...]:
        """Returns the length of the run by the mixture's clock; see `Trainer.set_initial_training_values`."""
        return self._parts.loop.initial_values(args, dataloader)

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Returns the samples per step over all ranks; see `Trainer.get_total_train_batch_size`."""
        return super().get_total_train_batch_size(args) if self._built is None else self.mixing.clock.batch_size

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """Loads the next step, which all ranks agree on; see `Trainer.get_batch_samples`."""
        batch, num_items = self._parts.steps.load(epoch_iterator, device)
        if not batch:
            self._parts.loop.end_of_data()
        return batch, num_items

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Trains a whole step, or what an override or a callback passes on; see `Trainer.training_step`."""
        step = self._built.steps.train if isinstance(inputs, StepBatch) and self._built else super().training_step
        return step(model, inputs, num_items_in_batch)

    def compute_loss_context_manager(self) -> contextlib.ExitStack:
        """Averages an auxiliary loss over a step's micro-batches; see `Trainer.compute_loss_context_manager`."""
        stack = super().compute_loss_context_manager()
        return stack if self._built is None else self._built.steps.loss_context(stack)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs, with the entries of the streams in the loop's own entry; see `Trainer.log`.

        Callbacks and trackers get all entries. With more than 256 streams, `state.log_history` leaves out the entries
        of single streams; the ledger has them.
        """
        if self._built is None:
            log_at(super().log, logs, start_time)
        else:
            own_start = None if start_time is None else self._built.checkpoints.start_time
            self._built.log.log(super().log, logs, own_start)

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
        search = super().hyperparameter_search
        return self._parts.search.run(search, hp_space, compute_objective, *args, **kwargs)

    # ---- Checkpoints ----

    def holding_output(self, trial: Any = None) -> contextlib.AbstractContextManager[None]:
        """Locks the output folder against other runs; all ranks have to call it.

        Args:
            trial: The trial of a hyperparameter search, which has a folder of its own.

        Raises:
            ValueError: If another run uses the folder; with its process.
            OSError: If the folder is not writable; the other ranks raise a `RemoteError`.
        """
        return self._parts.start.holding_output(trial)

    def newest_checkpoint(self) -> str | None:
        """Returns the folder of the newest complete and intact checkpoint, or `None`; all ranks have to call it."""
        return self._parts.start.newest_checkpoint()

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Saves the model, and the arguments as the user set them; see `Trainer.save_model`."""
        with contextlib.nullcontext() if self._built is None else self._built.checkpoints.saving_model():
            super().save_model(*args, **kwargs)

    # ---- Evaluation ----

    def evaluate(
        self,
        eval_dataset: DataSet | Mapping[str, DataSet] | str | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **options: Any,
    ) -> dict[str, float]:
        """Evaluates; a set of a dict, or one with the prefix `eval_NAME`, is treated like the stream `NAME`.

        For a dict of sets it also returns `eval_loss`, the mean of their losses (weighted by `eval_weights`, which must
        then name all sets), and `eval_worst_loss`.

        Args:
            eval_dataset: As for the Trainer.
            ignore_keys: As for the Trainer.
            metric_key_prefix: As for the Trainer.
            **options: Further options of the Trainer class, such as a `Seq2SeqTrainer`'s `num_beams=4`. They apply to
                each set of a dict; the Trainer would drop them there.

        Returns:
            The metrics.
        """
        return self._evaluation.evaluate(super().evaluate, eval_dataset, ignore_keys, metric_key_prefix, options)

    def predict(self, test_dataset: DataSet | Mapping[str, DataSet], *args: Any, **kwargs: Any) -> Any:
        """Predicts; a set of a dict, or one with the prefix `test_NAME`, is treated like the stream `NAME`.

        Args:
            test_dataset: As for the Trainer, or a dict of sets by name.
            *args: As for the Trainer.
            **kwargs: As for the Trainer.

        Returns:
            The result of `Trainer.predict`; for a dict, one per set, with metrics under `test_NAME_`.
        """
        return self._evaluation.predict(super().predict, test_dataset, *args, **kwargs)

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """Checks that the set has the same length on all ranks, and evaluates; see `Trainer.evaluation_loop`.

        Its loss is the mean over all rows or tokens of the set, on any number of ranks.

        Raises:
            ValueError: On all ranks, if the lengths differ: the ranks would wait for each other forever.
        """
        self._evaluation.check_length(dataloader)
        return self._evaluation.measured(super().evaluation_loop, dataloader, *args, **kwargs)

    def prediction_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Predicts a batch with the head of its stream; see `Trainer.prediction_step`."""
        predict = partial(super().prediction_step, model)
        return self._evaluation.set_loss.prediction_step(predict, self._evaluation.with_task(inputs), *args, **kwargs)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Creates the loader of an evaluation set, preprocessed like its stream; see `Trainer.get_eval_dataloader`."""
        return self._evaluation.eval_loader(super().get_eval_dataloader, eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Creates the loader of a test set, preprocessed like its stream; see `Trainer.get_test_dataloader`."""
        return self._evaluation.test_loader(super().get_test_dataloader, test_dataset)

    # ---- What a drop-in class may decide otherwise ----

    options_class: ClassVar[type[MixingOptions]] = MixingOptions  # whose defaults hold for plain training arguments
    # Methods of the classes below that do what the mixture does in their place, by class and name.
    carried_overrides: ClassVar[frozenset[tuple[type, str]]] = frozenset()

    def _new_rules(self, max_samples: int | None) -> LoadingRules:
        """Makes the rules of loading, before the parent class is constructed."""
        return LoadingRules(self, max_samples)

    def _new_preparation(self, streams: Sequence[Stream], length: int | None) -> StreamPreparation:
        """Makes what gives the parent's constructor its training data."""
        return StreamPreparation(self, streams, length)

    # ---- The Trainer's private methods: see `hf_compat.py` for the reasons ----

    def _init_training_state(self, max_steps: int, num_steps: int, _num_epochs: int, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]  # the loop passes these by place
        begin, num_epochs = super()._init_training_state, self.mixing.clock.planned_epochs
        return self._parts.loop.first_epoch(begin, max_steps, num_steps, num_epochs, *args, **kwargs)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        super()._issue_warnings_after_load(self._training.complete_loading(load_result))

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        self._parts.loop.run_epoch(super()._run_epoch, *args, **kwargs)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        return is_best(self, super()._determine_best_metric, metrics, trial, self._evaluation.warned_metrics)

    def _get_grad_norm(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        norm = super()._get_grad_norm(model, *args, **kwargs)  # type: ignore[no-untyped-call]
        return self._parts.steps.check_gradient(model, norm)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        by_trainer = super()._get_num_items_in_batch(batch_samples, device)
        return self._evaluation.set_loss.count(by_trainer, batch_samples)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self._training.after_step(super()._maybe_log_save_evaluate, *args, **kwargs)

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        report = super()._report_to_hp_search
        if self._built is None:
            report(trial, step, metrics)
        else:
            check_found(self, metrics)  # the first that sees all metrics of an evaluation
            self._built.search.report(report, trial, step, metrics)

    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> Any:
        return self._parts.loop.finalize(super()._finalize_training, trial, num_train_samples)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._training.check_decisions()
        self._parts.checkpoints.write(super()._save_checkpoint, model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        with self._parts.resuming.loading_optimizer():
            super()._load_optimizer_and_scheduler(checkpoint)

    def _get_collator_with_removed_columns(self, data_collator: Any, description: str | None = None) -> Any:
        if not self._rules.removes_columns:
            return data_collator
        return super()._get_collator_with_removed_columns(data_collator, description)

    # ---- TRL's private methods: only trainers that have them call these ----

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return self._preparation.prepare(super()._prepare_dataset, dataset, *args, **kwargs)  # type: ignore[misc]

    def _precompute_ref_logps(self, dataset: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._preparation.precompute(super()._precompute_ref_logps, dataset, name, *args, **kwargs)  # type: ignore[misc]

    def _reject_skip_prepare_without_labels(self, named: dict[str, Any], *args: Any) -> None:
        super()._reject_skip_prepare_without_labels(self._preparation.all_named(named), *args)  # type: ignore[misc]


class MixingTrainer(MixingMixin, Trainer):
    """The Trainer on a mixture of streams; see `MixingMixin`."""


def _shown_length(
    args: TrainingArguments | None, streams: Sequence[Stream], epoch_size: int | None, budget: Budget | None
) -> int | None:
    """Returns the length of iterable streams to show to the Trainer, which asks for `max_steps` if they have none.

    Raises:
        ValueError: If nothing says how long the run is.
    """
    if not any(stream.is_iterable for stream in streams):
        return None
    args = TrainingArguments("tmp_trainer") if args is None else args  # the Trainer's own default
    length = resolve_budget(args, budget, streams)
    return resolve_epoch_size(length, streams, epoch_size) or (None if args.max_steps > 0 else length.samples or 1)
