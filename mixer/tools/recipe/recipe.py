"""A recipe: a whole training run as typed data, from which model, streams and trainer are built."""

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from transformers import AutoProcessor, AutoTokenizer, TrainingArguments, set_seed

from mixer.distributed.collectives import RankSync, RemoteError
from mixer.mixture.clock import Budget
from mixer.mixture.groups import Grouping
from mixer.policies.contract import Policy
from mixer.policies.objective import Objective, as_objective
from mixer.run.config import MixingConfig, options_in
from mixer.run.probing import Probing
from mixer.schedules.base import Schedule
from mixer.tools.recipe.data.collators import collator_for, ensure_pad_token
from mixer.tools.recipe.data.formats.template import chat_template_of
from mixer.tools.recipe.generated import with_written_rows
from mixer.tools.recipe.model import ModelRecipe, load_pretrained, note_class_names
from mixer.tools.recipe.places import placed
from mixer.tools.recipe.stream_checks import (
    check_evaluation,
    check_lengths,
    check_streams,
    in_words_of_recipes,
    tell_shared_documents,
)
from mixer.tools.recipe.streams import COLUMN_TRAINERS, IMAGE_TASK, BuiltStream, Factory, StreamRecipe, call_by_name
from mixer.tools.recipe.trainers import (
    KINDS,
    TrainerName,
    column_losses,
    column_model,
    fitted_model,
    reward_functions,
    trainer_class,
)
from mixer.trainer.gradient_aggregation import GradientAggregation
from mixer.trainer.method import Method
from mixer.trainer.trainer import MixingTrainer
from mixer.trainer.variants import stay_on_meta
from mixer.utils.errors import require, wrong_value
from mixer.utils.text import safe_names

# Fields that are built or loaded; all others are passed on to the trainer.
_BUILT = (
    *("model", "streams", "training", "evaluation", "targets", "tokenizer", "objective"),
    *("trainer", "chat_template", "loss", "rewards"),
)


class BuiltRecipe(NamedTuple):
    """A recipe's trainer and its streams by name, with the data sets that it is trained and evaluated on."""

    trainer: MixingTrainer
    streams: dict[str, BuiltStream]


class BuiltData(NamedTuple):
    """The data of a recipe."""

    tokenizer: Any
    streams: dict[str, BuiltStream]
    sets: dict[str, BuiltStream]

    @property
    def evaluation(self) -> dict[str, Any]:
        """Evaluation sets by name: those of streams, and others."""
        of_streams = {name: part.evaluation for name, part in self.streams.items() if part.evaluation is not None}
        return of_streams | _rows_of(self.sets)


@dataclass
class Recipe:
    """A training run.

    Args:
        model: The model.
        streams: The data sources by name.
        training: The training arguments: `MixingConfig`, with all options of the mixture that are not below. With a
            `trainer` of TRL also all of its `SFTConfig`, `DPOConfig` or `RewardConfig`.
        mixing: The mixing policy: a class of `mixer policies` with its arguments, a name, or weights by stream.
        batch_size: Samples per step over all ranks: a number, or a class of `mixer schedules` with its arguments.
        budget: Length of the run in epochs, samples, tokens, labels (what the loss learns) or steps, whichever ends
            first.
        groupings: Groups of streams.
        probe: How and how often to measure the streams' gradients.
        methods: Methods that take part in steps beside the samples' own loss: classes with their arguments, such as
            `replay.DER`.
        conflict: How to combine conflicting gradients of streams: `pcgrad`, `cagrad`, `mgda`, or the class
            `GradientAggregation` with its arguments.
        objective: What the run is to lower: `average` or `worst` of the evaluation sets, the name of one, several
            names, their importance by name, or an `Objective`; see the docs for the development rows.
        evaluation: Evaluation sets that are no streams, by name, written like streams: their validation split, or all
            their rows.
        targets: Development rows, by the name of a target, in place of a part of its evaluation set; written likewise.
        tokenizer: A tokenizer, or for `image-text-to-text` a processor, to load from a folder or the hub, or a function
            that returns one, or its folder. It tokenizes the streams' rows and pads batches. `None` takes that of a
            `gguf_file`.
        trainer: TRL's trainer to train by: `sft` on conversations, prompts and completions, or texts, `dpo` or `reward`
            on pairs of a chosen and a rejected answer; `dpo` compares with the model as it begins; `grpo` on prompts,
            with `rewards`. Without a `tokenizer` it takes that of the model. Or one of sentence-transformers:
            `sentence-transformer`, `cross-encoder`, `sparse-encoder` or `multi-vector-encoder`.
        chat_template: A chat template in place of the tokenizer's: in Jinja, the path of a file with one, a tokenizer
            that has one (a folder, or a name on the hub), or the name of one that TRL has, such as `qwen3`.
        loss: With a trainer of sentence-transformers: the name of one of its losses, or the dotted name of a function
            that gets the model; with arguments as `{factory: NAME, arguments: {...}}`; or such by stream. `None` takes
            the trainer's own.
        rewards: With trainer `grpo`: the dotted name of a reward function, or the name of a reward model, which has a
            slash; several of them; or such by stream.
    """

    model: ModelRecipe
    streams: dict[str, StreamRecipe]
    training: MixingConfig
    mixing: Policy | dict[str, float] | list[float] | str | None = None
    batch_size: Schedule | int | str | None = None
    budget: Budget | None = None
    groupings: list[Grouping] = field(default_factory=list)
    probe: Probing | None = None
    methods: list[Method] = field(default_factory=list)
    conflict: GradientAggregation | str | None = None
    objective: Objective | dict[str, float] | list[str] | str | None = None
    evaluation: dict[str, StreamRecipe] = field(default_factory=dict)
    targets: dict[str, StreamRecipe] = field(default_factory=dict)
    tokenizer: str | Factory | None = None
    trainer: TrainerName | None = None
    chat_template: str | None = None
    loss: str | Factory | dict[str, str | Factory] | None = None
    rewards: str | list[str] | dict[str, str | list[str]] | None = None

    def __post_init__(self) -> None:
        for name in ("streams", "evaluation", "targets", "objective"):
            setattr(self, name, safe_names(getattr(self, name), name))
        if self.trainer is not None:
            self.model = fitted_model(self.trainer, self.model)
        require(
            self.model.task != IMAGE_TASK or self.trainer == "sft", "trainer", f"sft for {IMAGE_TASK}", self.trainer
        )
        if self.loss is not None and self.trainer not in COLUMN_TRAINERS:
            require(False, "trainer", f"one with losses to choose ({', '.join(COLUMN_TRAINERS)})", self.trainer)
        require((self.rewards is None) == (self.trainer != "grpo"), "rewards", "given with trainer grpo", self.rewards)

    @staticmethod
    @functools.cache
    def for_trainer(trainer: str | None) -> "type[Recipe]":
        """Returns the class of recipes with the training arguments of a trainer.

        Args:
            trainer: The recipe's field `trainer`.

        Raises:
            ValueError: If there is no such trainer, or TRL is not installed.
        """
        if trainer is None:
            return Recipe
        require(trainer in KINDS, "trainer", f"one of {', '.join(KINDS)}", trainer)
        arguments = KINDS[trainer].load(KINDS[trainer].config)
        # HfArgumentParser, if something used it before, has left classes made later with fields of fewer types.
        hints = get_type_hints(arguments)
        own = arguments.__init__.__annotations__
        own.update({name: hints[name] for name in own if name in hints})
        same = {"__doc__": Recipe.__doc__, "__module__": __name__}
        return make_dataclass("Recipe", [("training", arguments)], bases=(Recipe,), namespace=same)

    def build(self) -> MixingTrainer:
        """Builds the model, the streams and the trainer.

        Returns:
            The trainer, ready to train.

        Raises:
            ValueError: If a part cannot be built; names the field.
        """
        return self.build_parts().trainer

    def build_parts(self, has_weights: bool = True) -> BuiltRecipe:
        """Builds the trainer and returns it with the streams.

        Args:
            has_weights: Whether the model has weights. Without, it is built from its configuration alone, and the
                trainer plans, loads and collates, but cannot train.

        Raises:
            ValueError: If a part cannot be built; names the field.
        """
        check_streams(self.streams, self.mixing)
        tokenizer, built, sets = data = self.build_data()
        of_factories = [name for name, own in self.streams.items() if own.data is None]
        if tokenizer is None and self.trainer is None and self.training.per_device_train_batch_size > 1:
            check_lengths({name: part.stream.dataset for name, part in built.items() if name not in of_factories})
        targets = self.build_sets("targets", self.targets, tokenizer)
        check_evaluation(self.streams, data.evaluation, self.training)
        with placed("model"):
            model = self._model(has_weights)
        heads = {name: part.stream.head or name for name, part in built.items()}
        parts = {"streams": built, "evaluation": sets, "targets": targets}
        classes = {(field, name): part.class_names for field, own in parts.items() for name, part in own.items()}
        note_class_names(model, heads, {at: names for at, names in classes.items() if names is not None})
        training: Any = copy.copy(self.training)
        if not has_weights:
            training.precompute_ref_log_probs = False  # of DPO
            stay_on_meta(model)
        with in_words_of_recipes():
            if training.process_index == 0:
                tell_shared_documents(built, sets)
            trainer = trainer_class(self.trainer)(
                model=model,
                args=training,
                train_dataset=[part.stream for part in built.values()],
                eval_dataset=data.evaluation or None,
                objective=self._with_development_sets(_rows_of(targets)),
                processing_class=tokenizer,
                **self._trainer_arguments(model, tokenizer, has_weights),
                **{option.name: getattr(self, option.name) for option in fields(self) if option.name not in _BUILT},
            )
        return BuiltRecipe(trainer, built if self.trainer is None else _prepared(trainer, built))

    def _model(self, has_weights: bool) -> Any:
        if self.trainer in COLUMN_TRAINERS:
            return column_model(str(self.trainer), self.model)
        return self.model.build(has_weights, adapts=self.trainer is None)

    def _trainer_arguments(self, model: Any, tokenizer: Any, has_weights: bool) -> dict[str, Any]:
        """Returns the arguments that only some trainers take; TRL's make their own collators, adapters and copies."""
        if self.trainer is None:
            collates = tokenizer is not None and self._reads_rows
            collator = collator_for(self.model.task, tokenizer) if collates else None
            return {"data_collator": collator}
        if self.trainer in COLUMN_TRAINERS:
            return {} if self.loss is None else {"loss": column_losses(self.trainer, self.loss, model)}
        adapters = {"peft_config": self.model.adapters()} if self.model.lora is not None and has_weights else {}
        if self.rewards is not None:
            return {**adapters, "reward_funcs": reward_functions(self.rewards)}
        if self.trainer != "dpo":
            return adapters
        training: Any = self.training
        if not has_weights:
            return {"ref_model": stay_on_meta(copy.deepcopy(model))}
        if adapters or training.precompute_ref_log_probs:
            return adapters
        return {"ref_model": copy.deepcopy(model)}  # TRL would load it by its name, which a new model does not have

    def _with_development_sets(self, rows: Mapping[str, Any]) -> Any:
        """Returns the objective with data sets of development rows, by name of their target.

        Raises:
            ValueError: If there are such rows and no objective.
        """
        if not rows:
            return self.objective
        objective = as_objective(self.objective or options_in(self.training).objective)
        if objective is None:
            text = f"are development rows of an objective, got {list(rows)} and none: give objective, too."
            raise wrong_value("targets", text, found=list(rows))
        return replace(objective, development_sets=rows)

    def build_data(self) -> BuiltData:
        """Loads the tokenizer, sets the seed, and builds the streams and the evaluation sets.

        Raises:
            ValueError: If one cannot be built; names it.
        """
        tokenizer = self.load_tokenizer()
        set_seed(self.training.seed)
        # First, as they are small: what is wrong with them is said before the streams are tokenized.
        evaluation = self.build_sets("evaluation", self.evaluation, tokenizer)
        set_seed(self.training.seed)
        return BuiltData(tokenizer, self.build_streams(tokenizer), evaluation)

    def build_streams(self, tokenizer: Any) -> dict[str, BuiltStream]:
        """Builds the streams by name, on the first process of each machine before the others, which find its files.

        Args:
            tokenizer: The tokenizer, for formats.

        Raises:
            ValueError: On all ranks, if a stream cannot be built on one of them.
            OSError: If data do not exist, on the rank that misses them.
        """
        streams = with_written_rows(self.streams, self.model, tokenizer, self.training)

        def build() -> dict[str, BuiltStream]:
            built = dict[str, BuiltStream]()
            for name, stream in streams.items():
                own = stream.build_all(name, tokenizer, self.model.task, self.trainer, self.training)
                twice = [name for name in own if name in built]
                require(not twice, f"streams.{name}", "streams of other names than those before it", twice)
                built |= own
            return built

        return _on_first_ranks_first(self.training, build) if self._reads_rows else build()

    def build_sets(self, field: str, sets: Mapping[str, StreamRecipe], tokenizer: Any) -> dict[str, BuiltStream]:
        """Builds data sets that are not trained on.

        Args:
            field: Name of the recipe's field: `"evaluation"` or `"targets"`.
            sets: Its content.
            tokenizer: The tokenizer, for formats.

        Raises:
            ValueError: If a set cannot be built, or an evaluation set is named like a stream.
        """
        twice = [name for name in sets if field == "evaluation" and name in self.streams]
        if twice:
            text = f"{twice} are streams, whose evaluation sets are their own validation rows."
            raise wrong_value("evaluation", text, found=twice)
        return self._built(field, sets, tokenizer)

    def _built(self, field: str, sets: Mapping[str, StreamRecipe], tokenizer: Any) -> dict[str, BuiltStream]:
        own = tokenizer, self.model.task, self.trainer, self.training
        return {name: stream.build(name, *own, field=field) for name, stream in sets.items()}

    def load_tokenizer(self) -> Any:
        """Loads the tokenizer, with a pad token if the recipe reads rows; `None` for a recipe without one.

        Raises:
            ValueError: If it cannot be loaded.
        """
        name = self.tokenizer_name
        if self.trainer in COLUMN_TRAINERS:
            require(name is None, "tokenizer", f"left out for trainer {self.trainer}, whose model has one", name)
        elif self.trainer is not None and name is None:
            text = f"is needed by trainer {self.trainer}: give a folder or a name on the hub."
            raise wrong_value("tokenizer", text)
        # TRL pads by itself.
        tokenizer = load_tokenizer(name, self.model.task, self.trainer is None and self._reads_rows)
        if self.chat_template is not None:
            if tokenizer is None:
                raise wrong_value("chat_template", "It is a tokenizer's: give tokenizer, too.")
            with placed("chat_template"):
                tokenizer.chat_template = chat_template_of(self.chat_template)
        return tokenizer

    @property
    def tokenizer_name(self) -> str | Factory | None:
        """The tokenizer to load: the recipe's, or that of its model for a `trainer` or a GGUF file."""
        if self.tokenizer is not None:
            return self.tokenizer
        if self.trainer in COLUMN_TRAINERS:
            return None
        with placed("model"):
            return self.model.own_tokenizer if self.trainer is None else self.model.loaded_from

    @property
    def _reads_rows(self) -> bool:
        """Whether the recipe itself reads or formats rows of some stream, beside data sets from functions."""
        return any(stream.data is not None or stream.format is not None for stream in self.streams.values())


def _prepared(trainer: MixingTrainer, built: Mapping[str, BuiltStream]) -> dict[str, BuiltStream]:
    """Returns the streams with the data sets that TRL has made of them; where it packs, rows are none of samples."""
    sets: Any = trainer.eval_dataset or {}
    rows = {"rows": None} if getattr(trainer.args, "packing", False) else {}
    return {
        stream.name: built[stream.name]._replace(stream=stream, evaluation=sets.get(stream.name), **rows)
        for stream in trainer.streams
    }


def _rows_of(sets: Mapping[str, BuiltStream]) -> dict[str, Any]:
    """Returns the rows of sets that are not trained on: the validation split of each, or all its rows.

    Args:
        sets: The sets by name.
    """
    return {name: own.stream.dataset if own.evaluation is None else own.evaluation for name, own in sets.items()}


def load_tokenizer(tokenizer: str | Factory | None, task: str, pads: bool) -> Any:
    """Loads a tokenizer, from a folder or the hub or by a function; `None` for none.

    Args:
        tokenizer: Its name, or the function.
        task: The model's task.
        pads: Whether it needs a pad token.

    Raises:
        ValueError: If it cannot be loaded.
    """
    if tokenizer is None:
        return None
    with placed("tokenizer"):
        if isinstance(tokenizer, Factory):
            loaded = call_by_name("factory", tokenizer.factory, tokenizer.arguments)
        else:
            loaded = tokenizer
        if isinstance(loaded, str | Path):
            loaded = load_pretrained(AutoProcessor if task == IMAGE_TASK else AutoTokenizer, str(loaded))
        if pads:
            ensure_pad_token(loaded, task)
    return loaded


def _on_first_ranks_first(
    training: TrainingArguments, build: Callable[[], dict[str, BuiltStream]]
) -> dict[str, BuiltStream]:
    """Builds on the first process of each machine, then on the others, which wait for up to `ddp_timeout`."""
    rank_sync = RankSync(training.world_size, training.ddp_timeout_delta)
    is_first = training.local_process_index == 0
    try:
        first = rank_sync.run_on_all(lambda: build() if is_first else {})
        then = rank_sync.run_on_all(lambda: {} if is_first else build())
    except RemoteError as error:
        raise ValueError(str(error)) from None
    return first if is_first else then
