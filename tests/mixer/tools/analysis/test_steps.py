"""Runs that a command trains once: another recipe in the same folder is refused."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import yaml

from mixer.tools.analysis.short_runs import finish
from tests.commands.recipes import RECIPE
from tests.refusals import refused


def step(folder: Path, **fields: object) -> Any:
    """Trains a stand-in of a recipe to its end, and returns it."""
    recipe = Mock()
    recipe.training.configure_mock(output_dir=str(folder), process_index=0, world_size=1)
    content = {**RECIPE, "training": {**RECIPE["training"], "output_dir": str(folder)}, **fields}
    finish(recipe, yaml.safe_dump(content))
    return recipe


def test_a_run_is_trained_once(tmp_path: Path) -> None:
    step(tmp_path / "run").build.return_value.train.assert_called_once()
    step(tmp_path / "run").build.assert_not_called()
    with refused("training.output_dir"):
        step(tmp_path / "run", batch_size=10)
    (tmp_path / "run" / "recipe.yaml").write_text("model:\n  con")
    with refused("training.output_dir"):
        step(tmp_path / "run")
