"""The weights that a run ends with, chosen on development rows, against means and interpolations by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mixer import MixingTrainer, Objective
from mixer.ledger.card import as_markdown, mixture_card
from tasks.methods import FinalWeights
from tests.helpers import On, arguments, mixing_trainer, weights_of
from tests.refusals import refused
from tests.replay.methods.runs import Classifier, Points, collate

ROWS = {"new": Points(16, seed=3), "old": Points(16, seed=3)}
ROWS["old"].labels = (ROWS["old"].labels + 1) % 3


def loss_at(vector: torch.Tensor, name: str) -> float:
    model = Classifier()
    torch.nn.utils.vector_to_parameters(vector.double(), model.parameters())
    rows = [ROWS[name][place] for place in range(16)]
    return float(model(**collate(rows))["loss"].detach())


def run(
    folder: Path, bound: float, resume: str | None = None, step_end: Any = None, **changes: Any
) -> tuple[MixingTrainer, Any]:
    """A run that is better and better on new rows, and worse and worse on old ones; and its weights by step."""
    course: list[torch.Tensor] = []
    saves = "steps" if step_end is None else "no"  # a checkpoint of weights that are not finite is refused
    args = arguments(folder, max_steps=10, save_strategy=saves, save_steps=6, per_device_train_batch_size=6)
    options = {"train_dataset": {"new": Points(16, seed=3)}, "eval_dataset": dict(ROWS), "data_collator": collate}
    objective = Objective(["new"], bounds={"old": bound}, development_sets=dict(ROWS))
    trainer = mixing_trainer(
        MixingTrainer, Classifier(), args, methods=[FinalWeights(**changes)], objective=objective, **options
    )
    note = step_end or (lambda state, model, **_: course.append(weights_of(model).clone()))
    trainer.add_callback(On(step_end=note))
    trainer.train(resume_from_checkpoint=resume)
    return trainer, course


def test_the_best_candidate_that_keeps_the_bound_is_taken_and_the_card_says_so(tmp_path: Path) -> None:
    before, shares = weights_of(Classifier()), (0.25, 0.5, 0.75, 1.0)
    trainer, course = run(tmp_path, 1.03, mean_from=0.5, shares=shares)
    ends = {"last step": course[-1], "mean of 5 steps": torch.stack(course[5:]).mean(dim=0)}
    points = {(name, share): torch.lerp(before, end, share) for name, end in ends.items() for share in shares}
    kept = {one: own for one, own in points.items() if loss_at(own, "old") <= 1.03 * loss_at(before, "old")}
    assert 0 < len(kept) < len(points)
    best = min(kept, key=lambda one: loss_at(kept[one], "new"))
    torch.testing.assert_close(weights_of(trainer.model), kept[best], rtol=0, atol=1e-6)  # vectors in single
    final = mixture_card(tmp_path)["final_weights"]
    assert (final["end"], final["share"]) == best
    assert final["development_losses"]["new"] == pytest.approx(loss_at(kept[best], "new"), rel=1e-5)
    assert f"- weights: {best[0]}, {best[1]:g} of the way" in as_markdown(mixture_card(tmp_path))
    resumed, _ = run(tmp_path, 1.03, str(tmp_path / "checkpoint-6"), mean_from=0.5, shares=shares)
    assert torch.equal(weights_of(resumed.model), weights_of(trainer.model))


def test_where_no_candidate_keeps_the_bound_the_nearest_is_taken_and_said(tmp_path: Path) -> None:
    before = weights_of(Classifier())
    trainer, course = run(tmp_path, 0.6, shares=[0.5, 1.0])
    points = [torch.lerp(before, course[-1], share) for share in (0.5, 1.0)]
    nearest = min(points, key=lambda own: loss_at(own, "old"))
    torch.testing.assert_close(weights_of(trainer.model), nearest, rtol=0, atol=1e-6)
    assert "no candidate keeps the bounds" in mixture_card(tmp_path)["final_weights"]["in_words"]


def test_a_run_that_has_diverged_keeps_its_last_weights_and_says_so(tmp_path: Path, caplog: Any) -> None:
    def diverge(state: Any, model: torch.nn.Module, **_: Any) -> None:
        if state.global_step == 10:
            torch.nn.utils.vector_to_parameters(torch.full_like(weights_of(model), torch.nan), model.parameters())

    trainer, _ = run(tmp_path, 1.03, step_end=diverge, shares=[0.5, 1.0])
    assert weights_of(trainer.model).isnan().all()
    assert "1 of the way from the weights before the run; every candidate has a loss that is not finite" in caplog.text


def test_values_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for option, value in (("shares", []), ("shares", [0.0]), ("mean_from", 2.0), ("interval_steps", 0)):
        with pytest.raises(ValueError, match=option):
            FinalWeights(**{option: value})
    with refused("objective"):
        MixingTrainer(Classifier(), arguments(tmp_path), train_dataset={"new": Points()}, methods=[FinalWeights()])
