"""The penalty and the gradient rule of `examples/own_methods.py`, and the measurement of `docs/extend.md`."""

from pathlib import Path
from typing import Any

import pytest
import torch

from examples.own_methods import Anchored, Turning
from mixer import MixingTrainer, Stream
from tests.helpers import arguments, run_page, weights_of
from tests.mixer.trainer.runs import make
from tests.ranks.warm import launched
from tests.refusals import refused
from tests.replay.methods.runs import Classifier, Points

DATA = {"math": Points(20, seed=1), "code": Points(12, seed=2)}  # a step of the page takes all of it
STRENGTH, LEARNING_RATE = 0.3, 0.1


def build(folder: Path) -> MixingTrainer:
    saved = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    rules: dict[str, Any] = {"batch_size": 32, "methods": [Anchored(0.05), Turning()], "train_dataset": DATA}
    return make(folder, Classifier(), per_device_train_batch_size=5, **rules, **saved)


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


def test_a_resumed_run_is_the_whole_one_and_another_strength_is_refused(one_rank: tuple[Path, list[Any]]) -> None:
    folder, (whole, _, resumed, _) = one_rank
    assert torch.equal(resumed, whole)
    trainer = build(folder / "run")
    trainer._parts.methods.all[0].strength = 2.0
    with pytest.raises(ValueError, match=r"were Anchored\(0\.05\) and are Anchored\(2\.0\) now"):
        trainer.train(resume_from_checkpoint=str(folder / "run" / "checkpoint-3"))


def test_two_ranks_train_log_and_resume_as_one(two_ranks, one_rank) -> None:
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
    with refused("mixing"):
        MixingTrainer(Classifier(), args, **options)
    trainer = MixingTrainer(Classifier(), args, **options, methods=[page["ConfidenceHook"]()])
    trainer.train()
    logits = {name: Classifier()(data.x, data.labels)["logits"] for name, data in DATA.items()}
    doubt = {name: 1 - float(own.softmax(dim=-1).amax(dim=-1).mean()) for name, own in logits.items()}
    weights = trainer.mixing.weights
    assert weights["math"] / weights["code"] == pytest.approx(doubt["math"] / doubt["code"], rel=1e-9)
