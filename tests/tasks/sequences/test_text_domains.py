"""Domains of text as tasks, and the recipe that learns them one after the other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser

from tasks.continual import ContinualRun
from tasks.sequences import joined, text_domains
from tasks.tools.recipe import ContinualRecipe
from tests.refusals import refused

RECIPE = Path(__file__).parents[3] / "recipes" / "continual_text.yaml"
SMALL = {"num_samples": 60, "num_evaluation_samples": 8, "block_length": 32}


def test_each_domain_is_a_task_without_classes() -> None:
    sequence = text_domains(60, 8, 32)
    assert (sequence.names, sequence.scenario) == (("python", "cpp", "english"), "domain")
    assert [task.classes for task in sequence] == [task.labels_trained_on for task in sequence] == [None] * 3
    assert [task.description for task in sequence] == ["Python source code", "C++ headers", "English docstrings"]
    for task in sequence:
        assert (len(task.train), len(task.evaluation)) == (60, 8)
        columns = task.evaluation.read_columns(np.arange(8))
        assert columns["input_ids"].shape == (8, 32)
        assert torch.equal(columns["input_ids"], columns["labels"])
    assert len(joined(sequence)[0].train) == 180
    assert text_domains(4, 2, 8, order=["cpp", "python"]).names == ("cpp", "python")


def test_what_there_is_not() -> None:
    for order in ("python", ["python", "java"]):
        with refused("text_domains: order" if order == "python" else "order"):
            text_domains(**SMALL, order=order)  # type: ignore[arg-type]


def run_of(recipe: Path, folder: Path, *arguments: str) -> ContinualRun:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--recipe", action="config")
    parser.add_class_arguments(ContinualRecipe)
    options = ["--training.output_dir", str(folder), "--training.logging_steps", "5"]
    given = ["--recipe", str(recipe), *options, "--sequence.arguments", str(SMALL), *arguments]
    config = parser.instantiate(parser.parse_args(given))
    config.pop("recipe")
    return ContinualRecipe(**config.as_dict()).build()


@pytest.mark.full
def test_the_recipe_learns_each_domain_and_keeps_some_of_all(tmp_path: Path) -> None:
    run = run_of(RECIPE, tmp_path, "--memory.arguments.capacity", "30")
    run._score = lambda trainer, task: trainer.evaluate(task.evaluation)["eval_loss"]
    losses = run.run().scores
    assert (losses[1:].max(axis=0) < losses[0]).all()
    assert losses[0].min() > 5.0 > losses[3].max()
    assert len(run.memory) == 30
    assert run.memory.sources.names == ("python", "cpp", "english")


@pytest.mark.full
def test_the_recipe_of_adapters_learns_with_an_adapter_for_each_domain(tmp_path: Path) -> None:
    run: Any = run_of(RECIPE.with_name("continual_lora.yaml"), tmp_path)
    losses = run.run().scores
    assert (np.diag(losses[1:]) < losses[0]).all()
    assert list(run.model.peft_config) == ["default", "task_1", "task_2"]
