"""The penalty and the gradient rule of `examples/own_methods.py`, and the measurement of `docs/extend.md`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from examples.own_methods import Anchored, Turning
from mixer import Method, MixingTrainer, Stream
from tests.helpers import GradientRecorder, arguments, run_page, weights_of
from tests.ranks.warm import launched
from tests.replay.methods.runs import Classifier, Points

DATA = {"math": Points(20, seed=1), "code": Points(12, seed=2)}  # a step of the page takes all of it
STRENGTH, LEARNING_RATE = 0.3, 0.1


def build(folder: Path, **changes: Any) -> MixingTrainer:
    saved = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    args = arguments(folder, per_device_train_batch_size=5, **{**saved, **changes})
    rules: dict[str, Any] = {"batch_size": 32, "methods": [Anchored(0.05), Turning()]}
    return MixingTrainer(Classifier(), args, train_dataset=DATA, **rules)


def both(folder: Path) -> list[Any]:
    """Weights and last logs of a run without a break, and of one that goes on from its middle."""
    found = []
    for checkpoint in (None, str(folder / "run" / "checkpoint-3")):
        trainer = build(folder / "run")
        trainer.train(resume_from_checkpoint=checkpoint)
        found += [weights_of(trainer.model), trainer.state.log_history[-2]]
    return found


two_ranks = launched(both)


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("one_rank")
    return folder, both(folder)


def step_by_hand(hook: Method, folder: Path) -> tuple[list[Any], list[Any]]:
    """Trains three steps on all data with one hook; returns the logs, and the gradients of each optimizer step."""
    args = arguments(folder, per_device_train_batch_size=5, learning_rate=LEARNING_RATE, lr_scheduler_type="constant")
    rules: dict[str, Any] = {"batch_size": 32, "methods": [hook], "callbacks": [recorder := GradientRecorder()]}
    trainer = MixingTrainer(Classifier(), args, train_dataset=DATA, **rules)
    trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry], recorder.gradients


def gradients_of(model: torch.nn.Module, penalty: Any = 0.0) -> list[torch.Tensor]:
    """Of the loss on all data at once."""
    x, labels = (torch.cat([getattr(data, name) for data in DATA.values()]) for name in ("x", "labels"))
    return list(torch.autograd.grad(model(x, labels)["loss"] + penalty, list(model.parameters())))


def test_the_penalty_has_the_gradient_of_its_formula_and_is_logged_once_a_step(tmp_path: Path) -> None:
    logs, gradients = step_by_hand(Anchored(STRENGTH), tmp_path)
    model = Classifier()
    start = weights_of(model).clone()
    for entry, found in zip(logs, gradients, strict=True):
        penalty = STRENGTH * (parameters_to_vector(model.parameters()) - start).square().sum()
        assert entry["term/Anchored"] == pytest.approx(float(penalty), rel=1e-6)
        expected = parameters_to_vector(gradients_of(model, penalty))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        vector_to_parameters(weights_of(model) - LEARNING_RATE * expected, model.parameters())
    assert logs[2]["term/Anchored"] > 0


def test_the_rule_leaves_what_is_beside_the_weights_and_logs_its_share(tmp_path: Path) -> None:
    logs, gradients = step_by_hand(Turning(), tmp_path)
    model = Classifier()
    for entry, found in zip(logs, gradients, strict=True):
        whole = gradients_of(model)
        pairs = zip(whole, model.parameters(), strict=True)
        left = [own - (own * weight).sum() / weight.square().sum() * weight for own, weight in pairs]
        expected = parameters_to_vector(left).detach()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        before = parameters_to_vector(whole)
        assert (found - before).abs().max() > 1e-3
        assert entry["turning"] == pytest.approx(float(found.square().sum() / before.square().sum()))
        vector_to_parameters(weights_of(model) - LEARNING_RATE * expected, model.parameters())


def test_a_resumed_run_is_the_whole_one_and_another_strength_is_refused(one_rank: tuple[Path, list[Any]]) -> None:
    folder, (whole, _, resumed, _) = one_rank
    assert torch.equal(resumed, whole)
    trainer = build(folder / "run")
    trainer._parts.methods.all[0].strength = 2.0
    with pytest.raises(ValueError, match=r"were Anchored\(0\.05\) and are Anchored\(2\.0\) now"):
        trainer.train(resume_from_checkpoint=str(folder / "run" / "checkpoint-3"))


def test_two_ranks_train_log_and_resume_as_one(
    two_ranks: list[dict[str, Any]], one_rank: tuple[Path, list[Any]]
) -> None:
    expected, logged, *_ = one_rank[1]
    for weights, entry, resumed, _ in (result["both"] for result in two_ranks):
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)
        assert torch.equal(weights, two_ranks[0]["both"][0])
        assert torch.equal(resumed, weights)
        for name in ("term/Anchored", "turning"):
            assert entry[name] == pytest.approx(logged[name], rel=1e-5)


def test_a_measurement_of_ones_own_reaches_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = run_page("extend", tmp_path, monkeypatch)
    args = arguments(tmp_path / "run", per_device_train_batch_size=5, max_steps=1)
    streams = [Stream(name, data, weight=len(data)) for name, data in DATA.items()]  # a step takes all of it
    options: dict[str, Any] = {"train_dataset": streams, "batch_size": 32, "mixing": page["Unsure"]()}
    with pytest.raises(ValueError, match=r"needs Confidence\(\), which nothing measures"):
        MixingTrainer(Classifier(), args, **options)
    trainer = MixingTrainer(Classifier(), args, **options, methods=[page["ConfidenceHook"]()])
    trainer.train()
    logits = {name: Classifier()(data.x, data.labels)["logits"] for name, data in DATA.items()}
    doubt = {name: 1 - float(own.softmax(dim=-1).amax(dim=-1).mean()) for name, own in logits.items()}
    weights = trainer.mixing.weights
    assert weights["math"] / weights["code"] == pytest.approx(doubt["math"] / doubt["code"], rel=1e-9)
