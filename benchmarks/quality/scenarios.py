"""The scenarios of `benchmarks.quality`: recipes under `recipes/quality`, which `mixer train` takes too.

Models that learn from scratch share theirs. A model with real weights has scenarios of its own, in a folder there.

They were written down before any policy was compared on them. Models and numbers of steps were chosen by the time of a
run and by the noise: runs of nearly the same mixture differ by less than 0.1 % with a perceptron over a window, and by
1.4 % with a Llama of two layers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml
from jsonargparse import ArgumentParser
from torch import nn
from transformers import TrainingArguments, set_seed

from benchmarks.quality.data import PARTS, Splits
from benchmarks.quality.family import DRAWN, drawn
from mixer import Objective
from mixer.policies.objective import as_objective
from mixer.tools.recipe.recipe import Recipe

Size = Literal["small", "llama", "gpu", "smollm2", "minilm"]
WITH_OWN: tuple[Size, ...] = ("smollm2", "minilm")  # models with scenarios of their own
HEADROOM, NONE, HARM = "headroom", "no headroom", "harm"
# What each is for: some mixture should do better than the uniform one, none should, or whether `"auto"` does harm.
SCENARIOS = {
    "outside": HEADROOM,
    "small_target": HEADROOM,
    "junk": HEADROOM,
    "near_duplicates": HEADROOM,
    "easy_and_hard": HEADROOM,
    "repeated": HEADROOM,
    "tasks": HEADROOM,
    "bound": HEADROOM,
    "worst": HEADROOM,
    "helper": HEADROOM,
    "domains": NONE,
    "texts": NONE,
    "classification": NONE,
    "frequency": HARM,
    "wrong_labels": HARM,
    "conflict": HARM,
    "scarce": HARM,
    "label_shift": HARM,
}
_FOLDER = Path(__file__).parents[2] / "recipes" / "quality"
_WINDOW = "benchmarks.quality.window.new_window_model"  # what a larger model can take the place of
# About 0.95 million parameters.
_LLAMA = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 416,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
# About 6.9 million.
_LARGER_LLAMA = _LLAMA | {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8}
_OF_LLAMA = {"learning_rate": 3e-3, "max_steps": 240, "adam_beta2": 0.95}
# What a size changes in a recipe: its model and arguments of the training.
_SIZES: dict[Size, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": ({"config": _LLAMA}, _OF_LLAMA),
    "gpu": ({"config": _LARGER_LLAMA}, _OF_LLAMA | {"learning_rate": 1e-3, "use_cpu": False}),
}
_QUICK_STEPS, _QUICK_BATCH = 12, 24
_QUICK_OF_OWN = 3, 8  # steps and rows of a step of a model with real weights


@dataclass(frozen=True)
class Scenario:
    """A mixture of streams with an objective.

    Args:
        name: The name of its recipe.
        size: Which model is trained.
        is_quick: Whether it is made short, for a test.
    """

    name: str
    size: Size = "small"
    is_quick: bool = False
    num_decisions: ClassVar[int] = 24  # of a policy, about

    @property
    def content(self) -> dict[str, Any]:
        """The recipe's content."""
        content: dict[str, Any] = json.loads(_content(self))
        return content

    @property
    def num_steps(self) -> int:
        """Steps of a run."""
        return int(_recipe(self).training.max_steps)

    @property
    def interval_steps(self) -> int:
        """Steps from one decision, measurement or evaluation to the next."""
        return max(1, round(self.num_steps / self.num_decisions))

    @property
    def num_places(self) -> int:
        """Places of a run at which the objective is taken: few where that takes as long as the training."""
        return {"smollm2": 4, "minilm": 6}.get(self.size, 12)

    @property
    def num_course_rows(self) -> int:
        """About how many rows of a target's test part the objective is taken on there; all of them at the end."""
        return 64 if self.size == "minilm" else 128

    @property
    def streams(self) -> list[str]:
        """Names of the streams."""
        return list(_recipe(self).streams)

    def options_of(self, stream: str) -> dict[str, Any]:
        """When a stream enters, how often it is passed over and its head, as far as its recipe says so."""
        own = self.content["streams"][stream]
        return {name: own[name] for name in ("enters_at", "max_epochs", "head") if name in own}

    def head_of(self, name: str) -> str:
        """The head of a stream, or of an evaluation set, of a model with several."""
        return str(self.content["streams"].get(name, {}).get("head", name))

    @property
    def objective(self) -> Objective:
        """The objective, with its targets by name."""
        objective = as_objective(_recipe(self).objective)
        assert objective is not None, f"{self.name} declares no objective"
        return objective.of_sets([*_recipe(self).streams, *_recipe(self).evaluation])

    @property
    def importance(self) -> list[float]:
        """Importance of each stream for the objective; only 0 if a target is no stream."""
        importance = self.objective.importance
        return [importance.get(name, 0.0) if importance.keys() <= {*self.streams} else 0.0 for name in self.streams]

    @property
    def reads_folder(self) -> bool:
        """Whether it needs the data's folder."""
        return "'folder'" in str([self.content["streams"], self.content.get("evaluation")])

    @property
    def can_be_larger(self) -> bool:
        """Whether a larger model can take the place of its own."""
        return bool(self.content["model"].get("factory") == _WINDOW)

    def read(self, data_dir: Path | None) -> dict[str, Splits]:
        """Reads the parts of the streams and of the evaluation sets that are no streams.

        Args:
            data_dir: Folder of the data, for scenarios that need one.

        Returns:
            The parts by name, streams first.

        Raises:
            ValueError: If it needs a folder and none is given, or a file is missing.
        """
        return _read(self, data_dir)

    def new_model(self, seed: int) -> nn.Module:
        """Makes the model, the same for the same seed.

        Args:
            seed: The seed of the run.

        Returns:
            The model.
        """
        set_seed(seed)
        return _recipe(self).model.build()

    def arguments(self, folder: str, seed: int, evaluates: bool) -> TrainingArguments:
        """Gives the training arguments.

        Args:
            folder: The output folder.
            seed: The seed.
            evaluates: Whether to evaluate at intervals, for a policy that follows evaluations.

        Returns:
            The arguments.
        """
        strategy, interval = "steps" if evaluates else "no", self.interval_steps
        own = _recipe(self).training
        return replace(own, output_dir=folder, seed=seed, eval_strategy=strategy, eval_steps=interval)


def names_of(size: Size) -> list[str]:
    """Lists the scenarios of a model, but for those that are drawn.

    Args:
        size: The model.

    Returns:
        Names of recipes.
    """
    return sorted(path.stem for path in _folder_of(size).glob("*.yaml")) if size in WITH_OWN else [*SCENARIOS]


def _folder_of(size: Size) -> Path:
    return _FOLDER / size if size in WITH_OWN else _FOLDER


@cache
def _content(scenario: Scenario) -> str:
    if scenario.name.startswith(DRAWN):
        content = drawn(int(scenario.name.removeprefix(DRAWN)))
    else:
        content = yaml.safe_load((_folder_of(scenario.size) / f"{scenario.name}.yaml").read_text())
    model, training = _SIZES.get(scenario.size, ({}, {}))
    content["model"] = model or content["model"]
    content["training"] |= training
    if scenario.is_quick:
        steps, batch = _QUICK_OF_OWN if scenario.size in WITH_OWN else (_QUICK_STEPS, _QUICK_BATCH)
        content["training"] |= {"max_steps": steps, "per_device_train_batch_size": batch}
        content["batch_size"] = batch
        arguments = content["model"].get("arguments", {})
        arguments |= {name: steps for name in ("num_steps",) if name in arguments}
    return json.dumps(content)


@cache
def _recipe(scenario: Scenario) -> Recipe:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Recipe)
    return Recipe(**vars(parser.instantiate(parser.parse_object(scenario.content))))


@cache
def _read(scenario: Scenario, data_dir: Path | None) -> dict[str, Splits]:
    if scenario.reads_folder and data_dir is None:
        raise ValueError(f"{scenario.name} is made of files: give their folder by --data-dir.")
    found: dict[str, Splits] = {}
    for name, stream in {**_recipe(scenario).streams, **_recipe(scenario).evaluation}.items():
        own = with_folder(stream.arguments, data_dir)
        train = replace(stream, arguments=own).build(name)
        test = replace(stream, arguments=own, validation_split="test").build(name)
        found[name] = dict(zip(PARTS, (train.stream.dataset, train.evaluation, test.evaluation), strict=True))
    return found


def with_folder(value: Any, data_dir: Path | None) -> Any:
    """Puts the data's folder in the place of what a recipe says.

    Args:
        value: A recipe's content or a part of it.
        data_dir: The folder.

    Returns:
        The same with the folder wherever an argument is called so.
    """
    if isinstance(value, Mapping):
        return {name: str(data_dir) if name == "folder" else with_folder(own, data_dir) for name, own in value.items()}
    return [with_folder(own, data_dir) for own in value] if isinstance(value, list) else value
