"""Runs that a command trains once: another recipe in the same folder is refused."""

from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from mixer.analysis.short_runs import Step, finish
from tests.commands.recipes import RECIPE


def step(folder: Path, **fields: object) -> Step:
    recipe = Mock()
    recipe.training.configure_mock(output_dir=str(folder), process_index=0, world_size=1)
    content = {**RECIPE, "training": {**RECIPE["training"], "output_dir": str(folder)}, **fields}
    return Step(recipe, yaml.safe_dump(content))


def test_a_run_is_trained_once(tmp_path: Path) -> None:
    first = step(tmp_path / "run")
    finish(first)
    first.recipe.build.return_value.train.assert_called_once()  # type: ignore[attr-defined]
    again = step(tmp_path / "run")
    finish(again)
    again.recipe.build.assert_not_called()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"training.output_dir: .* differs in batch_size\."):
        finish(step(tmp_path / "run", batch_size=10))
    (tmp_path / "run" / "recipe.yaml").write_text("model:\n  con")
    with pytest.raises(ValueError, match=r"training.output_dir: .*recipe.yaml cannot be read"):
        finish(step(tmp_path / "run"))
