"""What holds of every method: killed runs end as others do, and what it has learnt is saved as it is."""

from pathlib import Path
from typing import Any

import pytest
import torch

from replay import ReplayBuffer, ReplayRatio
from tasks.methods import SI, ICaRL, LwF, Merging, OnlineEWC, RanPAC, nearest_mean
from tasks.methods.shared import load_tensors, save_tensors
from tasks.mlp import mlp
from tests.helpers import layouts
from tests.mixer.trainer.runs import make
from tests.ranks.warm import some
from tests.refusals import refused
from tests.tasks.killed import assert_goes_on, assert_saved_as_it_is, whole_runs
from tests.tasks.methods.runs import CASES, build, data

FEW = ("OnlineEWC", "ICaRL", "RanPAC")
whole = whole_runs(build)


@pytest.mark.parametrize("name", some(CASES, FEW))
def test_a_run_killed_in_the_middle_of_a_task_ends_as_one_that_was_not(name: str, whole: Any, tmp_path: Path) -> None:
    assert_goes_on(build, name, whole, tmp_path, seed=7)


@pytest.mark.parametrize("name", some(CASES, FEW))
def test_what_a_method_has_learnt_is_laid_out_after_a_save_as_before(name: str, whole: Any, tmp_path: Path) -> None:
    assert_saved_as_it_is(whole(name)[0], tmp_path)


def test_tensors_of_any_layout_are_saved_as_they_are(tmp_path: Path) -> None:
    picture, table = torch.randn(2, 3, 4, 4), torch.randn(6, 5)
    made = {
        "channels last": picture.to(memory_format=torch.channels_last),
        "transposed": table.T,
        "part": table[1:, :3].clone().as_strided((5, 2), (3, 1)),
        "half": table.bfloat16(),
        "flags": table > 0,
        "number": torch.tensor(3),
        "nothing": torch.zeros(4, 0),
    }
    save_tensors(tmp_path, own=made)
    found = load_tensors(tmp_path, "cpu")
    assert found is not None
    assert layouts(found["own"]) == layouts(dict(sorted(made.items())))
    assert all(torch.equal(found["own"][name], made[name]) for name in made)


@pytest.mark.parametrize("method", [OnlineEWC(), SI(), LwF(), ICaRL(), RanPAC()])
def test_a_trainer_that_tells_no_tasks_is_refused(method: Any, tmp_path: Path) -> None:
    model, streams = mlp(num_features=6, hidden_sizes=(4,), num_labels=6), {"all": data(), "memory": ReplayBuffer(5)}
    trainer = make(tmp_path, model, train_dataset=streams, mixing=ReplayRatio(0.5), methods=[method])
    with refused("methods"):
        trainer.train()


REFUSED: list[tuple[Any, str]] = [
    (lambda: RanPAC(strengths=[]), "strengths"),
    (lambda: Merging("sum"), "rule"),  # type: ignore[arg-type]
    (lambda: Merging(start="first"), "start"),  # type: ignore[arg-type]
    (lambda: Merging("ties", density=0.0), "density"),
    (lambda: nearest_mean(ReplayBuffer(5)), "memory"),
]


@pytest.mark.parametrize(("make", "option"), REFUSED)
def test_wrong_values_are_refused(make: Any, option: str) -> None:
    with refused(option):
        make()


@pytest.mark.parametrize(
    ("name", "changes", "option"),
    [
        ("ERACE", {"memory": ReplayBuffer(9, is_online=False)}, "memory"),
        ("ERACE", {"scenario": "task"}, "scenario"),
        ("ICaRL", {"scenario": "task"}, "scenario"),
        ("SLCA", {"scenario": "task"}, "scenario"),
        ("SLCA", {"memory": ReplayBuffer(9)}, "memory"),
    ],
)
def test_what_a_method_cannot_do_is_refused_early(name, changes, option, tmp_path) -> None:
    with refused(option):
        build(tmp_path, name, max_steps=1, **changes).run()
