"""The mixtures of `benchmarks.quality`: the recipes under `recipes/quality`, which `mixer train` takes too.

Learning rates, sizes and numbers of steps were chosen by the time of a run and so that seeds of uniform mixing differ
little, not by what any policy comes to. (Half as many blocks of twice the length took the same time, but ended where
the model just begins to use its context: nearly equal mixtures then differed by 0.05, a third of the grid's range.)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser
from torch import nn
from transformers import TrainingArguments, set_seed

from benchmarks.quality.data import PARTS, Splits
from benchmarks.quality.policies import PIKES, Entry, competitors
from benchmarks.quality.sentences import accuracy
from mixer.recipe.recipe import Recipe

_FOLDER = Path(__file__).parents[2] / "recipes" / "quality"
# The most of each argument of data and model in a quick run.
_LEAST = {"num_validation": 32, "num_test": 64, "length": 16, "num_words": 100}
_LEAST |= {"hidden": 16, "layers": 1, "hidden_size": 16, "intermediate_size": 48, "num_hidden_layers": 1}
_QUICK_STEPS, _QUICK_BATCH, _QUICK_PART = 12, 24, 50


@dataclass(frozen=True)
class Mixture:
    """A mixture that is trained on.

    Args:
        name: The name of its recipe.
        is_quick: Whether it is made small, for a test.
    """

    name: str
    is_quick: bool = False

    @property
    def content(self) -> dict[str, Any]:
        """The recipe's content."""
        content: dict[str, Any] = yaml.safe_load((_FOLDER / f"{self.name}.yaml").read_text())
        if self.is_quick:
            streams = [stream["arguments"] for stream in content["streams"].values()]
            for own in (*streams, content["model"].get("config", {}), content["model"].get("arguments", {})):
                own |= {name: min(own[name], least) for name, least in _LEAST.items() if name in own}
                own |= {name: own[name] // _QUICK_PART for name in ("num_samples",) if name in own}
            content["training"]["max_steps"] = _QUICK_STEPS
            content["training"]["per_device_train_batch_size"] = content["batch_size"] = _QUICK_BATCH
        return content

    @property
    def num_steps(self) -> int:
        """Steps of a run."""
        return int(self.content["training"]["max_steps"])

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return int(self.content["batch_size"])

    @property
    def reads_folder(self) -> bool:
        """Whether it needs the data's folder."""
        return any("folder" in stream["arguments"] for stream in self.content["streams"].values())

    @property
    def compute_metrics(self) -> Callable[[Any], dict[str, float]] | None:
        """What is computed beside the loss, for the Trainer."""
        return accuracy if self.name == "classification" else None

    @property
    def entries(self) -> Mapping[str, Entry] | None:
        """Its competitors, where these are not all."""
        return PIKES if self.name == "demo" else None

    def competitors(self) -> dict[str, Entry]:
        """Gives its competitors by name."""
        return competitors() if self.entries is None else dict(self.entries)

    def read(self, data_dir: Path | None) -> dict[str, Splits]:
        """Reads the parts of the streams.

        Args:
            data_dir: Folder of the data, for mixtures that need one.

        Returns:
            The parts by stream.

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

    def arguments(self, folder: str, seed: int, interval_steps: int | None) -> TrainingArguments:
        """Gives the training arguments.

        Args:
            folder: The output folder.
            seed: The seed.
            interval_steps: Steps between evaluations; `None` evaluates never.

        Returns:
            The arguments.
        """
        strategy = "no" if interval_steps is None else "steps"
        return replace(
            _recipe(self).training, output_dir=folder, seed=seed, eval_strategy=strategy, eval_steps=interval_steps
        )


MIXTURES = ("domains", "classification", "texts", "synthetic", "demo")


@cache
def _recipe(mixture: Mixture) -> Recipe:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Recipe)
    return Recipe(**vars(parser.instantiate(parser.parse_object(mixture.content))))


@cache
def _read(mixture: Mixture, data_dir: Path | None) -> dict[str, Splits]:
    if mixture.reads_folder and data_dir is None:
        raise ValueError("This mixture is made of files: give their folder by --data-dir, or run others by --mixture.")
    found: dict[str, dict[str, Any]] = {}
    for name, stream in _recipe(mixture).streams.items():
        own = {**stream.arguments, **({"folder": str(data_dir)} if "folder" in stream.arguments else {})}
        train = replace(stream, arguments=own).build(name)
        test = replace(stream, arguments=own, validation_split="test").build(name)
        found[name] = dict(zip(PARTS, (train.stream.dataset, train.evaluation, test.evaluation), strict=True))
    return found
