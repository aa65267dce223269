"""Runs that a command trains once: results are kept, and another recipe in the same folder is refused."""

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


def test_a_run_is_trained_once_and_its_results_are_kept(tmp_path: Path) -> None:
    first = step(tmp_path / "run")
    assert finish(first, lambda trainer: {"objective": 1.5}) == {"objective": 1.5}
    first.recipe.build.return_value.train.assert_called_once()  # type: ignore[attr-defined]
    again = step(tmp_path / "run")
    assert finish(again, Mock()) == {"objective": 1.5}
    again.recipe.build.assert_not_called()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"training.output_dir: .* differs in batch_size\."):
        finish(step(tmp_path / "run", batch_size=10), Mock())


@pytest.mark.parametrize(("file", "content"), [("recipe.yaml", "model:\n  con"), ("finished.json", '{"objec')])
def test_damaged_files_of_a_finished_run_are_named(tmp_path: Path, file: str, content: str) -> None:
    finish(step(tmp_path), lambda trainer: {})
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=f"training.output_dir: .*{file} cannot be read"):
        finish(step(tmp_path), Mock())
