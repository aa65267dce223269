"""A table of methods on two ranks: both choose the same strengths, and one writes."""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd

from mixer.tools.cli.entry import main
from tests.commands.recipes import ROOT
from tests.ranks.warm import Results, launched

WORDS = ["--methods", "er,lwf", "--seeds", "2", "--tune", "first:2", "--grid", "lwf.strength=0,100000"]
SHORT = ["--training.max_steps", "6", "--training.per_device_train_batch_size", "8"]


def tabled(folder: Path) -> dict[str, Any]:
    recipe = ROOT / "recipes" / "continual.yaml"
    with mock.patch("mixer.tools.cli.entry.end_together"):  # what is handed back comes later
        main(["continual", str(recipe), *WORDS, *SHORT, "--training.output_dir", str(folder / "table")])
    return json.loads((folder / "table" / "lwf" / "strengths.json").read_text())


results = launched(tabled)


def test_two_ranks_choose_as_one_does(results: Results, tmp_path: Path) -> None:
    first, second = (result["tabled"] for result in results)
    assert first == second == tabled(tmp_path)
    table = pd.read_csv(results[0]["folder"] / "table" / "table.csv")
    assert table["method"].tolist() == ["er", "lwf"]
    assert (
        table["average_accuracy"].tolist() == pd.read_csv(tmp_path / "table" / "table.csv")["average_accuracy"].tolist()
    )
