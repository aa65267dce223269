"""What a source is worth: a linear model, whose forks are computed by hand."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mixer import Fixed, MixingTrainer
from mixer.tools.analysis.value import source_values
from mixer.tools.report import write_report
from tests.mixer.trainer.runs import make
from tests.refusals import refused

AIMS = {"good": 1.0, "copy": 1.0, "junk": -1.0}  # what the rows of each source ask for
TARGETS = {"near": 1.0, "other": -1.0}
RATE, AT, STEPS = 0.1, 4, 2


class _Line(nn.Module):
    """Half of the mean squared distance of `weight · x` to the labels."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        drawn = x @ self.weight
        return {"loss": (drawn - labels).square().mean() / 2, "logits": drawn}


def _rows(aim: float) -> list[dict[str, torch.Tensor]]:
    return [{"x": torch.ones(1), "labels": torch.tensor(aim)} for _ in range(12)]


def build(mixing: Fixed, folder: Path, **options: Any) -> MixingTrainer:
    named = {"learning_rate": RATE, "lr_scheduler_type": "constant", "max_steps": 8, "remove_unused_columns": False}
    named |= {"per_device_train_batch_size": 3, "batch_size": 6, "mixing": mixing}
    named["train_dataset"], named["eval_dataset"] = (
        {name: _rows(aim) for name, aim in aims.items()} for aims in (AIMS, TARGETS)
    )
    return make(folder, _Line(), **named, **options)


def train_parent(folder: Path) -> None:
    build(Fixed(), folder, save_strategy="steps", save_steps=AT).train()


def by_hand(left_out: str, target: str) -> float:
    """The change of the target's loss: gradient descent on the mean of equal shares."""

    def descend(weight: float, aims: list[float], steps: int) -> float:
        for _ in range(steps):
            weight -= RATE * (weight - sum(aims) / len(aims))
        return weight

    start = descend(0.0, [*AIMS.values()], AT)
    whole = descend(start, [*AIMS.values()], STEPS)
    part = descend(start, [aim for name, aim in AIMS.items() if name != left_out], STEPS)
    return ((whole - TARGETS[target]) ** 2 - (part - TARGETS[target]) ** 2) / 2


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent")
    train_parent(folder)
    return folder


def test_values_of_a_linear_model_are_those_by_hand(parent: Path, tmp_path: Path) -> None:
    before = sorted(parent.iterdir())
    table = source_values(build, parent, AT, STEPS, repeats=2)
    values = table.set_index(["source", "target"])
    assert values["change"].to_dict() == pytest.approx({pair: by_hand(*pair) for pair in values.index}, rel=1e-4)
    assert values.loc["good", "change"].tolist() == values.loc["copy", "change"].tolist()
    assert values["verdict"].unstack().to_dict("index") == {
        "good": {"near": "helps", "other": "harms"},
        "copy": {"near": "helps", "other": "harms"},
        "junk": {"near": "harms", "other": "helps"},
    }
    # Two of six samples in each of two steps, and no tokens.
    assert set(values["samples"]) == {4.0}
    assert values["by_thousand_samples"].tolist() == pytest.approx((values["change"] / 4 * 1e3).tolist())
    assert values["by_million_tokens"].isna().all()
    assert sorted(parent.iterdir()) == sorted([*before, parent / "value.json"])
    # The report of the run shows them.
    page = write_report([parent], tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"in forks from step {AT}" in page
    change = by_hand("junk", "near")
    row = re.search(r"junk</th><td>4</td><td>near</td><td>([^<]+)</td><td>([^<]+)</td><td>[^<]+</td><td>([^<]+)<", page)
    assert row is not None
    assert [float(text) for text in row.groups()] == pytest.approx([change, change, change / 4 * 1e3], rel=1e-3)


def test_an_interval_is_that_of_the_repeats(parent: Path) -> None:
    """Repeats that differ: rows of the source are noisy, and each repeat has others."""
    noise = torch.randn(12, generator=torch.Generator().manual_seed(0)).tolist()

    def noisy(mixing: Fixed, folder: Path) -> MixingTrainer:
        trainer = build(mixing, folder)
        rows = [{"x": torch.ones(1), "labels": torch.tensor(9.0 * aim)} for aim in noise]
        trainer.streams[0].dataset[:] = rows
        return trainer

    values = source_values(noisy, parent, AT, 1, repeats=2).set_index(["source", "target"])
    row = values.loc[("good", "near")]
    changes = torch.tensor(row["changes"], dtype=torch.float64)
    half = 12.706 * changes.std() / 2**0.5  # Student's t of one degree of freedom
    assert len({*row["changes"]}) == 2
    assert row["low"] == pytest.approx(float(changes.mean() - half))
    assert row["high"] == pytest.approx(float(changes.mean() + half))
    assert row["verdict"] == "cannot tell"


def test_what_cannot_be_measured_is_refused(parent: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="repeats must be"):
        source_values(build, parent, AT, STEPS, repeats=1)
    one = Fixed({"good": 1.0, "copy": 0.0, "junk": 0.0})
    build(one, tmp_path, save_strategy="steps", save_steps=AT).train()
    with refused("mixing"):
        source_values(build, tmp_path, AT)
