import json
from pathlib import Path

import pytest

from benchmarks.quality.loss_kinds import main
from benchmarks.quality.losses import LOSSES


def test_a_quick_run_says_how_far_each_gradient_is_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "--json", str(tmp_path / "figures.json")])
    errors = json.loads((tmp_path / "figures.json").read_text())["errors"]
    assert {name: error < 1e-6 for name, error in errors["MixingTrainer"].items()} == {
        name: is_exact for name, (_, is_exact) in LOSSES.items()
    }
    assert errors["Trainer"]["mean over tokens"] == pytest.approx(3.1, abs=0.2)  # four times too large, and not even
    assert "in-batch contrastive" in capsys.readouterr().out
